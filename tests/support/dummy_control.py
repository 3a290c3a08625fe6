"""Control over dummy stages, as a process: `python -m tests.support.dummy_control` with its options."""

import sys
from dataclasses import replace

from contracts.lifecycle import Actuals
from contracts.topology import Topology
from stages.control.__main__ import run
from stages.control.order import ProcessSpec, plan


def dummies(topology: Topology, actuals: Actuals | None = None) -> list[ProcessSpec]:
    """The plan of a topology with every module replaced."""
    return [replace(spec, module="tests.support.dummy_stage") for spec in plan(topology, actuals)]


if __name__ == "__main__":
    sys.exit(run(dummies, "tests.support.dummy_control"))
