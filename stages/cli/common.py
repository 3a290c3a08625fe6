"""What several commands share: options, exit codes, printing."""

import json
import shlex
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from stages.control.state import StateFolder

OK: Final = 0
FAILED: Final = 1
MISUSED: Final = 2
NOT_RUNNING: Final = 3
NO_DATA: Final = 3

StateOption = Annotated[
    Path, typer.Option("--state", metavar="DIR", help="Folder for state, logs and the usage file.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
STATE: Final = Path(".headrace")


def hint(command: str, folder: StateFolder) -> str:
    """A command to type next, with `--state` where it is needed."""
    elsewhere = folder.root != STATE.absolute()
    return f"`headrace {command}{f' --state {shlex.quote(str(folder.root))}' if elsewhere else ''}`"


def plural(number: int, noun: str) -> str:
    """`1 pool`, `2 pools`, `3 processes`."""
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{ending}"


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    typer.echo(json.dumps(value, indent=1, ensure_ascii=False))


def fail(message: str, as_json: bool, code: int = FAILED) -> typer.Exit:
    """Say what is wrong on stderr (and as JSON on stdout); raise what this returns."""
    typer.echo(message, err=True)
    if as_json:
        print_json({"error": message})
    return typer.Exit(code)


FileArgument = Annotated[
    Path | None, typer.Argument(metavar="[FILE]", help="The topology file; also --topology FILE.")
]
TopologyOption = Annotated[
    Path | None, typer.Option("--topology", metavar="FILE", help="The topology file.")
]
TOPOLOGY: Final = Path("topology.yaml")


def topology_file(argument: Path | None, option: Path | None, default: Path = TOPOLOGY) -> Path:
    """The file, whichever way it was named."""
    if argument is not None and option is not None and argument != option:
        raise typer.BadParameter(f"two files: {argument} and --topology {option}; name one")
    return argument or option or default
