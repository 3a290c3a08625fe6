"""topology.yaml as `headrace keys` changes it: a key more, a key less, nothing else."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.topology import KeySection, Topology
from stages.cli.keys.text import CannotEditError, append, insert, remove
from stages.runtime.topology_file import Report, parse_topology

_BOM = "\ufeff"


class KeysError(ValueError):
    """The command cannot do it; the message says what to do."""


@dataclass(frozen=True)
class Document:
    """A file's text and what it says."""

    path: Path
    text: str
    topology: Topology

    def with_key(self, tenant: str, key: KeySection, *, new_tenant: bool) -> "Document":
        """One key more. Raises `KeysError`."""
        entry = _entry(key)
        there = self.topology.tenants.get(tenant)
        if there is None and not new_tenant:
            known = ", ".join(sorted(self.topology.tenants))
            raise KeysError(
                f"no tenant {tenant!r} in {self.path} (there are: {known}); "
                "add --new-tenant to make it"
            )
        if there is not None and new_tenant:
            raise KeysError(f"tenant {tenant!r} is there already; leave out --new-tenant")
        try:
            text = (
                insert(self.text, ("tenants",), tenant, {"keys": [entry]})
                if there is None
                else append(self.text, ("tenants", tenant, "keys"), entry)
            )
        except CannotEditError as error:
            raise self._by_hand(str(error)) from None
        return self._checked(text, tenant, [*(there.api_keys() if there else ()), key])

    def without_key(self, tenant: str, key: KeySection) -> "Document":
        """One key less. Raises `KeysError`."""
        keys = self.topology.tenants[tenant].api_keys()
        try:
            text = remove(self.text, ("tenants", tenant, "keys"), keys.index(key))
        except CannotEditError as error:
            raise self._by_hand(str(error)) from None
        return self._checked(text, tenant, [one for one in keys if one != key])

    def _checked(self, text: str, tenant: str, keys: list[KeySection]) -> "Document":
        """The new text is a topology that differs in this tenant's keys only."""
        report = parse_topology(text, str(self.path))
        if report.topology is None:
            raise KeysError("\n".join(report.lines()))
        tenants = dict(report.topology.tenants)
        found = tenants.pop(tenant).api_keys()
        before = {name: one for name, one in self.topology.tenants.items() if name != tenant}
        if found != keys or tenants != before or other_than_tenants(report.topology, self.topology):
            raise self._by_hand("its form (anchors?) hides what belongs to whom")
        return Document(self.path, text, report.topology)

    def _by_hand(self, why: str) -> KeysError:
        return KeysError(f"{self.path} cannot be edited here: {why}; edit it by hand")


def other_than_tenants(one: Topology, other: Topology) -> bool:
    """Whether they differ in more than tenants."""
    return one.model_copy(update={"tenants": other.tenants}) != other


def read(path: Path) -> Document:
    """Read and check the file. Raises `KeysError` with every mistake."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise KeysError(f"{path}: {error}") from None
    report: Report = parse_topology(text.removeprefix(_BOM), str(path))
    if report.topology is None:
        raise KeysError("\n".join(report.lines()))
    return Document(path, text.removeprefix(_BOM), report.topology)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[Path]:
    """The file behind `path` (links followed), for one command at a time."""
    target = path.resolve()
    try:
        folder = os.open(target.parent, os.O_RDONLY)
    except OSError as error:
        raise KeysError(f"{path}: {error.strerror}") from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield target
    finally:
        os.close(folder)


def write(path: Path, text: str) -> None:
    """Replace the file's text at once, with its mode. Raises `OSError`."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    mode = path.stat().st_mode & 0o7777
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _entry(key: KeySection) -> Any:
    """In the short form where that says everything."""
    said = key.model_dump(mode="json", exclude_none=True)
    return key.hash if set(said) == {"hash"} else said
