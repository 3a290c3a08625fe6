"""Which pool serves a request, and why."""

from dataclasses import dataclass

from contracts.errors import ErrorCode, HeadraceError
from contracts.topology import Topology


@dataclass(frozen=True)
class Choice:
    """A pool and the reason, as the caller reads it."""

    pool: str
    reason: str


class PoolPolicy:
    """Model named by the caller first, else the route's pool."""

    def __init__(self, topology: Topology) -> None:
        self._route_pool = {
            topology.route_name(index): route.pool for index, route in enumerate(topology.routes)
        }
        self._serving: dict[str, list[str]] = {}
        for name, pool in topology.pools.items():
            self._serving.setdefault(pool.model, []).append(name)

    def choose(self, route: str, model: str, *, named: bool) -> Choice:
        """The pool for a request that matched `route`; `named`: the caller named the model.

        Raises not_found when nothing serves it, internal when ingress matched a route of another
        generation.
        """
        preferred = self._route_pool.get(route)
        if preferred is None:
            raise HeadraceError(
                ErrorCode.INTERNAL,
                f"route {route!r} is not in this topology; call again",
                retry_after_s=1.0,
            )
        if not named:
            return Choice(preferred, f"route {route}")
        serving = self._serving.get(model, [])
        if preferred in serving:
            return Choice(preferred, f"model named by the caller; its pool of route {route}")
        if serving:
            return Choice(serving[0], f"model named by the caller; route {route} serves another")
        raise HeadraceError(ErrorCode.NOT_FOUND, f"no pool serves model {model!r}", field="model")
