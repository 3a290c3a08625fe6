"""Figures of a bench suite: what each means, its goal, and how they are shown."""

import json
import operator
import os
import platform
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from rich.console import Console
from rich.table import Table

_MET: Final[dict[str, Callable[[float, float], bool]]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
}


@dataclass(frozen=True)
class Goal:
    """What a figure must hold."""

    sign: Literal["<=", ">=", "=="]
    bound: float

    def met(self, value: float) -> bool:
        """Whether `value` holds it; NaN never does."""
        return _MET[self.sign](value, self.bound)

    def __str__(self) -> str:
        return f"{self.sign} {self.bound:g}"


@dataclass(frozen=True)
class FigureSpec:
    """One figure: its full name (`suite.name`), unit, goal, and how it is measured."""

    name: str
    unit: str
    how: str
    goal: Goal | None = None


@dataclass(frozen=True)
class Results:
    """Measured values by figure name, with the circumstances."""

    specs: tuple[FigureSpec, ...]
    values: Mapping[str, float]
    circumstances: Mapping[str, str]

    @property
    def all_met(self) -> bool:
        """Whether every goal is met."""
        return all(
            spec.goal is None or spec.goal.met(self.values[spec.name]) for spec in self.specs
        )

    def to_json(self) -> str:
        """One flat object: figures, then machine, model and commit."""
        return json.dumps({**self.values, **self.circumstances})

    def print_table(self, console: Console) -> None:
        """A table that says how each was measured and whether the goal is met."""
        table = Table(title=" · ".join(self.circumstances.values()), title_justify="left")
        for heading in ("figure", "value", "goal", "met", "how"):
            table.add_column(heading, overflow="fold", ratio=3 if heading == "how" else None)
        for spec in self.specs:
            value = self.values[spec.name]
            met = "" if spec.goal is None else ("yes" if spec.goal.met(value) else "NO")
            goal = "" if spec.goal is None else str(spec.goal)
            table.add_row(spec.name, f"{value:.4g} {spec.unit}".strip(), goal, met, spec.how)
        console.print(table)


def circumstances(model: str) -> dict[str, str]:
    """The machine, model and commit that a run belongs to."""
    return {"machine": _machine(), "model": model, "commit": _commit()}


def _machine() -> str:
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].partition(":")[2].strip() if names else cpu
    return f"{cpu}, {os.cpu_count()} cores, {platform.system()} {platform.release()}"


def _commit() -> str:
    root = Path(__file__).resolve().parents[3]
    for words in (["rev-parse", "--short", "HEAD"],):
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            return done.stdout.strip()
    return "unknown"
