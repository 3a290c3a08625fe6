"""The schema of topology.yaml: every option with its type, default, unit and one line of doc."""

from contracts.topology.document import Problem, Topology
from contracts.topology.sections import (
    KV_BLOCK,
    BusSection,
    EgressSection,
    ExecutorRange,
    IngressSection,
    KeySection,
    ModelSection,
    PoolSection,
    PriceSection,
    QueueingSection,
    QueueSection,
    RouteMatch,
    RouteSection,
    StagesSection,
    TenantSection,
    key_id,
)

__all__ = [
    "KV_BLOCK",
    "BusSection",
    "EgressSection",
    "ExecutorRange",
    "IngressSection",
    "KeySection",
    "ModelSection",
    "PoolSection",
    "PriceSection",
    "Problem",
    "QueueSection",
    "QueueingSection",
    "RouteMatch",
    "RouteSection",
    "StagesSection",
    "TenantSection",
    "Topology",
    "key_id",
]
