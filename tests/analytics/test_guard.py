"""Limits that hold where DuckDB's own do not, each in a process of its own."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import duckdb
from analytics import guard
from analytics.reader import QueryError, answer
guard.PATIENCE_S = 0.3
connection = duckdb.connect(config={"threads": "1", "memory_limit": "1GB"})
sql, time_limit_s, address_bytes = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
try:
    with guard.bounded(time_limit_s, address_bytes):
        print(answer(connection, sql, 5, time_limit_s).rows)
except QueryError as error:
    sys.exit(f"QueryError: {error}")
"""


def run(sql: str, time_limit_s: float, address_bytes: int) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", PROGRAM, sql, str(time_limit_s), str(address_bytes)]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces RLIMIT_AS")
def test_strings_do_not_escape_the_memory_limit() -> None:
    done = run("SELECT length(repeat('x', 1200000000))", 60, 600_000_000)
    assert done.returncode == 1
    assert done.stderr.startswith("QueryError: the query needs more memory")
    assert len(done.stderr.splitlines()) == 1


def test_a_function_that_sees_no_interruption_ends_with_the_process() -> None:
    # a constant, which the planner works out: some 10 s in which nothing looks for interruptions
    endless = "SELECT length(regexp_replace(repeat('a', 100000000), 'a', 'b', 'g'))"
    done = run(endless, 0.3, 2_500_000_000)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "headrace: stopped after 0.3 s; narrow the query\n"


def test_a_query_within_the_limits_is_answered() -> None:
    assert run("SELECT 1", 60, 600_000_000).stdout == "[(1,)]\n"
