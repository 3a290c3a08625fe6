"""The leases an executor holds, and the credit that is left. Pure bookkeeping, no bus, no torch."""

from dataclasses import dataclass, field

from contracts.internal import Lease


@dataclass
class Held:
    """One leased request. Times are unix ms; tokens and microseconds are of this attempt."""

    lease: Lease
    kv_tokens: int  # reserved, whole blocks
    egress: str = field(init=False)  # where its frames go
    ids: list[int] = field(init=False)  # output so far, that of earlier attempts first
    introduced: bool = False  # the egress was sent the fingerprint
    started_ms: float = 0.0
    prefill_us: int = 0
    busy_us: int = 0
    sampled: int = 0
    computed: int = 0
    cached: int = 0
    cancelled: bool = False  # nobody waits for it any more: no frames
    moving: bool = False  # this executor ends: stopped, to go on elsewhere
    settled_us: int = 0  # of busy_us, at prices that no longer hold
    settled: float = 0.0  # their sum: microseconds times price of an hour

    def __post_init__(self) -> None:
        self.egress = self.lease.work.egress
        self.ids = list(self.lease.resume_ids)

    def settle(self, hourly: float) -> None:
        """The price changes: what was used so far costs `hourly`."""
        self.settled += (self.busy_us - self.settled_us) * hourly
        self.settled_us = self.busy_us

    def hourly(self, now: float) -> float:
        """Price of an hour over all of `busy_us`, where one costs `now` at present."""
        if not self.settled_us:
            return now
        return (self.settled + (self.busy_us - self.settled_us) * now) / self.busy_us

    @property
    def engine_id(self) -> str:
        """Unique per attempt, so that a newer attempt can start while the older one is ending."""
        return engine_id(self.lease.work.request_id, self.lease.attempt)


def engine_id(request_id: str, attempt: int) -> str:
    """The id under which the engine knows an attempt."""
    return f"{request_id}:{attempt}"


class Roster:
    """Which attempts run here. Credit is what slots and KV blocks are not reserved."""

    def __init__(self, slots: int, kv_tokens: int, block_size: int) -> None:
        self._slots = slots
        self._kv_tokens = kv_tokens // block_size * block_size
        self._block = block_size
        self._held: dict[str, Held] = {}  # by engine id

    def take(self, lease: Lease) -> Held | None:
        """Hold a lease; None when there is no room or this or a later attempt is already here."""
        work = lease.work
        need = -(-work.tokens // self._block) * self._block
        same = self.attempts_of(work.request_id)
        if any(held.lease.attempt >= lease.attempt for held in same):
            return None
        if self.free_slots < 1 or need > self.free_kv_tokens:
            return None
        held = Held(lease, need)
        self._held[held.engine_id] = held
        return held

    def get(self, engine_id: str) -> Held | None:
        """The attempt with this engine id."""
        return self._held.get(engine_id)

    def all(self) -> list[Held]:
        """Everything here."""
        return list(self._held.values())

    def attempts_of(self, request_id: str) -> list[Held]:
        """All attempts of a request that have not ended here."""
        return [h for h in self._held.values() if h.lease.work.request_id == request_id]

    def release(self, engine_id: str) -> Held | None:
        """The attempt has ended: its room is free."""
        return self._held.pop(engine_id, None)

    @property
    def free_slots(self) -> int:
        """Requests that may still be taken."""
        return self._slots - len(self._held)

    @property
    def free_kv_tokens(self) -> int:
        """KV tokens that are not reserved."""
        return self._kv_tokens - sum(held.kv_tokens for held in self._held.values())

    @property
    def running(self) -> list[tuple[str, int]]:
        """(request, attempt) of everything here that nobody has cancelled."""
        return [
            (held.lease.work.request_id, held.lease.attempt)
            for held in self._held.values()
            if not held.cancelled
        ]

    def __len__(self) -> int:
        return len(self._held)
