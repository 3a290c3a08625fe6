"""Stop strings, found while the text is still growing."""

from collections.abc import Sequence


class StopMatcher:
    """Passes text on and holds back only what may still become a stop string.

    The stop string that is complete first wins; of those complete at the same character, the
    longest. The result does not depend on how the text is cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""

    @property
    def active(self) -> bool:
        """Whether there is anything to look for."""
        return bool(self._stops)

    def push(self, text: str) -> tuple[str, bool]:
        """Text that is certain now, and whether a stop string was completed (then it ends there)."""
        text = self._held + text
        # A stop string is complete in `text` at its first occurrence: earlier text held none, and
        # one that began there began in what was held back.
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self._held = ""
            return text[: min(found)[1]], True
        cut = self._certain(text)
        self._held = text[cut:]
        return text[:cut], False

    def flush(self) -> str:
        """What was held back, once it is clear that no more text comes."""
        held, self._held = self._held, ""
        return held

    def _certain(self, text: str) -> int:
        """Length of `text` without its longest suffix that begins a stop string."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            suffix = text[start:]
            if any(stop.startswith(suffix) for stop in self._stops):
                return start
        return len(text)
