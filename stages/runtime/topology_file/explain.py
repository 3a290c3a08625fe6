"""Errors of the schema, said so that the reader knows what to write."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from stages.runtime.topology_file.branches import details
from stages.runtime.topology_file.finding import Finding, Path, kind_of, shown
from stages.runtime.topology_file.keys import hint
from stages.runtime.topology_file.options import Option, option_at
from stages.runtime.topology_file.tree import Tree
from stages.runtime.topology_file.values import rewrite

KEY_MARK = "[key]"  # how pydantic says that the name of an entry is wrong, not its value


def explain(error: ValidationError, tree: Tree) -> list[Finding]:
    """One finding for each error."""
    return [_finding(detail, tree) for detail in details(error, tree.data)]


def _finding(detail: ErrorDetails, tree: Tree) -> Finding:
    path: Path = detail["loc"]
    option = option_at(tuple(part for part in path if part != KEY_MARK))
    value = detail["input"]
    match detail["type"]:
        case "extra_forbidden":
            return _unknown(path, value, tree)
        case "missing":
            return _missing(path, option, tree)
        case "value_error" if path[-1:] == (KEY_MARK,):
            here = path[:-1]
            return Finding(here, tree.line(here), f"the name {shown((), value)}: {_said(detail)}")
    expected = option.expected() if option else None
    if detail["type"] == "value_error":
        expected = _said(detail)
    if detail["type"] == "string_pattern_mismatch" and option:
        expected = f"text of the form {option.schema.get('pattern')}"
    advice = rewrite(value, option) if option else None
    return Finding(path, tree.line(path), _problem(detail, path), expected, advice)


def _problem(detail: ErrorDetails, path: Path) -> str:
    value = detail["input"]
    printed = shown(path, value)
    context: Mapping[str, Any] = detail.get("ctx", {})
    match detail["type"]:
        case "greater_than_equal" | "greater_than":
            return f"{printed} is too small"
        case "less_than_equal" | "less_than":
            return f"{printed} is too large"
        case "literal_error" | "enum":
            return f"{printed} is not known here"
        case "string_pattern_mismatch":
            return f"{printed} does not have the right form"
        case "too_short" | "string_too_short":
            return f"{_whole(value)} is empty; at least one entry is needed"
        case "too_long":
            return f"more than {context.get('max_length')} entries"
        case "finite_number":
            return f"{printed} is not a finite number"
        case "value_error":
            return f"{printed} cannot be used"
        case _ if value is None:
            return "it is empty"
        case _ if isinstance(value, (dict, list)):
            return f"it is {kind_of(value)}"
        case _:
            return f"{printed} is {kind_of(value)}"


def _whole(value: Any) -> str:
    return "the text" if isinstance(value, str) else "it"


def _unknown(path: Path, value: Any, tree: Tree) -> Finding:
    parent = option_at(path[:-1])
    advice = hint(parent, str(path[-1]), value, path[:-1]) if parent else ""
    return Finding(path, tree.line(path), f"unknown option; {advice}")


def _missing(path: Path, option: Option | None, tree: Tree) -> Finding:
    words = f"{option.expected()} ({option.description})" if option else None
    return Finding(path, tree.line(path[:-1]), "is missing", words)


def _said(detail: ErrorDetails) -> str:
    """The text of a ValueError that a validator raised."""
    return str(detail.get("ctx", {}).get("error", detail["msg"]))
