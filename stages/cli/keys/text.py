"""Entries put into and taken out of the text of topology.yaml; every other byte stays as it is."""

import json
import re
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

Path = tuple[str, ...]

_PLAIN: Final = re.compile(r"[a-z][a-z_-]*")
_WORDS: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


class CannotEditError(ValueError):
    """The text has a form in which the place cannot be found; the message says where to edit."""


def append(text: str, path: Path, value: Any) -> str:
    """`value` as the last entry of the sequence at `path`."""
    sequence = _at(text, path)
    if not isinstance(sequence, SequenceNode):
        raise CannotEditError(f"{'.'.join(path)} is not a list")
    return _put(text, sequence, _written(text, value), "- ")


def insert(text: str, path: Path, key: str, value: Any) -> str:
    """`key: value` as the last entry of the mapping at `path`."""
    mapping = _at(text, path)
    if not isinstance(mapping, MappingNode):
        raise CannotEditError(f"{'.'.join(path)} is not a section")
    name = _written(text, key)
    return _put(text, mapping, f"{name}: {_written(text, value)}", "")


def remove(text: str, path: Path, index: int) -> str:
    """The sequence at `path` without one entry."""
    sequence = _at(text, path)
    if not isinstance(sequence, SequenceNode):
        raise CannotEditError(f"{'.'.join(path)} is not a list")
    items = sequence.value
    item = items[index]
    if sequence.flow_style:
        if index + 1 < len(items):
            return text[: _start(item)] + text[_start(items[index + 1]) :]
        if index:
            return text[: _end(items[index - 1])] + text[_end(item) :]
        return text[: _start(item)] + text[_end(item) :]
    dash = text.rindex("-", 0, _start(item))
    begin, end = _line_start(text, dash), _line_end(text, _end(item))
    rest = f"{text[begin:dash]}  []\n" if len(items) == 1 else ""
    return text[:begin] + rest + text[end:]


def _put(text: str, node: Node, entry: str, mark: str) -> str:
    """As the last entry of a collection, in its own style."""
    assert isinstance(node, SequenceNode | MappingNode)
    if node.flow_style:
        if node.value:
            at = _end(_last(node))
            return f"{text[:at]}, {entry}{text[at:]}"
        at = _end(node) - 1
        return f"{text[:at]}{entry}{text[at:]}"
    at = _line_end(text, _end(node))
    newline = "\r\n" if "\r\n" in text else "\n"
    before = text[:at] if text[:at].endswith("\n") else f"{text[:at]}{newline}"
    return f"{before}{' ' * node.start_mark.column}{mark}{entry}{newline}{text[at:]}"


def _at(text: str, path: Path) -> Node:
    node: Node
    try:
        node = YAML(typ="safe", pure=True).compose(text)
    except YAMLError as error:
        raise CannotEditError(f"the file is not YAML: {error}") from None
    for name in path:
        found = [
            value
            for key, value in (node.value if isinstance(node, MappingNode) else ())
            if key.value == name
        ]
        if not found:
            raise CannotEditError(f"{'.'.join(path)} is not there")
        node = found[-1]
    return node


def _last(node: Node) -> Node:
    last: Node = node.value[-1][1] if isinstance(node, MappingNode) else node.value[-1]
    return last


def _start(node: Node) -> int:
    return int(node.start_mark.index)


def _end(node: Node) -> int:
    """After its last character. (A block collection ends for YAML where the next entry begins.)"""
    if isinstance(node, SequenceNode | MappingNode) and not node.flow_style and node.value:
        return _end(_last(node))
    return int(node.end_mark.index)


def _line_start(text: str, index: int) -> int:
    return text.rfind("\n", 0, index) + 1


def _line_end(text: str, index: int) -> int:
    """After the newline (the end of the text where there is none)."""
    found = text.find("\n", index)
    return len(text) if found < 0 else found + 1


def _is_json(text: str) -> bool:
    return text.lstrip().startswith("{")


def _written(text: str, value: Any) -> str:
    """On one line: JSON in a JSON file, else YAML with quotes where people put them."""
    if _is_json(text):
        return json.dumps(value)
    match value:
        case dict():
            inside = (f"{key}: {_written(text, one)}" for key, one in value.items())
            return f"{{{', '.join(inside)}}}"
        case list():
            return f"[{', '.join(_written(text, one) for one in value)}]"
        case str() if _PLAIN.fullmatch(value) and value not in _WORDS:
            return value
        case _:
            return json.dumps(value)
