"""The topology schema as a tree of options: for messages, suggestions and the reference page."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Final

from contracts.topology import Topology
from stages.runtime.topology_file.finding import Path

_KINDS: Final = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "array": "a list",
    "object": "a section",
}


@dataclass(frozen=True)
class Option:
    """One option: its JSON Schema with references followed."""

    schema: Mapping[str, Any]
    required: bool = False

    @property
    def kind(self) -> str:
        """The JSON Schema type; empty for a constant of several types."""
        return str(self.schema.get("type", ""))

    @property
    def unit(self) -> str | None:
        """Of the value, for example `ms`."""
        unit = self.schema.get("unit")
        return None if unit is None else str(unit)

    @property
    def description(self) -> str:
        """One line."""
        return str(self.schema.get("description", "")).split("\n")[0]

    @property
    def choices(self) -> list[Any]:
        """The only values allowed, if they are listed."""
        if "const" in self.schema:
            return [self.schema["const"]]
        return list(self.schema.get("enum", []))

    @cached_property
    def options(self) -> dict[str, "Option"]:
        """The options of a section with fixed keys."""
        needed = self.schema.get("required", [])
        return {
            name: Option(_resolved(part), required=name in needed)
            for name, part in self.schema.get("properties", {}).items()
        }

    @cached_property
    def each(self) -> "Option | None":
        """The entry of a list, or of a section whose keys are names."""
        part = self.schema.get("items") or self.schema.get("additionalProperties")
        return Option(_resolved(part)) if isinstance(part, dict) else None

    def child(self, part: str | int) -> "Option | None":
        """One step down; None where the schema ends."""
        if isinstance(part, str) and part in self.options:
            return self.options[part]
        return self.each

    def expected(self) -> str:
        """What may be written, in words: type, unit and range."""
        if self.choices:
            return " or ".join(_said(choice) for choice in self.choices)
        words = _KINDS.get(self.kind, "a value")
        if self.unit:
            words += f" ({self.unit})"
        if self.kind == "array" and self.each:
            words += f" of entries, each {self.each.expected()}"
        return words + self._range()

    def _range(self) -> str:
        low, high = self.schema.get("minimum"), self.schema.get("maximum")
        if low is not None and high is not None:
            return f" from {low} to {high}"
        if low is not None:
            return f", at least {low}"
        return f", at most {high}" if high is not None else ""

    def allows(self, value: float) -> bool:
        """Whether a number is within the range."""
        low, high = self.schema.get("minimum"), self.schema.get("maximum")
        return (low is None or value >= low) and (high is None or value <= high)


@cache
def _document() -> dict[str, Any]:
    return Topology.model_json_schema()


@cache
def root() -> Option:
    """The whole file."""
    return Option(_document())


def option_at(path: Path) -> Option | None:
    """The option that a path of keys and positions leads to."""
    here: Option | None = root()
    for part in path:
        here = here.child(part) if here else None
    return here


def _resolved(part: Mapping[str, Any]) -> dict[str, Any]:
    """Follow references and drop the `null` of an optional value."""
    found = dict(part)
    while True:
        if "anyOf" in found:
            real = [one for one in found.pop("anyOf") if one.get("type") != "null"]
            sections = [_resolved(one) for one in real[1:] if "$ref" in one]
            found = {**real[0], **found}
            for section in sections:  # an entry that may also be written as a section
                found = {**section, **found}
        elif "$ref" in found:
            name = str(found.pop("$ref")).rpartition("/")[2]
            found = {**_document()["$defs"][name], **found}
        else:
            return found


def _said(choice: Any) -> str:
    return str(choice).lower() if isinstance(choice, bool) else str(choice)
