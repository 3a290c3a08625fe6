"""Topology files on free ports, for tests that start processes."""

import json
import socket
from pathlib import Path

KEY = "headrace-demo-key"
KEY_HASH = "sha256:8a6372a1a33e8bab9d2d841147579f0a80de6ff6a3f367bc55c45271a0dee454"


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write_topology(folder: Path, source: str = "smollm2-135m-instruct") -> Path:
    """One pool `small`, one tenant `demo`, everything on free ports."""
    path = folder / "topology.yaml"
    document = {
        "version": 1,
        "bus": {"port": free_port(), "store_bytes": 1 << 26},
        "models": {"smollm": {"source": source, "context": 2048}},
        "pools": {"small": {"model": "smollm", "kv_tokens": 4096, "threads": 1}},
        "routes": [{"pool": "small"}],
        "tenants": {"demo": {"keys": [KEY_HASH]}},
        "stages": {
            "egress": {"grpc": f"127.0.0.1:{free_port()}", "http": f"127.0.0.1:{free_port()}"}
        },
    }
    path.write_text(json.dumps(document, indent=1))  # JSON is YAML
    return path
