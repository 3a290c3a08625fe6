"""The schema of topology.yaml: every option with its type, default, unit and one line of doc."""

from contracts.topology.document import Problem, Topology
from contracts.topology.sections import (
    KV_BLOCK,
    BusSection,
    EgressSection,
    ExecutorRange,
    IngressSection,
    ModelSection,
    PoolSection,
    PriceSection,
    QueueSection,
    RouteMatch,
    RouteSection,
    StagesSection,
    TenantSection,
)

__all__ = [
    "KV_BLOCK",
    "BusSection",
    "EgressSection",
    "ExecutorRange",
    "IngressSection",
    "ModelSection",
    "PoolSection",
    "PriceSection",
    "Problem",
    "QueueSection",
    "RouteMatch",
    "RouteSection",
    "StagesSection",
    "TenantSection",
    "Topology",
]
