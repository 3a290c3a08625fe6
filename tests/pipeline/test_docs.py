"""What the README and the guides show works as it is printed there (but for the ports)."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from contracts.errors import ERROR_TABLE
from stages.cli.rig import Rig

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/quickstart.md", "docs/api.md", "docs/openai.md")
RUNNABLE = ("ask", "status", "sql", "costs", "models list")
BLOCK = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)


def blocks(language: str) -> list[tuple[str, str]]:
    """(page, text) of every fenced block in a language."""
    found = []
    for page in PAGES:
        text = (ROOT / page).read_text()
        found += [(page, body) for kind, body in BLOCK.findall(text) if kind == language]
    return found


def commands() -> list[str]:
    """Every `headrace` line that a running pipeline can answer."""
    lines = [line.strip() for _, body in blocks("") for line in body.splitlines()]
    return sorted({line for line in lines if line.startswith(tuple(
        f"headrace {word}" for word in RUNNABLE))})  # fmt: skip


def here(text: str, rig: Rig) -> str:
    """The documented ports replaced by this pipeline's."""
    http = rig.http_url.removeprefix("http://").removesuffix("/v1")
    ports = {
        "127.0.0.1:4222": rig.nats_url.removeprefix("nats://"),
        "127.0.0.1:7070": rig.grpc_address,
        "127.0.0.1:8080": http,
    }
    for documented, ours in ports.items():
        text = text.replace(documented, ours)
    return text


@pytest.mark.parametrize(("page", "code"), blocks("python"))
def test_python_examples_run(rig: Rig, page: str, code: str) -> None:
    rig.headrace("sql", "SELECT 1")  # publishes a snapshot
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", here(code, rig)],
        cwd=rig.folder, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{page}:\n{code}\n{done.stderr}"
    assert done.stdout.strip(), f"{page}: an example that shows nothing"


@pytest.mark.parametrize("line", commands())
def test_commands_run(rig: Rig, line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    if words[0] == "ask":
        words += ["--address", rig.grpc_address, "--url", rig.nats_url]
    done = subprocess.run(
        [sys.executable, "-m", "stages.cli", *words],
        cwd=rig.folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{line}:\n{done.stderr}"
    assert done.stdout.strip(), line


def test_there_are_examples_for_every_door() -> None:
    text = "".join(code for _, code in blocks("python"))
    assert all(word in text for word in ("HeadraceStub", "nats.connect", "duckdb.connect"))
    assert len(commands()) >= 8


def test_the_error_table_of_the_docs_is_the_real_one() -> None:
    text = (ROOT / "docs/api.md").read_text()
    for code, row in ERROR_TABLE.items():
        assert f"| `{code.value}` | {row.http} | {row.grpc} |" in text
