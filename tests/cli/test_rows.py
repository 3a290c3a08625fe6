"""How rows look on a terminal."""

from pathlib import Path

import pytest
from rich.console import Console

from stages.cli import rows
from tests.cli.test_usage import headrace, write_snapshot
from tests.metering.support import attempt, receipt


def test_a_table_too_wide_for_the_terminal_stands_upright(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_snapshot(tmp_path, [receipt(1), attempt(1), receipt(2), attempt(2)])
    words = ["sql", "FROM requests ORDER BY request_id", "--state", str(tmp_path)]
    assert "request_id: r1" not in headrace(*words).stdout, "into a pipe it stays a table"
    monkeypatch.setattr(rows, "console", lambda: Console(width=80))
    lines = headrace(*words, "--max-rows", "2").stdout.splitlines()
    assert [line for line in lines if line.startswith("-- row")] == ["-- row 1", "-- row 2"]
    assert "request_id: r1" in lines
    assert "request_id: r2" in lines
    assert max(map(len, lines)) <= 80
    narrow = headrace("sql", "SELECT 1 AS a", "--state", str(tmp_path)).stdout
    assert "a: 1" not in narrow, "what fits stays a table"
    assert "a" in narrow
