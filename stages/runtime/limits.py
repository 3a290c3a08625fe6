"""Time limits that two sides must agree on: a stage keeps them, control waits that long and ends it.

A stop of everything is the sum of the phases in stages/control/order.py: 30 s at most.
"""

from collections.abc import Mapping
from typing import Final

# Seconds from SIGTERM for `Service.drain`; what a stage waits for inside it must sum up to less.
DRAIN_S: Final[Mapping[str, float]] = {
    "ingress": 3.0,  # calls that came in are answered
    "routing": 3.0,
    "egress": 10.0,  # sessions finish beside their executors, then end with receipts
    "gpu_worker": 10.0,  # requests finish, then are cancelled and booked
    "queueing": 4.0,  # what has ended is crossed off
    "metering": 7.0,  # pending events are stored (4 s), then the last snapshot is copied
}
END_S: Final = 1.0  # after the drain: last handlers, flush, exit of the interpreter

READY_S: Final = 60.0  # from spawn to the first beat that says ready
LOAD_S: Final = 300.0  # an executor loads its model; it gives up by itself after this
EXECUTOR_READY_S: Final = LOAD_S + 30.0  # with the imports before the load
