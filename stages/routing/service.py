"""Wiring of routing: decide, write the decision into the request, pass it and its asker on."""

from collections import Counter

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from contracts import subjects
from contracts.errors import HeadraceError
from contracts.internal import Work
from contracts.topology import Topology
from stages.routing.pools import PoolPolicy
from stages.runtime.clock import now_ms
from stages.runtime.stage import Context


class RoutingService:
    """Stateless: a restart loses nothing but questions under way, which ingress asks to forget."""

    def __init__(self, context: Context) -> None:
        self._bus = context.bus
        self._policy = PoolPolicy(context.topology, context.generation)
        self._routed: Counter[str] = Counter()
        self._refused = 0
        self._calls: Subscription | None = None

    async def start(self) -> None:
        """Subscribe."""
        self._calls = await self._bus.serve(subjects.ROUTE, Work, self._route, queue="routing")

    async def prepare(self, topology: Topology) -> None:
        """Nothing to load."""

    async def reconfigure(self, topology: Topology, generation: int) -> None:
        """Decide by it from now on."""
        self._policy = PoolPolicy(topology, generation)

    async def drain(self) -> None:
        """Decide what has arrived, take nothing more."""
        if self._calls is not None:
            await self._calls.drain()  # type: ignore[no-untyped-call]  # nats-py's is unannotated
        await self._bus.settle(2.5)  # of limits.DRAIN_S

    def counters(self) -> dict[str, float]:
        """Requests passed on, and refused."""
        return {"routed": self._routed.total(), "refused": self._refused}

    def detail(self) -> dict[str, str]:
        """Requests by pool."""
        return {pool: f"{count} routed" for pool, count in self._routed.items()}

    async def _route(self, work: Work, msg: Msg) -> None:
        """Queueing answers the asker directly."""
        try:
            choice = self._policy.choose(work)
        except HeadraceError:
            self._refused += 1
            raise
        routed = work.model_copy(
            update={
                "pool": choice.pool,
                "reason": choice.reason,
                "stamps": work.stamps.model_copy(update={"routing": now_ms()}),
            }
        )
        await self._bus.publish(subjects.admit(choice.pool), routed, reply=msg.reply)
        self._routed[choice.pool] += 1
