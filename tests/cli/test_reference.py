"""The generated pages in docs/ are current."""

from pathlib import Path

from typer.testing import CliRunner

from stages.cli import app
from stages.cli.reference import pages

ROOT = Path(__file__).parents[2]


def test_the_pages_in_the_repository_are_current() -> None:
    stale = [
        name
        for name, text in pages(ROOT / "topology.yaml")
        if (ROOT / "docs" / name).read_text() != text
    ]
    assert stale == [], "run: make docs"


def test_docs_writes_once_and_then_finds_them_current(tmp_path: Path) -> None:
    (tmp_path / "topology.yaml").write_text("version: 1\n")
    folder = str(tmp_path / "docs")
    before = CliRunner().invoke(app, ["docs", "--folder", folder, "--check"])
    assert before.exit_code == 1
    assert CliRunner().invoke(app, ["docs", "--folder", folder]).exit_code == 0
    assert CliRunner().invoke(app, ["docs", "--folder", folder, "--check"]).exit_code == 0


def test_every_option_has_a_line_of_its_own() -> None:
    page = dict(pages(ROOT / "topology.yaml"))["topology.md"]
    for words in (
        "| `kv_tokens` | a whole number, at least 64 | `65536` | tokens |",
        "| `buckets` |",
        "`[512, 2048, 8192]`",
        "## `pools.NAME.price`",
        "## `routes[].match`",
        "| `grpc` | text | `127.0.0.1:7070` |",
    ):
        assert words in page
