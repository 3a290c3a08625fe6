"""Reading topology.yaml: every mistake in one go, each with its line and key."""

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from contracts.topology import Problem, Topology
from stages.runtime.topology_file.explain import explain
from stages.runtime.topology_file.finding import Finding
from stages.runtime.topology_file.repair import repair
from stages.runtime.topology_file.shadows import shadowed
from stages.runtime.topology_file.tree import MOST_BYTES, Tree, read_tree


@dataclass
class Report:
    """What was read. `topology` is None exactly when there is an error among the findings."""

    file: str
    text: str | None = None  # None when it could not be read
    topology: Topology | None = None
    findings: list[Finding] = field(default_factory=list)
    tree: Tree = field(default_factory=Tree)

    @property
    def errors(self) -> list[Finding]:
        """What must be mended before the file can run."""
        return [one for one in self.findings if one.level == "error"]

    def add(self, findings: list[Finding]) -> None:
        """Findings of further checks, kept in the order of the file."""
        self.findings = in_order([*self.findings, *findings])
        if self.errors:
            self.topology = None

    def lines(self) -> list[str]:
        """All findings for people."""
        return [one.text(self.file) for one in self.findings]


def load_topology(path: Path) -> Report:
    """Read and check a file. Never raises for what is in it or for its absence."""
    try:
        # Opening a pipe would wait for whoever writes to it, perhaps for ever.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                problem = "a pipe or a device; write the text to a file and name that"
                return Report(str(path), findings=[Finding((), None, problem)])
            raw = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        problem = "no such file; give another as FILE"
        return Report(str(path), findings=[Finding((), None, problem)])
    except OSError as error:
        return Report(str(path), findings=[Finding((), None, f"cannot be read: {error.strerror}")])
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        problem = f"byte 0x{raw[error.start]:02x} is not UTF-8; save the file as UTF-8"
        return Report(str(path), findings=[Finding((), line, problem)])
    return parse_topology(text, str(path))


def parse_topology(text: str, file: str) -> Report:
    """Check the text of a topology file; `file` is its name in messages."""
    tree = read_tree(text)
    report = Report(file, text, tree=tree, findings=list(tree.findings))
    if tree.data is None:
        if not report.findings:
            report.add([Finding((), None, "the file is empty", _sections())])
        return report
    if not isinstance(tree.data, dict):
        report.add([Finding((), 1, "the file is not a mapping of sections", _sections())])
        return report
    report.add(_schema_and_cross(report, tree))
    return report


def _schema_and_cross(report: Report, tree: Tree) -> list[Finding]:
    try:
        topology = Topology.model_validate(tree.data)
    except ValidationError as error:
        mended = repair(tree.data)
        cross = mended.problems() if mended else []
        return [*explain(error, tree), *_located(cross, tree)]
    report.topology = topology
    return [*_located(topology.problems(), tree), *shadowed(topology, tree)]


def _located(problems: list[Problem], tree: Tree) -> list[Finding]:
    return [Finding(one.path, tree.line(one.path), one.message) for one in problems]


def in_order(findings: list[Finding]) -> list[Finding]:
    """By line; what has no line comes first."""
    return sorted(findings, key=lambda one: (one.line or 0, one.key))


def _sections() -> str:
    return "the sections version, models, pools, routes and tenants (see docs/topology.md)"
