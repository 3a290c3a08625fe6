"""Who may command an executor: of each pool the queueing owner with the highest epoch heard."""


class Fence:
    """Highest epoch by pool. Epoch 0 is unfenced (whoever has no epoch: doors, tests)."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def known(self, pool: str) -> int:
        """The highest epoch heard of, 0 = none."""
        return self._known.get(pool, 0)

    def admits(self, pool: str, epoch: int) -> bool:
        """Whether an owner of that epoch still speaks for the pool; remembers a new one."""
        if epoch == 0:
            return True
        if epoch < self.known(pool):
            return False
        self._known[pool] = epoch
        return True
