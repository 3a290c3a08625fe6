"""Checks of topology.yaml that need more than one section."""

import pytest

from contracts.topology import KV_BLOCK, Topology


def problems(context: int, **pool: int) -> list[str]:
    """What is said of one pool of one model."""
    topology = Topology.model_validate(
        {
            "version": 1,
            "models": {"m": {"source": "m", "context": context}},
            "pools": {"p": {"model": "m", **pool}},
            "routes": [{"pool": "p"}],
            "tenants": {"demo": {"keys": ["sha256:" + "0" * 64]}},
        }
    )
    return [f"{'.'.join(map(str, each.path))}: {each.message}" for each in topology.problems()]


@pytest.mark.parametrize(
    ("kv_tokens", "context", "fits"),
    [(1024, 1000, True), (1023, 1000, False), (1000, 1000, False), (1000, 960, True)],
)
def test_only_whole_blocks_of_the_kv_cache_count(kv_tokens: int, context: int, fits: bool) -> None:
    found = problems(context, kv_tokens=kv_tokens)
    if fits:
        assert found == []
    else:
        [problem] = found
        assert problem.startswith("pools.p.kv_tokens: ")
        assert "(960 in whole blocks of 64)" in problem
        assert "write 1024 or more" in problem


def test_a_step_holds_one_tile_beside_all_slots() -> None:
    assert problems(512, slots=16, step_tokens=16 + KV_BLOCK) == []
    assert len(problems(512, slots=16, step_tokens=15 + KV_BLOCK)) == 1
