"""The command itself: help, exit codes, what is imported."""

import json
import subprocess
import sys
from itertools import pairwise

import pytest
from typer.testing import CliRunner

from stages.cli import COMMANDS, app

HEAVY = ("torch", "numpy", "duckdb", "polars", "transformers", "grpc")


@pytest.mark.parametrize("name", [name for name, entry in COMMANDS.items() if entry.there])
def test_every_command_has_help_that_says_more_than_its_name(name: str) -> None:
    done = CliRunner().invoke(app, [name, "--help"])
    assert done.exit_code == 0, done.output
    assert len(done.output.split()) > 20


@pytest.mark.parametrize("columns", ["80", "120"])
@pytest.mark.parametrize("name", [name for name, entry in COMMANDS.items() if entry.there])
def test_help_is_folded_at_the_terminals_edge_only(name: str, columns: str) -> None:
    done = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": columns})
    lines = done.output.splitlines()
    assert max(map(len, lines)) <= int(columns)
    said = lines[: next(at for at, line in enumerate(lines) if line.startswith("╭"))]
    for line, after in pairwise(said):
        first = after.split()[0] if after.strip() else ""
        assert (
            not first or not line.strip() or len(line.rstrip()) + 1 + len(first) >= int(columns) - 1
        ), f"{line!r} ends before the edge: {first!r} would have fitted"
    assert name not in ("keys", "models") or "--install-completion" not in done.output


def test_help_lists_every_command_with_its_line() -> None:
    done = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "120"})
    assert done.exit_code == 0
    for name, entry in COMMANDS.items():
        if entry.there and not entry.hidden:
            assert name in done.output
            assert entry.help[:40] in done.output
    assert "Regenerate" not in done.output, "hidden commands are not listed"


def test_the_version_is_printed() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert done.exit_code == 0
    assert done.output.startswith("headrace ")


def test_an_unknown_command_exits_2() -> None:
    done = CliRunner().invoke(app, ["chekc"])
    assert done.exit_code == 2
    assert "chekc" in done.output


@pytest.mark.parametrize(
    "words", [["--help"], ["check", "--help"], ["up", "--help"], ["status", "--help"], ["doctor"]]
)
def test_light_commands_import_nothing_heavy(words: list[str]) -> None:
    code = (
        "import json, sys; sys.argv[0] = 'headrace'\n"
        "from stages.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_doctor_looks_at_everything_and_says_what_follows() -> None:
    done = CliRunner().invoke(app, ["doctor", "--json"])
    report = json.loads(done.stdout)
    assert done.exit_code == 0, done.output
    assert report["ok"] is True
    assert {row["what"] for row in report["rows"]} >= {
        *("python", "torch", "nats-server", "cores", "memory", "disk", "GPU", "compiler", "models"),
        *("port 4222", "port 7070", "port 8080"),
    }
    assert all(row["means"] for row in report["rows"])
