"""The `headrace` command. Each subcommand is a module of this folder, imported when it is run."""

from importlib.metadata import version
from typing import Annotated, Final

import typer

from stages.cli.lazy import Entry, LazyGroup

COMMANDS: Final = {
    "up": Entry("stages.cli.up:up", "Start the pipeline of topology.yaml."),
    "down": Entry("stages.cli.down:down", "Stop it, cleanly and completely."),
    "status": Entry("stages.cli.status:status", "What runs, what waits, what is wrong first."),
    "move": Entry("stages.cli.move:move", "Move waiting requests to another pool."),
    "ask": Entry("stages.cli.ask:ask", "Ask a question and stream the answer."),
    "check": Entry("stages.cli.check:check", "Name every mistake of topology.yaml at once."),
    "plan": Entry("stages.cli.plan:plan", "What an edited topology.yaml would change, and drift."),
    "apply": Entry("stages.cli.apply:apply", "Make the edited topology.yaml run, without a stop."),
    "history": Entry("stages.cli.history:history", "The generations of the topology."),
    "rollback": Entry("stages.cli.rollback:rollback", "Go back to an earlier generation."),
    "sql": Entry("stages.cli.usage:sql", "Query the usage rows with SQL while the pipeline runs."),
    "costs": Entry("stages.cli.usage:costs", "What tenants, models and hours cost."),
    "keys": Entry("stages.cli.keys.command:app", "Make, list and revoke API keys of tenants."),
    "models": Entry("stages.cli.models:app", "Fetch, list and look at models."),
    "bench": Entry(
        "stages.cli.bench.command:bench", "Measure, with goals and how each was measured."
    ),
    "demo": Entry("stages.cli.demo:demo", "Start, ask, show journey and cost, stop."),
    "doctor": Entry("stages.cli.doctor:doctor", "What this machine has and what follows from it."),
    "docs": Entry("stages.cli.reference:docs", "Regenerate the reference pages.", hidden=True),
}


class _Commands(LazyGroup):
    entries = COMMANDS


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {version('headrace')}")
        raise typer.Exit


@app.callback()
def root(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """LLM inference as a dataflow: stages over NATS, native executors, exact metering in DuckDB."""


def main() -> None:
    """Entry point of the `headrace` command."""
    app(prog_name="headrace")
