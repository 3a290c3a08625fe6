"""Which API keys count: those of the topology whose time is not over."""

import math
from collections.abc import Callable

from contracts.topology import Topology


class Keys:
    """The keys of one generation. `now_ms` is the wall clock."""

    def __init__(self, topology: Topology, now_ms: Callable[[], float]) -> None:
        self._now_ms = now_ms
        self._ends_ms = {
            (name, key.id): math.inf if key.expires_ms is None else key.expires_ms
            for name, tenant in topology.tenants.items()
            for key in tenant.api_keys()
        }

    def valid(self, tenant: str, key_id: str) -> bool:
        """Whether this key of the tenant counts now."""
        return self._now_ms() < self._ends_ms.get((tenant, key_id), -math.inf)
