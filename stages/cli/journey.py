"""The way of one request, as a table."""

from rich.table import Table

from contracts.client import Timings


def journey(timings: Timings) -> Table:
    """Milliseconds in each stage, then what the caller noticed."""
    table = Table("stage", "ms", show_edge=False)
    for stage, ms in timings.stages.items():
        table.add_row(stage, f"{ms:,.1f}")
    table.add_section()
    for name, value in (
        ("TTFT", timings.ttft_ms),
        ("TPOT", timings.tpot_ms),
        ("whole request", timings.e2e_ms),
    ):
        table.add_row(name, "" if value is None else f"{value:,.1f}")
    return table
