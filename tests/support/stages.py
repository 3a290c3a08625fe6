"""A small topology and the context that a service under test is started with."""

import hashlib
from pathlib import Path
from typing import Any

from contracts.topology import Topology
from stages.runtime.bus import Bus
from stages.runtime.launch import BusAddress, Launch
from stages.runtime.stage import Context

KEY, OTHER_KEY = "key-of-acme", "key-of-other"


def key_hash(key: str) -> str:
    """As the topology keeps it."""
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


def topology(source: str = "smollm2-135m-instruct", **changes: Any) -> Topology:
    """Two pools with a model each, two tenants; `changes` replace whole sections."""
    sections: dict[str, Any] = {
        "version": 1,
        "models": {"m": {"source": source, "context": 512}, "big": {"source": source}},
        "pools": {
            "p": {"model": "m", "kv_tokens": 4096, "buckets": [64, 256]},
            "q": {"model": "big", "kv_tokens": 8192},
        },
        "routes": [{"name": "default", "pool": "p", "max_tokens": 64}],
        "tenants": {"acme": {"keys": [key_hash(KEY)]}, "other": {"keys": [key_hash(OTHER_KEY)]}},
    }
    return Topology.model_validate(sections | changes)


def context(
    bus: Bus, address: BusAddress, state: Path, plan: Topology, stage: str, suffix: str = "test"
) -> Context:
    """What `stages.runtime.stage.live` would hand to a service."""
    launch = Launch(
        stage=stage,
        instance=f"{stage}-0",
        incarnation=f"{stage}-0-{suffix}",
        bus=address,
        state=state,
        spawned_ms=0,
    )
    return Context(launch, bus, plan, generation=1)
