"""Keys as lists show them. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from contracts.topology import KeySection, Topology
from stages.cli.keys.file import KeysError

LONGEST_SHOWN: Final = 32


@dataclass(frozen=True)
class KeyRow:
    """A key, whose it is, and what it is worth now."""

    tenant: str
    key: KeySection
    state: str = "active"


def rows(file: Topology, serving: Topology | None, now: datetime) -> list[KeyRow]:
    """All keys of the file and of what runs (None = nothing runs), with their state."""
    written, effective = _told(file), _told(serving)
    found = []
    for told, (tenant, key) in {**effective, **written}.items():
        if key.expires_ms is not None and key.expires_ms <= 1000 * now.timestamp():
            state = "expired"
        elif told not in written:
            state = "revoked in the file, still in force: headrace apply"
        elif serving is not None and told not in effective:
            state = "not in force yet: headrace apply"
        else:
            state = "active"
        found.append(KeyRow(tenant, key, state))
    return sorted(found, key=lambda one: one.tenant)


def find(topology: Topology, which: str, tenant: str | None) -> KeyRow:
    """By id or name. Raises `KeysError` where there is none, or several."""
    mine = [KeyRow(*one) for one in _all(topology) if tenant in (None, one[0])]
    found = [one for one in mine if one.key.id == which]  # a name may look like another key's id
    found = found or [one for one in mine if one.key.name == which]
    if not found:
        whose = f" of tenant {tenant!r}" if tenant is not None else ""
        # Not repeated where it could be the key itself.
        named = (
            repr(which) if len(which) <= LONGEST_SHOWN and not which.startswith("hr-") else "that"
        )
        raise KeysError(f"no key with id or name {named}{whose}; see `headrace keys list`")
    if len(found) > 1:
        owners = ", ".join(sorted(one.tenant for one in found))
        raise KeysError(
            f"{len(found)} keys are named {which!r} (of {owners}); add --tenant, or give the id"
        )
    return found[0]


def _told(topology: Topology | None) -> dict[str, tuple[str, KeySection]]:
    return {f"{tenant} {key.model_dump_json()}": (tenant, key) for tenant, key in _all(topology)}


def _all(topology: Topology | None) -> Iterator[tuple[str, KeySection]]:
    if topology is not None:
        for name, tenant in topology.tenants.items():
            yield from ((name, key) for key in tenant.api_keys())
