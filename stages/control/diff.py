"""What differs between two topologies, and what each difference takes to come true. Pure."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel

from contracts.lifecycle import Actuals, Change, Effect
from contracts.topology import RouteSection, TenantSection, Topology
from stages.control.flow import flow
from stages.control.order import LIVE_OF_A_POOL

_RESTART: Final = frozenset(
    {"bus.port", "bus.embedded", "stages.egress.grpc", "stages.egress.http"}
)

Judge = Callable[[str, Any, Any], Effect]


def diff(before: Topology, after: Topology, actuals: Actuals | None = None) -> list[Change]:
    """Every difference, in the order of the file; empty exactly when both are equal."""
    actuals = actuals or Actuals()
    return [
        *_leaves("", _top(before), _top(after), _live),
        *_leaves("bus", before.bus.model_dump(), after.bus.model_dump(), _live),
        *_models(before, after),
        *_pools(before, after, actuals),
        *_routes(before, after),
        *_tenants(before, after),
        *_leaves("stages", before.stages.model_dump(), after.stages.model_dump(), _replicas),
    ]


def _top(topology: Topology) -> dict[str, Any]:
    return topology.model_dump(include={"version", "currency"})


def _live(path: str, before: Any, after: Any) -> Effect:
    return "restart" if path in _RESTART else "live"


def _replicas(path: str, before: Any, after: Any) -> Effect:
    if path.endswith(".replicas"):
        return "start" if after > before else "stop"
    return _live(path, before, after)


def _models(before: Topology, after: Topology) -> Iterator[Change]:
    old, new = before.models, after.models
    yield from _entries("models", old, new, "live", "live")
    for name in _both(old, new):
        used = any(
            before.pools[pool].model == name and after.pools[pool].model == name
            for pool in _both(before.pools, after.pools)
        )
        judge = _used_model(name) if used else _live
        yield from _leaves(f"models.{name}", _dump(old[name]), _dump(new[name]), judge)


def _used_model(name: str) -> Judge:
    """Of a model that a pool goes on with: accepted requests must come to the same end."""

    def judge(path: str, before: Any, after: Any) -> Effect:
        match path.removeprefix(f"models.{name}."):
            case "source":  # queued prompts are tokens of the old one
                return "restart"
            case "context" if before is None or (after is not None and after < before):
                return "restart"  # accepted requests may be longer
            case _:
                return "replace"

    return judge


def _pools(before: Topology, after: Topology, actuals: Actuals) -> Iterator[Change]:
    old, new = before.pools, after.pools
    yield from _entries("pools", old, new, "start", "stop")
    for name in _both(old, new):
        counts = actuals.executors_of(before, name), actuals.executors_of(after, name)
        judge = _of_pool(f"pools.{name}", counts)
        yield from _leaves(f"pools.{name}", _dump(old[name]), _dump(new[name]), judge)


def _of_pool(pool: str, counts: tuple[int, int]) -> Judge:
    def judge(path: str, before: Any, after: Any) -> Effect:
        option = path.removeprefix(f"{pool}.").partition(".")[0]
        if option == "executors":
            fewer, more = counts[1] < counts[0], counts[1] > counts[0]
            return "start" if more else "stop" if fewer else "live"
        if option == "model":
            return "restart"  # its requests are tokens of the old one
        return "live" if option in LIVE_OF_A_POOL else "replace"

    return judge


def _routes(before: Topology, after: Topology) -> Iterator[Change]:
    old, new = _named_routes(before), _named_routes(after)
    yield from _entries("routes", old, new, "live", "live")
    for name in _both(old, new):
        yield from _leaves(f"routes.{name}", _route(old[name]), _route(new[name]), _live)
    order = [name for name in old if name in new], [name for name in new if name in old]
    if order[0] != order[1]:
        yield Change(
            kind="change", path="routes", before=flow(order[0]), after=flow(order[1]), effect="live"
        )


def _named_routes(topology: Topology) -> dict[str, RouteSection]:
    return {topology.route_name(index): route for index, route in enumerate(topology.routes)}


def _route(route: RouteSection) -> dict[str, Any]:
    return route.model_dump(mode="json", exclude={"name"})


def _tenants(before: Topology, after: Topology) -> Iterator[Change]:
    old = {name: _tenant(tenant) for name, tenant in before.tenants.items()}
    new = {name: _tenant(tenant) for name, tenant in after.tenants.items()}
    yield from _entries("tenants", old, new, "live", "live")
    for name in _both(old, new):
        keys = old[name].pop("keys"), new[name].pop("keys")
        yield from _leaves(f"tenants.{name}", old[name], new[name], _live)
        here = f"tenants.{name}.keys"
        yield from _entries(here, *keys, "live", "live")
        for key in _both(*keys):
            yield from _leaves(f"{here}.{key}", keys[0][key], keys[1][key], _live)


def _tenant(tenant: TenantSection) -> dict[str, Any]:
    """A tenant with its keys by their ids: hashes are not shown."""
    keys = {
        key.id: key.model_dump(exclude={"hash"}, exclude_none=True) for key in tenant.api_keys()
    }
    return tenant.model_dump(mode="json", exclude={"keys"}) | {"keys": keys}


def _dump(section: BaseModel) -> dict[str, Any]:
    return section.model_dump(mode="json")


def _both(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return [name for name in old if name in new]


def _entries(
    path: str, old: Mapping[str, Any], new: Mapping[str, Any], added: Effect, removed: Effect
) -> Iterator[Change]:
    """Named parts that came or went, each shown whole."""
    for name, value in new.items():
        if name not in old:
            yield Change(kind="add", path=f"{path}.{name}", after=_said(value), effect=added)
    for name, value in old.items():
        if name not in new:
            yield Change(kind="remove", path=f"{path}.{name}", before=_said(value), effect=removed)


def _said(part: Any) -> str:
    return flow(_short(part) if isinstance(part, BaseModel) else part)


def _short(section: BaseModel) -> dict[str, Any]:
    return section.model_dump(mode="json", exclude_defaults=True)


def _leaves(
    path: str, old: Mapping[str, Any], new: Mapping[str, Any], judge: Judge
) -> Iterator[Change]:
    """Differences of single options; a list is one option."""
    for name in [*old, *(name for name in new if name not in old)]:
        before, after = old.get(name), new.get(name)
        here = f"{path}.{name}" if path else name
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from _leaves(here, before, after, judge)
        elif before != after:
            effect = judge(here, before, after)
            yield Change(
                kind="change", path=here, before=flow(before), after=flow(after), effect=effect
            )
