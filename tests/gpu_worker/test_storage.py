"""Where the KV pool lies."""

from gpu_worker.cache.storage import HUGE_PAGE, KVStorage
from stages.runtime.models.spec import ModelSpec


def test_the_pool_begins_with_a_huge_page_and_holds_zeros(tiny: ModelSpec) -> None:
    storage = KVStorage(tiny.config, blocks=5, block_size=8)
    first, last = storage.layers[0], storage.layers[-1]
    assert first.keys.data_ptr() % HUGE_PAGE == 0
    assert first.keys.shape == (5, tiny.config.kv_heads, 8, tiny.config.head_dim)
    assert not any(t.any() for t in (first.keys, first.values, last.keys, last.values))
