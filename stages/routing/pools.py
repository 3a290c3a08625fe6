"""Which pool serves a request, and why."""

from dataclasses import dataclass

from contracts.errors import ErrorCode, HeadraceError
from contracts.internal import Work
from contracts.topology import Topology


@dataclass(frozen=True)
class Choice:
    """A pool and the reason, as the caller reads it."""

    pool: str
    reason: str


class PoolPolicy:
    """Model named by the caller first, else the route's pool.

    A request comes from ingress with a route and a pool of the topology that it was checked by. While
    a change is taken over that may be one generation before ours or after ours.
    """

    def __init__(self, topology: Topology, generation: int) -> None:
        self._generation = generation
        self._route_pool = {
            topology.route_name(index): route.pool for index, route in enumerate(topology.routes)
        }
        self._serving: dict[str, list[str]] = {}
        for name, pool in topology.pools.items():
            self._serving.setdefault(pool.model, []).append(name)

    def choose(self, work: Work) -> Choice:
        """A pool that serves the request's model; not_found when no pool does."""
        serving = self._serving.get(work.model, [])
        preferred = self._route_pool.get(work.route)
        named = "model named by the caller; " if work.model_named else ""
        if preferred is not None and preferred in serving:
            its = "its pool of " if named else ""
            return Choice(preferred, f"{named}{its}route {work.route}")
        ahead = (
            work.generation > self._generation
        )  # its pool may be one that we have not heard of yet
        if work.generation != self._generation and work.pool and (ahead or work.pool in serving):
            return Choice(work.pool, f"{named}route {work.route} of generation {work.generation}")
        if serving:
            return Choice(serving[0], f"{named}route {work.route} serves another")
        raise HeadraceError(
            ErrorCode.NOT_FOUND, f"no pool serves model {work.model!r}", field="model"
        )
