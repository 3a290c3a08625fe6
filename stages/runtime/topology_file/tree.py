"""YAML text → plain values, the line of every key, and the mistakes that YAML itself hides."""

import warnings
from dataclasses import dataclass, field
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from stages.runtime.topology_file.finding import Finding, Path

MOST_BYTES: Final = 256 * 1024
MOST_VALUES: Final = 20_000  # counted after aliases are followed, so aliases cannot multiply
MOST_DEPTH: Final = 32

_TAG: Final = "tag:yaml.org,2002:"


@dataclass
class Tree:
    """A parsed file. `lines` has the line of every key and list entry, from 1."""

    data: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def line(self, path: Path) -> int | None:
        """The line of a value, or of the nearest part of the file that holds it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path)


def read_tree(text: str) -> Tree:
    """Parse one YAML document; a syntax error becomes the only finding."""
    tree = Tree()
    if len(text.encode()) > MOST_BYTES:
        tree.findings.append(Finding((), None, f"the file is larger than {MOST_BYTES // 1024} KiB"))
        return tree
    try:
        node = _compose(text)
    except RecursionError:
        tree.findings.append(Finding((), None, f"nested deeper than {MOST_DEPTH} levels"))
    except YAMLError as error:
        tree.findings.append(_syntax(error, text))
    else:
        if node is not None:
            _Builder(tree).build(node)
    return tree


def _compose(text: str) -> Node | None:
    yaml = YAML(typ="safe", pure=True)
    yaml.max_depth = MOST_DEPTH
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a reused anchor is legal YAML
        composed: Node | None = yaml.compose(text)
    return composed


class _TooManyValuesError(Exception):
    """Aliases that refer to aliases would grow without end."""


class _Builder:
    """Walks the nodes once, keeping what a plain loader throws away."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._values = 0
        self._scalars = SafeConstructor(loader=YAML(typ="safe", pure=True))

    def build(self, node: Node) -> None:
        """Fill the tree."""
        self._tree.lines[()] = 1
        try:
            self._tree.data = self._value(node, ())
        except _TooManyValuesError:
            self._tree.data = None
            self._tree.findings = [
                Finding((), None, f"more than {MOST_VALUES} values; are aliases nested?")
            ]

    def _value(self, node: Node, path: Path) -> Any:
        self._values += 1
        if self._values > MOST_VALUES or len(path) > MOST_DEPTH:
            raise _TooManyValuesError
        if not isinstance(node, ScalarNode) and _tag(node) not in ("map", "seq"):
            self._add(path, _line(node), "tags are not read", write="the value without it")
        if isinstance(node, MappingNode):
            return self._mapping(node, path)
        if isinstance(node, SequenceNode):
            entries = []
            for index, entry in enumerate(node.value):
                self._tree.lines[(*path, index)] = _line(entry)
                entries.append(self._value(entry, (*path, index)))
            return entries
        return self._scalar(node, path)

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = _line(key_node)
            if not isinstance(key_node, ScalarNode):
                self._add(path, line, "a list or section cannot be a key", write="a plain name")
                continue
            key = str(key_node.value)
            here = (*path, key)
            if _tag(key_node) == "merge":
                self._add(here, line, "merge keys are not read", write="the options out")
            elif key in found:
                first = self._tree.lines[here]
                self._add(here, line, f"{key!r} is already set on line {first}; keep one of them")
            else:
                self._tree.lines[here] = line
                found[key] = self._value(value_node, here)
        return found

    def _scalar(self, node: Node, path: Path) -> Any:
        text = str(node.value)
        try:
            match _tag(node):
                case "int":
                    return self._scalars.construct_yaml_int(node)
                case "float":
                    return self._scalars.construct_yaml_float(node)
                case "bool":
                    return self._scalars.construct_yaml_bool(node)
                case "null":
                    return None
                case "str" | "timestamp" | "value":
                    return text
        except ValueError:
            return text
        self._add(path, _line(node), "tags are not read", write="the value without it")
        return text

    def _add(self, path: Path, line: int, problem: str, write: str | None = None) -> None:
        self._tree.findings.append(Finding(path, line, problem, write=write))


def _tag(node: Node) -> str:
    tag = str(node.tag)
    return tag.removeprefix(_TAG) if tag.startswith(_TAG) else f"!{tag}"


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


def _syntax(error: YAMLError, text: str) -> Finding:
    if isinstance(error, ReaderError):
        before = text.count("\n", 0, int(error.position))
        return Finding((), before + 1, "a control character; remove it")
    if not isinstance(error, MarkedYAMLError):
        return Finding((), None, f"not YAML: {error}")
    mark = error.problem_mark or error.context_mark
    line: int | None = None if mark is None else int(mark.line) + 1
    problem = str(error.problem or error.context or "not YAML")
    if "\\t" in problem or (mark is not None and _has_tab(text, int(mark.line))):
        return Finding((), line, "a tab in the indentation", write="spaces")
    if "but found another document" in problem:
        return Finding((), line, "a second document starts here (`---`); keep one")
    if "maximum depth" in problem:
        return Finding((), line, f"nested deeper than {MOST_DEPTH} levels")
    context = f" ({error.context})" if error.context and error.problem else ""
    column = "" if mark is None else f", column {mark.column + 1}"
    return Finding((), line, f"not YAML{column}: {problem}{context}")


def _has_tab(text: str, line: int) -> bool:
    lines = text.splitlines()
    if line >= len(lines):
        return False
    indentation = lines[line][: len(lines[line]) - len(lines[line].lstrip())]
    return "\t" in indentation
