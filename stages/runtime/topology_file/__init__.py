"""topology.yaml: read with lines kept, checked against the schema, all mistakes named at once."""

from stages.runtime.topology_file.finding import Finding, dotted
from stages.runtime.topology_file.load import Report, load_topology, parse_topology

__all__ = ["Finding", "Report", "dotted", "load_topology", "parse_topology"]
