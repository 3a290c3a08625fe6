"""Which pool, and why."""

import pytest

from contracts.errors import ErrorCode, HeadraceError
from stages.routing.pools import PoolPolicy
from tests.support.stages import topology

plan = topology(
    pools={
        "p": {"model": "m"},
        "q": {"model": "big", "kv_tokens": 8192},
        "r": {"model": "m"},
    },
    routes=[{"name": "default", "pool": "r"}, {"pool": "q"}],
)
policy = PoolPolicy(plan)


@pytest.mark.parametrize(
    ("route", "model", "named", "pool", "reason"),
    [
        ("default", "m", False, "r", "route default"),
        ("route-1", "big", False, "q", "route route-1"),
        ("default", "m", True, "r", "model named by the caller; its pool of route default"),
        ("default", "big", True, "q", "model named by the caller; route default serves another"),
        ("route-1", "m", True, "p", "model named by the caller; route route-1 serves another"),
    ],
)
def test_the_named_model_before_the_route(
    route: str, model: str, named: bool, pool: str, reason: str
) -> None:
    choice = policy.choose(route, model, named=named)
    assert (choice.pool, choice.reason) == (pool, reason)


def test_what_nothing_serves() -> None:
    with pytest.raises(HeadraceError) as refused:
        policy.choose("default", "nothing", named=True)
    assert refused.value.info.code is ErrorCode.NOT_FOUND
    with pytest.raises(HeadraceError) as refused:
        policy.choose("of-another-generation", "m", named=False)
    assert refused.value.info.code is ErrorCode.INTERNAL
