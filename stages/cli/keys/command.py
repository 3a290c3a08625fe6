"""The three commands."""

import asyncio
import hashlib
import secrets
from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from contracts import subjects
from contracts.topology import KeySection
from stages.cli.common import (
    OK,
    STATE,
    TOPOLOGY,
    JsonOption,
    StateOption,
    fail,
    hint,
    print_json,
)
from stages.cli.keys import force
from stages.cli.keys.file import Document, KeysError, locked, read, write
from stages.cli.keys.moment import expiry
from stages.cli.keys.rows import KeyRow, find, rows
from stages.cli.rows import print_table
from stages.cli.running import serving
from stages.control.state import StateFolder

T = TypeVar("T")

SECRET_BYTES: Final = 32

app = typer.Typer(
    name="keys",
    help="API keys of tenants: made, listed, revoked. The file keeps SHA-256 only.",
    no_args_is_help=True,
    add_completion=False,
)
File = Annotated[
    Path | None,
    typer.Option(
        "--topology", metavar="FILE", help="The file; default: what runs here, else topology.yaml."
    ),
]
NoApply = Annotated[
    bool, typer.Option("--no-apply", help="Change the file only, not the pipeline that runs.")
]
Tenant = Annotated[str, typer.Argument(metavar="TENANT", help="Whose key.")]
NewTenant = Annotated[bool, typer.Option("--new-tenant", help="Make the tenant.")]
Name = Annotated[str | None, typer.Option(help="For people; unique in its tenant.")]
Scopes = Annotated[
    list[str] | None,
    typer.Option(
        "--scope", help=f"A call it may make ({', '.join(subjects.CLIENT_VERBS)}); repeatable."
    ),
]
Expires = Annotated[
    str | None, typer.Option(help="When it ends: 30d, 12h, 90m or a time with its zone.")
]
Which = Annotated[str, typer.Argument(metavar="KEY", help="Its id or name.")]
OfTenant = Annotated[str | None, typer.Option("--tenant", help="Whose key, where names repeat.")]


@app.command("create")
def create(
    tenant: Tenant,
    name: Name = None,
    scope: Scopes = None,
    expires: Expires = None,
    new_tenant: NewTenant = False,
    topology: File = None,
    state: StateOption = STATE,
    no_apply: NoApply = False,
    as_json: JsonOption = False,
) -> None:
    """Make a key. It is printed to stdout this once; only its SHA-256 is kept.

    Where a pipeline runs, the key works when the command returns. Exit code 1 when it was not made.
    """
    if not subjects.is_name(tenant):
        raise fail(f"TENANT {tenant!r}: a letter or digit, then letters, digits, - and _", as_json)
    secret = f"hr-{tenant}-{secrets.token_urlsafe(SECRET_BYTES)}"
    digest = f"sha256:{hashlib.sha256(secret.encode()).hexdigest()}"

    def more(document: Document) -> Document:
        key = _section(digest, name, scope, expires)
        return document.with_key(tenant, key, new_tenant=new_tenant)

    document, generation = _run(
        _change(_file(topology, state), state, no_apply, more, undo=True), as_json
    )
    key = document.topology.tenants[tenant].api_keys()[-1]
    if as_json:
        print_json({**_described(KeyRow(tenant, key)), "key": secret, "generation": generation})
    else:
        typer.echo(secret)
        typer.echo(f"Key {key.id} of tenant {tenant}; {_in_force(generation)}", err=True)
        typer.echo("It is not shown again: keep it in a safe place.", err=True)
    raise typer.Exit(OK)


@app.command("list")
def list_keys(
    topology: File = None, state: StateOption = STATE, as_json: JsonOption = False
) -> None:
    """Every key by its id, with tenant, name, scopes, end and state."""
    found = _run(_listed(_file(topology, state), state), as_json)
    if as_json:
        print_json([_described(one) for one in found])
        return
    print_table(
        ("id", "tenant", "name", "scopes", "expires", "state"),
        [
            (
                one.key.id,
                one.tenant,
                one.key.name,
                ", ".join(one.key.scopes) if one.key.scopes else "all",
                one.key.expires or "never",
                one.state,
            )
            for one in found
        ],
    )


