"""Generated pages: docs/topology.md, docs/permissions.md and docs/schema/*.json. `make docs` writes, a test compares."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic.json_schema import models_json_schema

from contracts import (
    client,
    errors,
    frames,
    internal,
    lifecycle,
    sessions,
    status,
    topology,
    usage,
)
from contracts.topology import Topology
from stages.cli.common import FAILED
from stages.cli.permissions_page import permissions_page
from stages.runtime.topology_file.options import Option, root

_INTRO: Final = """\
# topology.yaml

The one configuration of a running system. Generated from `contracts/topology/` by `make docs`; do not edit.

`headrace check` names every mistake of a file at once, with line, key and what to write. Unknown options
are mistakes. Names (models, pools, routes, tenants) start with a letter or digit and have at most 64
letters, digits, `-` and `_`. Numbers are plain numbers in the unit of the table: `65536`, not `64k`.

```yaml
{example}```
"""
# How a part that appears once per name or position is written in the headings.
_ENTRIES: Final = {"models": "models.NAME", "pools": "pools.NAME", "tenants": "tenants.NAME"}


def docs(
    folder: Annotated[Path, typer.Option(help="The docs folder.")] = Path("docs"),
    check: Annotated[
        bool, typer.Option("--check", help="Only say whether they are current.")
    ] = False,
) -> None:
    """Regenerate the reference pages. With --check, exit code 1 when a page is not current."""
    stale = []
    for name, text in pages(folder.parent / "topology.yaml"):
        path = folder / name
        if path.exists() and path.read_text() == text:
            continue
        stale.append(path)
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    for path in stale:
        typer.echo(f"{path} {'is not current; run: make docs' if check else 'written'}")
    raise typer.Exit(FAILED if check and stale else 0)


def pages(example: Path) -> Iterator[tuple[str, str]]:
    """Every generated page: its name under docs/ and its text."""
    yield "topology.md", topology_page(example.read_text())
    yield "permissions.md", permissions_page()
    for name, schema in schemas():
        yield f"schema/{name}.json", json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def topology_page(example: str) -> str:
    """Every option with type, default, unit and one line."""
    parts = [_INTRO.format(example=example)]
    parts += [_section(name, option) for name, option in _sections("", root())]
    return "\n".join(parts)


def _sections(name: str, option: Option) -> Iterator[tuple[str, Option]]:
    """Every part with options of its own, parents first."""
    if option.options:
        yield name, option
    for key, child in option.options.items():
        path = f"{name}.{key}" if name else key
        if child.each is not None and child.each.options:
            path = _ENTRIES.get(path, f"{path}[]")
            child = child.each
        yield from _sections(path, child)


def _section(name: str, option: Option) -> str:
    lines = [f"## {f'`{name}`' if name else 'Top level'}", ""]
    lines += [option.description, ""] if name else []
    lines += ["| option | type | default | unit | what |", "|---|---|---|---|---|"]
    model = getattr(topology, str(option.schema.get("title")))
    lines += [_row(key, child, model.model_fields[key]) for key, child in option.options.items()]
    return "\n".join(lines) + "\n"


def _row(key: str, option: Option, field: FieldInfo) -> str:
    kind = option.expected().replace(f" ({option.unit})", "", 1)
    cells = (f"`{key}`", kind, _default(field), option.unit or "", option.description)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None or isinstance(value, BaseModel):
        return ""
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def schemas() -> Iterator[tuple[str, dict[str, Any]]]:
    """One JSON Schema page for each group of messages."""
    yield "topology", Topology.model_json_schema()
    for name, module in (
        ("client", client),
        ("errors", errors),
        ("internal", internal),
        ("lifecycle", lifecycle),
        ("sessions", sessions),
        ("status", status),
        ("usage", usage),
    ):
        yield name, _models_page(f"headrace {name} messages", _models(module))
    yield "frames", _frames_page()


def _models(module: Any) -> list[type[BaseModel]]:
    """The models that a module defines itself, in its order."""
    return [
        found
        for found in vars(module).values()
        if isinstance(found, type)
        and issubclass(found, BaseModel)
        and found.__module__ == module.__name__
    ]


def _models_page(title: str, models: Sequence[type[BaseModel]]) -> dict[str, Any]:
    _, page = models_json_schema([(model, "validation") for model in models], title=title)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **page}


def _frames_page() -> dict[str, Any]:
    """The msgpack frames; arrays whose entries are the fields in order."""
    hot = (frames.TokenFrame, frames.Credit, frames.LeaseReply)
    _, parts = msgspec.json.schema_components(hot, ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "headrace frames (msgpack)",
        "$defs": parts,
    }
