"""Moves usage events from the bus into DuckDB, each exactly once."""
