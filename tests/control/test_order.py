"""Which processes run: their names, what is kept, started and given up."""

from typing import Any

import pytest

from contracts.lifecycle import Actuals
from contracts.topology import Topology
from stages.control.order import EXECUTOR, ProcessSpec, plan, reconcile, stop_phases
from tests.support.stages import topology


def of_pool(found: list[ProcessSpec], pool: str = "p") -> list[str]:
    return [one.instance for one in found if one.pool == pool]


def with_pool(**changes: Any) -> Topology:
    """The small topology with some options of pool `p` changed."""
    base = topology()
    pool = base.pools["p"].model_dump() | changes
    return Topology.model_validate(base.model_dump() | {"pools": {"p": pool}})


def two(**changes: Any) -> Topology:
    return with_pool(executors={"min": 2, "max": 4}, **changes)


def test_an_executor_starts_first_then_the_stages_then_the_rest() -> None:
    found = plan(two())
    assert [one.stage for one in found[:2]] == [EXECUTOR, "ingress"]
    assert found[-1].instance == "p-1"
    assert len({one.instance for one in found}) == len(found)


def test_the_wanted_number_of_executors_is_clamped_by_the_file() -> None:
    for wanted, made in ((0, 2), (3, 3), (9, 4)):
        assert len(of_pool(plan(two(), Actuals(executors={"p": wanted})))) == made


def test_what_fits_is_kept() -> None:
    running = plan(two())
    steps = reconcile(plan(two()), running)
    assert (steps.start, steps.surplus) == ([], [])
    assert steps.keep == steps.wanted == running


def test_more_executors_take_the_lowest_free_numbers() -> None:
    running = [one for one in plan(two()) if one.instance != "p-0"]
    steps = reconcile(plan(with_pool(executors={"min": 3, "max": 3})), running)
    assert of_pool(steps.start) == ["p-0", "p-2"]
    assert steps.surplus == []


def test_fewer_executors_give_up_the_highest_numbers() -> None:
    steps = reconcile(plan(with_pool()), plan(two()))
    assert of_pool(steps.surplus) == ["p-1"]
    assert steps.start == []


def test_a_replacement_lives_beside_the_one_it_replaces() -> None:
    steps = reconcile(plan(two(threads=1)), plan(two(threads=2)))
    assert of_pool(steps.start) == ["p-2", "p-3"]
    assert of_pool(steps.surplus) == ["p-0", "p-1"]
    assert {one.env["OMP_NUM_THREADS"] for one in steps.start} == {"1"}
    again = reconcile(plan(two(threads=2)), steps.wanted)
    assert of_pool(again.start) == ["p-0", "p-1"]


def test_executors_of_a_pool_that_is_gone_are_surplus() -> None:
    steps = reconcile(plan(with_pool()), plan(topology()))
    assert of_pool(steps.surplus, "q") == ["q-0"]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("price", {"accelerator_hour": 3.0}),
        ("buckets", [64]),
        ("queue", {"requests": 3}),
        ("executors", {"min": 1, "max": 9}),
    ],
)
def test_prices_and_bounds_make_no_executor_anew(option: str, value: object) -> None:
    assert reconcile(plan(with_pool(**{option: value})), plan(with_pool())).start == []


def test_a_stop_ends_whatever_runs_in_its_order() -> None:
    names = [name for phase, _ in stop_phases(plan(two())) for name in phase]
    assert sorted(names) == sorted(one.instance for one in plan(two()))
    assert names[0] == "ingress-0"
    assert names[-1] == "metering-0"
