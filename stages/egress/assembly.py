"""Token items of several attempts, put together into one run of tokens without gap or repeat."""

from typing import Literal

from contracts.frames import TokenItem


class Assembly:
    """Takes only the highest attempt it has seen, drops repeats by offset, parks what is ahead."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.attempt = 0
        self.late_items = 0
        self.fingerprints: dict[int, str] = {}  # of the executors of attempts that delivered
        self._parked: list[TokenItem] = []

    @property
    def gap(self) -> bool:
        """Whether tokens are missing before some that have come."""
        return bool(self._parked)

    @property
    def resumed(self) -> Literal["exact", "inexact"] | None:
        """Whether more than one attempt delivered, and all on executors that compute alike."""
        if len(self.fingerprints) < 2:
            return None
        known = set(self.fingerprints.values())
        return "exact" if len(known) == 1 and "" not in known else "inexact"

    @property
    def fingerprint(self) -> str | None:
        """Of all executors that delivered; None when they differ, or when none has told it."""
        known = set(self.fingerprints.values())
        return (known.pop() or None) if len(known) == 1 else None

    def restore(self, ids: list[int], attempt: int, fingerprints: dict[int, str]) -> bool:
        """Go on from what another egress had, unless more has come by itself."""
        self.fingerprints = fingerprints | self.fingerprints
        if attempt < self.attempt or len(ids) <= len(self.ids):
            return False
        self.ids, self.attempt = list(ids), attempt
        return True

    def take(self, item: TokenItem) -> list[TokenItem]:
        """The items that can be used now, in order; their new tokens are already in `ids`."""
        if item.attempt < self.attempt:
            self.late_items += 1
            return []
        if item.attempt > self.attempt:
            # The new attempt goes on from what we reported, or repeats it: nothing parked is needed.
            self.attempt = item.attempt
            self._parked.clear()
        if item.offset > len(self.ids):
            self._parked.append(item)
            self._parked.sort(key=lambda parked: parked.offset)
            return []
        usable = [item]
        self._append(item)
        while self._parked and self._parked[0].offset <= len(self.ids):
            usable.append(self._parked.pop(0))
            self._append(usable[-1])
        return usable

    def _append(self, item: TokenItem) -> None:
        new = item.ids[len(self.ids) - item.offset :]
        self.ids += new
        if item.fingerprint or (new and item.attempt not in self.fingerprints):
            self.fingerprints[item.attempt] = item.fingerprint
