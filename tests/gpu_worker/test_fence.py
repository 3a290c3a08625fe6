"""Whoever owned a pool before has no say any more."""

from gpu_worker.fence import Fence


def test_a_lower_epoch_is_refused_for_its_pool_alone() -> None:
    fence = Fence()
    assert fence.admits("small", 3)
    assert fence.admits("small", 3)
    assert not fence.admits("small", 2)
    assert fence.admits("large", 1)
    assert fence.admits("small", 0), "unfenced"
    assert fence.admits("small", 4)
    assert not fence.admits("small", 3)
    assert (fence.known("small"), fence.known("large"), fence.known("none")) == (4, 1, 0)
