"""Which pool, and why."""

import pytest

from contracts.errors import ErrorCode, HeadraceError
from contracts.internal import Work
from stages.routing.pools import PoolPolicy
from tests.queueing.support import make_work
from tests.support.stages import topology

plan = topology(
    pools={
        "p": {"model": "m"},
        "q": {"model": "big", "kv_tokens": 8192},
        "r": {"model": "m"},
    },
    routes=[{"name": "default", "pool": "r"}, {"pool": "q"}],
)
policy = PoolPolicy(plan, 5)


def work(
    route: str, model: str, *, named: bool, pool: str | None = None, generation: int = 5
) -> Work:
    return make_work(
        route=route, model=model, model_named=named, pool=pool, generation=generation, reason=None
    )


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
    choice = policy.choose(work(route, model, named=named))
    assert (choice.pool, choice.reason) == (pool, reason)


def test_what_nothing_serves() -> None:
    with pytest.raises(HeadraceError) as refused:
        policy.choose(work("default", "nothing", named=True))
    assert refused.value.info.code is ErrorCode.NOT_FOUND


@pytest.mark.parametrize(
    ("route", "model", "pool", "generation", "chosen", "reason"),
    [
        # Ingress is ahead: its route, its pool, and the model they serve may all be new.
        ("new", "m", "r", 6, "r", "route new of generation 6"),
        ("new", "m", "s", 6, "s", "route new of generation 6"),
        ("new", "unheard-of", "s", 6, "s", "route new of generation 6"),
        # Ingress is behind: its pool counts where it still serves the model.
        ("old", "m", "r", 4, "r", "route old of generation 4"),
        ("old", "m", "gone", 4, "p", "route old serves another"),
        # The route leads to another model now: the prompt is made of the old one's tokens.
        ("route-1", "m", "r", 4, "r", "route route-1 of generation 4"),
        # A route that both know.
        ("default", "m", "p", 4, "r", "route default"),
    ],
)
def test_a_request_of_another_generation_never_fails_for_that(
    route: str, model: str, pool: str, generation: int, chosen: str, reason: str
) -> None:
    choice = policy.choose(work(route, model, named=False, pool=pool, generation=generation))
    assert (choice.pool, choice.reason) == (chosen, reason)
