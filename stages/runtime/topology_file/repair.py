"""A file with schema errors, made valid where it is not: so that checks between sections still run.

What was repaired is remembered; a problem that rests on a repaired value is not reported.
"""

import copy
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from contracts.topology import Problem, Topology
from stages.runtime.topology_file.branches import details
from stages.runtime.topology_file.explain import KEY_MARK
from stages.runtime.topology_file.finding import Path

_ROUNDS: Final = 6
_STAND_IN: Final = "stand-in"
# What a required part needs at least. Anything not named here has a default.
_FILLERS: Final[dict[str, Any]] = {
    "version": 1,
    "models": {_STAND_IN: {"source": _STAND_IN}},
    "pools": {_STAND_IN: {"model": _STAND_IN}},
    "routes": [{"pool": _STAND_IN}],
    "tenants": {_STAND_IN: {"keys": ["sha256:" + "0" * 64]}},
    "source": _STAND_IN,
    "model": _STAND_IN,
    "pool": _STAND_IN,
    "keys": ["sha256:" + "f" * 64],
    "hash": "sha256:" + "e" * 64,
}
_SECTION_OF: Final = {"model": "models", "pool": "pools", "tenant": "tenants"}


@dataclass(frozen=True)
class Repaired:
    """A valid topology and the paths whose values are not the file's own."""

    topology: Topology
    paths: frozenset[Path]
    dropped: frozenset[str]

    def problems(self) -> list[Problem]:
        """Mistakes between sections that do not rest on a repaired value."""
        return [one for one in self.topology.problems() if self._own(one.path)]

    def _own(self, path: Path) -> bool:
        if any(path[: len(part)] == part for part in self.paths if part):
            return False
        section = _SECTION_OF.get(str(path[-1]))
        if section is None:
            return True
        return (section,) not in self.paths and self._value(path) not in self.dropped

    def _value(self, path: Path) -> Any:
        here: Any = self.topology
        for part in path:
            plain: Any = here if isinstance(here, (dict, list)) else vars(here)
            here = plain[part]
        return here


def repair(data: Any) -> Repaired | None:
    """Replace what the schema refuses, as little as possible; None when nothing is left."""
    if not isinstance(data, dict):
        return None
    data = copy.deepcopy(data)
    paths: set[Path] = set()
    dropped: set[str] = set()
    for _ in range(_ROUNDS):
        try:
            topology = Topology.model_validate(data)
        except ValidationError as error:
            for detail in list(details(error, data)):
                _mend(data, detail["type"], detail["loc"], paths, dropped)
        else:
            return Repaired(topology, frozenset(paths), frozenset(dropped))
    return None


def _mend(data: Any, kind: str, path: Path, paths: set[Path], dropped: set[str]) -> None:
    if path[-1:] == (KEY_MARK,):
        path = path[:-1]
        dropped.add(str(path[-1]))
        _remove(data, path)
        return
    if kind == "extra_forbidden":
        _remove(data, path)
        return
    paths.add(path)
    parent, last = _parent(data, path), path[-1]
    if isinstance(parent, list) and isinstance(last, int):
        parent[last] = _entry(path)
    elif isinstance(parent, dict):
        filler = _named(path) if len(path) == 2 else copy.deepcopy(_FILLERS.get(str(last)))
        if filler is None:
            parent.pop(last, None)
        else:
            parent[last] = filler


def _named(path: Path) -> Any:
    """A whole model, pool or tenant that is no section; or an option of a fixed section."""
    examples = _FILLERS.get(str(path[0]))
    return copy.deepcopy(examples[_STAND_IN]) if isinstance(examples, dict) else None


def _entry(path: Path) -> Any:
    """A list entry that cannot be read: a route, a bucket or a key (made unlike any other)."""
    position = path[-1]
    assert isinstance(position, int)
    if path[0] == "routes":
        return {"pool": _STAND_IN}
    if path[0] == "tenants":
        return f"sha256:{abs(hash(path)):064x}"
    return position + 1


def _parent(data: Any, path: Path) -> Any:
    here = data
    for part in path[:-1]:
        try:
            here = here[part]
        except (KeyError, IndexError, TypeError):
            return None
    return here


def _remove(data: Any, path: Path) -> None:
    parent = _parent(data, path)
    if isinstance(parent, dict):
        parent.pop(path[-1], None)
