"""Refusals in the log: each kind at once, a repetition at most every ten seconds. Pure."""

from collections.abc import Iterator
from typing import Final

AGAIN_S: Final = 10.0
MOST_KINDS: Final = 1024  # clients choose where they come from


class Refusals:
    """A client whose key is no more may try again for ever, a few times a second."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[float, int]] = {}  # kind → when last told, how many since

    def lines(self, why: str, now_s: float) -> Iterator[str]:
        """What to log of one more refusal."""
        told_s, since = self._said.get(why, (-AGAIN_S, 0))
        if now_s - told_s < AGAIN_S:
            self._said[why] = (told_s, since + 1)
            return
        if len(self._said) >= MOST_KINDS:
            self._said.clear()
        self._said[why] = (now_s, 0)
        yield f"{why} ({since} more like this before)" if since else why
