"""What this replica has at hand: the pools it owns, and what it hears about all of them."""

from collections import defaultdict

from nats.aio.msg import Msg

from contracts.frames import CREDIT_DECODER
from contracts.internal import Beat
from stages.queueing.clocks import Clocks
from stages.queueing.credit import Executors
from stages.queueing.deliveries import Deliveries
from stages.queueing.ledger import Entry
from stages.queueing.pool import PoolQueue
from stages.queueing.silence import Egresses


class Board:
    """Owned pools with their ack subjects; executors and egresses, heard by every replica, so that
    a standby knows who lives when it takes over."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self.pools: dict[str, PoolQueue] = {}
        self.deliveries: dict[str, Deliveries] = {}
        self.executors: defaultdict[str, Executors] = defaultdict(Executors)
        self.egresses = Egresses(clocks.now_s())
        self.arrivals = 0
        self.listens_s = clocks.lease_s()

    def next_arrival(self) -> int:
        """Requests come in one order, whatever their pool."""
        self.arrivals += 1
        return self.arrivals

    def put(self, pool: PoolQueue, deliveries: Deliveries) -> None:
        """We own it and know what is stored."""
        self.pools[pool.name] = pool
        self.deliveries[pool.name] = deliveries

    def drop(self, name: str) -> Deliveries | None:
        """We own it no more."""
        self.pools.pop(name, None)
        return self.deliveries.pop(name, None)

    def find(self, request_id: str) -> tuple[PoolQueue, Entry] | None:
        """An unfinished request of a pool that we own."""
        for pool in self.pools.values():
            entry = pool.ledger.get(request_id)
            if entry is not None:
                return pool, entry
        return None

    def remove(self, pool: PoolQueue, seq: int) -> None:
        """Take a stored request of this pool out of the stream."""
        if self.pools.get(pool.name) is pool:
            self.deliveries[pool.name].finish(seq)

    def on_credit(self, msg: Msg) -> PoolQueue | None:
        """An executor's word; the pool that has news, if it is ours."""
        credit = CREDIT_DECODER.decode(msg.data)
        now_s = self._clocks.now_s()
        pool = self.pools.get(credit.pool)
        if pool is None:
            self.executors[credit.pool].hear(credit, now_s)
            return None
        return pool if pool.hear(credit, now_s) else None

    def on_beat(self, msg: Msg) -> None:
        """An egress lives."""
        beat = Beat.model_validate_json(msg.data)
        takes = beat.ready and not beat.draining
        self.egresses.hear(beat.instance, beat.incarnation, self._clocks.now_s(), open_=takes)

    def pardon(self) -> None:
        """The bus was away, or we stood still: nobody could be heard."""
        now_s = self._clocks.now_s()
        self.egresses.pardon(now_s)
        for executors in self.executors.values():
            executors.pardon(now_s)
        for pool in self.pools.values():
            pool.pardon(now_s)
