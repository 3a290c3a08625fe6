"""Which changes can be made while requests run. Pure."""

from collections.abc import Sequence

from contracts.errors import ErrorCode, HeadraceError
from contracts.lifecycle import Actuals, Change
from contracts.topology import Topology


def clamped(actuals: Actuals, topology: Topology) -> Actuals:
    """Within the file's bounds; pools that are gone are forgotten."""
    kept = {name for name in actuals.executors if name in topology.pools}
    return Actuals(executors={name: actuals.executors_of(topology, name) for name in sorted(kept)})


def refuse_what_needs_a_restart(changes: Sequence[Change]) -> None:
    """Raises `HeadraceError` naming each change that cannot be made while requests run."""
    refused = [one for one in changes if one.effect == "restart"]
    if refused:
        text = "; ".join(
            f"{one.path} ({one.before} → {one.after}): {_advice(one)}" for one in refused
        )
        raise HeadraceError(ErrorCode.INVALID_REQUEST, f"not while it runs: {text}")


def _advice(change: Change) -> str:
    section = change.path.partition(".")[0]
    if section in ("models", "pools"):
        return (
            "accepted requests count on it; add a new pool with it, let the routes name that, "
            "then remove the old one"
        )
    return "`headrace down`, then `headrace up`"
