"""`headrace` whose `up` starts dummy stages: `python -m tests.support.dummy_headrace up …`."""

from stages.cli import main, up

up.CONTROL = "tests.support.dummy_control"
main()
