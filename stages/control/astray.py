"""How what runs differs from what should run. Pure."""

from collections.abc import Callable

from contracts.internal import Beat
from contracts.lifecycle import Generation
from stages.control.order import Steps


def astray(steps: Steps, serves: Generation, beat: Callable[[str], Beat | None]) -> list[str]:
    """One line for each process that is missing, surplus, outdated or behind."""
    found = [f"{one.instance} is missing" for one in steps.start]
    made_otherwise = {(one.stage, one.pool) for one in steps.start}
    for one in steps.surplus:
        if one.pool is not None and one.pool not in serves.topology.pools:
            found.append(
                f"{one.instance} is surplus: its pool is gone, it stops once that is empty"
            )
        elif (one.stage, one.pool) in made_otherwise:
            found.append(f"{one.instance} is outdated: it was made for an earlier generation")
        else:
            found.append(f"{one.instance} is surplus")
    for one in steps.keep:
        last = beat(one.instance)
        if last is not None and last.ready and last.generation < serves.generation:
            found.append(f"{one.instance} still serves generation {last.generation}")
    return found
