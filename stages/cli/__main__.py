"""`python -m stages.cli` is `headrace`."""

from stages.cli import main

main()
