"""topology.yaml is edited and applied while calls run."""

import asyncio
import json
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Final

from stages.cli.bench.lifecycle.kills import until_healthy
from stages.cli.bench.lifecycle.load import Load
from stages.cli.bench.lifecycle.site import Site
from stages.cli.rig import MODEL, RigError

Edit = Callable[[dict[str, Any]], None]
Window = tuple[float, float]


def _executors(count: int) -> Edit:
    def edit(topology: dict[str, Any]) -> None:
        topology["pools"]["small"]["executors"] = {"min": count, "max": count}

    return edit


def _price(topology: dict[str, Any]) -> None:
    topology["pools"]["small"]["price"] = {"accelerator_hour": 0.5}


def _bound(topology: dict[str, Any]) -> None:
    topology["pools"]["small"]["queue"] = {"requests": 77}


def _tenant(topology: dict[str, Any]) -> None:
    digest = sha256(b"headrace-fresh-key").hexdigest()
    topology["tenants"]["fresh"] = {"keys": [f"sha256:{digest}"]}


def _pool(topology: dict[str, Any]) -> None:
    topology["models"]["twin"] = {"source": MODEL, "context": 1024}
    topology["pools"]["second"] = {"model": "twin", "threads": 1, "kv_tokens": 2048}


def _no_pool(topology: dict[str, Any]) -> None:
    del topology["pools"]["second"], topology["models"]["twin"]


EDITS: Final[tuple[tuple[str, Edit], ...]] = (
    ("executors 2 to 1", _executors(1)),
    ("price", _price),
    ("bound of the queue", _bound),
    ("new tenant", _tenant),
    ("executors 1 to 2", _executors(2)),
    ("new pool", _pool),
    ("pool removed", _no_pool),
)


async def apply_each(
    site: Site, load: Load, say: Callable[[str], None]
) -> tuple[list[Window], int]:
    """One after the other under full load: when each was made, and how many were refused."""
    windows, refused = [], 0
    for name, edit in EDITS:
        await until_healthy(site)
        await load.full()
        begin = time.monotonic()
        try:
            await asyncio.to_thread(_apply, site, edit)
        except RigError as error:
            refused += 1
            say(f"apply ({name}) was refused: {error}")
        windows.append((begin, time.monotonic()))
        say(f"applied: {name}, {time.monotonic() - begin:.1f} s")
    return windows, refused


def _apply(site: Site, edit: Edit) -> None:
    file = site.rig.topology
    document = json.loads(file.read_text())
    edit(document)
    file.write_text(json.dumps(document, indent=1))
    site.rig.headrace("apply", "--topology", str(file))
