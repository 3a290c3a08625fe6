"""The `headrace bench` command."""

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Final

import typer
from rich.console import Console

from stages.cli.bench.figures import Results
from stages.cli.bench.pipeline import suite as pipeline


class Suite(StrEnum):
    """What can be measured."""

    PIPELINE = "pipeline"


SUITES: Final[dict[Suite, Callable[[], Results]]] = {Suite.PIPELINE: pipeline.run}


def bench(
    suite: Annotated[Suite, typer.Argument(help="what to measure")],
    json: Annotated[bool, typer.Option("--json", help="one flat JSON object on stdout")] = False,
) -> None:
    """Measure a suite on a private pipeline (free ports, temporary folder) and clean up.

    Without --json a table says how each figure was measured, what its goal is and whether it is
    met. Exit code 1 when a goal is missed.
    """
    results = SUITES[suite]()
    if json:
        typer.echo(results.to_json())
    else:
        results.print_table(Console())
    raise typer.Exit(0 if results.all_met else 1)
