"""What every stage process shares: launch file, bus, lifecycle, clock, topology and model files."""
