"""Who is served next: priority, then length bucket (shorter first), then arrival."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence

from contracts.client import Priority

Key = tuple[int, int, int, str]  # priority rank, bucket, arrival, request


class Order:
    """The waiting requests of one pool, always sorted.

    A sorted list: finding a place takes O(log n) comparisons, putting in and taking out also moves
    pointers (100,000 waiting requests: 30 µs).
    """

    def __init__(self, buckets: Sequence[int]) -> None:
        """`buckets`: rising upper bounds, in tokens; what is longer than all shares a last bucket."""
        self._buckets = list(buckets)
        self._keys: list[Key] = []
        self._key_of: dict[str, Key] = {}

    def add(self, request_id: str, priority: Priority, tokens: int, arrival: int) -> None:
        """Put a request in its place. `arrival` stays the same when it comes back."""
        assert request_id not in self._key_of
        key = (priority.rank, bisect_left(self._buckets, tokens), arrival, request_id)
        self._key_of[request_id] = key
        insort(self._keys, key)

    def rebucket(self, buckets: Sequence[int], tokens: Callable[[str], int]) -> None:
        """Other buckets: everybody's place is found again. `tokens` of a request."""
        self._buckets = list(buckets)
        self._key_of = {
            name: (rank, bisect_left(self._buckets, tokens(name)), arrival, name)
            for rank, _, arrival, name in self._keys
        }
        self._keys = sorted(self._key_of.values())

    def remove(self, request_id: str) -> bool:
        """Take a request out wherever it stands; False if it was not waiting."""
        key = self._key_of.pop(request_id, None)
        if key is None:
            return False
        del self._keys[bisect_left(self._keys, key)]
        return True

    def head(self) -> str | None:
        """Who is served next."""
        return self._keys[0][3] if self._keys else None

    def position(self, request_id: str) -> int:
        """How many are served before this one. Raises KeyError when it is not waiting."""
        return bisect_left(self._keys, self._key_of[request_id])

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return (key[3] for key in self._keys)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._key_of