@app.command("revoke")
def revoke(
    which: Which,
    tenant: OfTenant = None,
    topology: File = None,
    state: StateOption = STATE,
    no_apply: NoApply = False,
    as_json: JsonOption = False,
) -> None:
    """Take a key out. Its calls are refused, its connections and streams end within a second.

    Returns when that is so. Exit code 1 when it is not; the file says then what was reached.
    """
    gone: list[KeyRow] = []

    def less(document: Document) -> Document:
        gone[:] = [find(document.topology, which, tenant)]
        return document.without_key(gone[0].tenant, gone[0].key)

    _, generation = _run(
        _change(_file(topology, state), state, no_apply, less, undo=False), as_json
    )
    if as_json:
        print_json({**_described(gone[0]), "state": "revoked", "generation": generation})
    else:
        typer.echo(
            f"Key {gone[0].key.id} of tenant {gone[0].tenant} is revoked; {_in_force(generation)}"
        )
    raise typer.Exit(OK)


def _file(named: Path | None, state: Path) -> Path:
    known = StateFolder(state).holding_ports()
    return named or (Path(known.topology_file) if known is not None else TOPOLOGY)


async def _change(
    file: Path, state: Path, no_apply: bool, change: Any, *, undo: bool
) -> tuple[Document, int | None]:
    """Edit the file and bring it into force; the generation, None where nothing runs."""
    folder = StateFolder(state)
    with locked(file) as target:
        before = read(target)
        after: Document = change(before)
        if no_apply:
            write(target, after.text)
            return after, None
        async with force.pipeline(folder) as bus:
            if bus is not None:
                await force.check(bus, after, folder)
            write(target, after.text)
            if bus is None:
                return after, None
            try:
                return after, await force.apply(bus, after)
            except KeysError as error:
                if undo and read(target).text == after.text:
                    write(target, before.text)
                    raise KeysError(f"{error}. {file} is as it was") from None
                raise KeysError(
                    f"{error}. {file} is changed: {hint('apply', folder)} brings it into force"
                ) from None


async def _listed(file: Path, state: Path) -> list[KeyRow]:
    document = read(file)
    async with force.pipeline(StateFolder(state)) as bus:
        now = None if bus is None else (await serving(bus)).topology
    return rows(document.topology, now, datetime.now(UTC))


def _section(
    digest: str, name: str | None, scopes: list[str] | None, expires: str | None
) -> KeySection:
    unknown = [one for one in scopes or () if one not in subjects.CLIENT_VERBS]
    if unknown:
        raise KeysError(f"--scope {unknown[0]!r}: there are {', '.join(subjects.CLIENT_VERBS)}")
    if name is not None and not subjects.is_name(name):
        raise KeysError(f"--name {name!r}: a letter or digit, then letters, digits, - and _")
    return KeySection.model_validate(
        {
            "hash": digest,
            "name": name,
            "scopes": list(dict.fromkeys(scopes)) if scopes else None,
            "expires": expiry(expires, datetime.now(UTC)) if expires is not None else None,
        }
    )


def _run(work: Coroutine[Any, Any, T], as_json: bool) -> T:
    try:
        return asyncio.run(work)
    except KeysError as error:
        raise fail(str(error), as_json) from None
    except OSError as error:
        raise fail(f"the file cannot be written: {error}", as_json) from None


def _described(one: KeyRow) -> dict[str, Any]:
    return {
        "id": one.key.id,
        "tenant": one.tenant,
        "name": one.key.name,
        "scopes": one.key.scopes,
        "expires": one.key.expires,
        "state": one.state,
    }


def _in_force(generation: int | None) -> str:
    if generation is None:
        return "the file is changed; no pipeline was touched"
    return f"in force since generation {generation}"
