"""Who owns a pool's queue: one replica's view of its record in HR_OWNER. Pure: the clock is passed in.

Only one replica may act at a time, whatever stands still or gets lost:

- every write is a compare-and-set, so two replicas never both become owner of one epoch;
- the owner may act for 0.6 s after it SENT its last successful write, by its own monotonic clock;
- a standby takes over what it has not SEEN changing for 1.0 s, by its own. It saw the last write after
  that was sent, so the owner has stopped 0.4 s before.
"""

from dataclasses import dataclass

from contracts.internal import OwnerRecord


@dataclass(frozen=True)
class Timing:
    """Seconds. `valid_s` must stay below `free_s`, whatever the clocks of two machines do."""

    renew_s: float = 0.25
    valid_s: float = 0.6
    free_s: float = 1.0
    calm_s: float = 2.0  # after a restart of the bus its owner comes first


class Standing:
    """Where this replica (`me`, an incarnation) stands with one pool; `epoch` 0 = standby."""

    def __init__(self, pool: str, me: str, timing: Timing) -> None:
        self.pool = pool
        self.epoch = 0
        self.revision = 0  # of the record as last seen; 0 = there is none
        self._me = me
        self._timing = timing
        self._record: OwnerRecord | None = None
        self._highest = 0  # epoch ever seen: it grows even if the bucket was lost
        self._changed_s: float | None = None
        self._sent_s = 0.0
        self._lapsed = 0  # epoch in which an act was refused: it is over, even if a renewal comes

    @property
    def owner(self) -> str:
        """Who owns it by the record last seen; empty = nobody."""
        return self._record.owner if self._record is not None else ""

    @property
    def seen_epoch(self) -> int:
        """Of that record, 0 = none."""
        return self._record.epoch if self._record is not None else 0

    def holds(self, epoch: int, now_s: float) -> bool:
        """Whether this replica may act as the owner of that epoch at this moment.

        Once it may not, it never may again in this epoch: what it left undone is known to nobody.
        """
        if epoch != self.epoch or epoch in (0, self._lapsed):
            return False
        if now_s - self._sent_s < self._timing.valid_s:
            return True
        self._lapsed = epoch
        return False

    def saw(self, record: OwnerRecord | None, revision: int, now_s: float) -> None:
        """The record as it is stored now."""
        if self._changed_s is None or revision != self.revision:
            self._changed_s = now_s
        self._take_over(record, revision)
        mine = record is not None and record.owner == self._me and record.epoch == self.epoch
        if not mine:
            self.epoch = 0

    def wants(self, now_s: float, connected_s: float) -> OwnerRecord | None:
        """What to write against `revision` now: a renewal, or a takeover; None = nothing.

        `connected_s`: how long the bus has been there (after a restart, otherwise infinite).
        """
        record = self._record
        if self.epoch and record is not None:
            return record.model_copy(update={"beat": record.beat + 1})
        if not self._is_free(now_s, connected_s):
            return None
        return OwnerRecord(
            pool=self.pool,
            owner=self._me,
            epoch=self._highest + 1,
            beat=1,
            ended=record.ended if record is not None else {},
        )

    def wrote(self, record: OwnerRecord, revision: int, sent_s: float) -> bool:
        """It is stored; `sent_s` is from BEFORE it was sent. True when this is a takeover."""
        taken = record.owner == self._me and record.epoch != self.epoch
        self._changed_s = sent_s
        self._sent_s = max(self._sent_s, sent_s)
        self._take_over(record, revision)
        self.epoch = record.epoch if record.owner == self._me else 0
        return taken

    def farewell(self) -> OwnerRecord | None:
        """What to write to give it up in order; this replica is a standby from now on."""
        record, held = self._record, self.epoch
        self.epoch = 0
        if not held or record is None:
            return None
        return record.model_copy(update={"owner": "", "beat": record.beat + 1})

    def drop(self) -> None:
        """Standby from now on."""
        self.epoch = 0

    def pardon(self, now_s: float) -> None:
        """The bus was away: no change could be seen."""
        if self._changed_s is not None:
            self._changed_s = now_s

    def _is_free(self, now_s: float, connected_s: float) -> bool:
        record = self._record
        if record is None or record.owner in ("", self._me):
            return self._changed_s is not None
        assert self._changed_s is not None
        still_s = now_s - self._changed_s
        return still_s >= self._timing.free_s and connected_s >= self._timing.calm_s

    def _take_over(self, record: OwnerRecord | None, revision: int) -> None:
        self._record, self.revision = record, revision
        if record is not None:
            self._highest = max(self._highest, record.epoch)
