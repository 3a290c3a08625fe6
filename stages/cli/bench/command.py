"""The `headrace bench` command."""

import time
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Final

import typer
from rich.console import Console

from stages.cli.bench.figures import Results
from stages.cli.bench.http import suite as http
from stages.cli.bench.lifecycle import suite as lifecycle
from stages.cli.bench.pipeline import suite as pipeline


class Suite(StrEnum):
    """What can be measured."""

    PIPELINE = "pipeline"
    HTTP = "http"
    LIFECYCLE = "lifecycle"


SUITES: Final[dict[Suite, Callable[[Callable[[str], None]], Results]]] = {
    Suite.PIPELINE: pipeline.run,
    Suite.HTTP: http.run,
    Suite.LIFECYCLE: lifecycle.run,
}


def bench(
    suite: Annotated[Suite, typer.Argument(help="What to measure.")],
    json: Annotated[bool, typer.Option("--json", help="Print one flat JSON object.")] = False,
) -> None:
    """Measure a suite on a private pipeline (free ports, temporary folder) and clean up.

    `pipeline` takes about five minutes, `http` two, `lifecycle` (everything is killed and
    changed once under load) ten; they want an otherwise idle machine. Progress goes to stderr. Without --json a table says how each figure was measured, what its goal is and whether
    it is met. Exit codes: 0 all goals met, 1 a goal missed, 130 interrupted.
    """
    begin = time.perf_counter()

    def say(what: str) -> None:
        typer.echo(f"{time.perf_counter() - begin:6.1f} s  {what}", err=True)

    try:
        results = SUITES[suite](say)
    except KeyboardInterrupt:
        say("interrupted; everything that was started is stopped")
        raise typer.Exit(130) from None
    if json:
        typer.echo(results.to_json())
    else:
        results.print_table(Console())
    raise typer.Exit(0 if results.all_met else 1)
