"""Commands whose modules are imported when they are run, so that every command starts quickly."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from inspect import cleandoc
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True)
class Entry:
    """Where a command lives: `module:attribute`, a typer app or a plain function."""

    target: str
    help: str
    hidden: bool = False

    @property
    def there(self) -> bool:
        """Whether the module exists (its parents are imported, it is not)."""
        return find_spec(self.target.partition(":")[0]) is not None

    def load(self) -> Any:
        """The real command."""
        module, _, attribute = self.target.partition(":")
        found = getattr(import_module(module), attribute)
        if not isinstance(found, typer.Typer):
            holder = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)
            holder.command(help=found.__doc__)(found)
            found = holder
        command = typer.main.get_command(found)
        _unwrap(command)
        return command


def _unwrap(command: Any) -> None:
    """Join the lines of each paragraph of help: the terminal folds them where its edge is."""
    paragraphs = cleandoc(command.help or "").split("\n\n")
    command.help = "\n\n".join(" ".join(one.split()) for one in paragraphs)
    for inner in getattr(command, "commands", {}).values():
        _unwrap(inner)


class Later(TyperCommand):
    """Stands for a command in lists and help; turns into the real one when it is called."""

    def __init__(self, name: str, entry: Entry) -> None:
        super().__init__(name, help=entry.help, hidden=entry.hidden)
        self._entry = entry

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Parse the arguments as the real command does."""
        return self._entry.load().make_context(info_name, args, parent, **extra)


class LazyGroup(TyperGroup):
    """A group that knows its commands by name only."""

    entries: ClassVar[Mapping[str, Entry]] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order of a day's work."""
        return [name for name, entry in self.entries.items() if entry.there]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A stand-in; None for an unknown name."""
        entry = self.entries.get(cmd_name)
        return Later(cmd_name, entry) if entry is not None and entry.there else None
