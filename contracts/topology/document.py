"""The whole of topology.yaml, and the checks that need more than one section."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Literal

from pydantic import Field

from contracts.topology.sections import (
    KV_BLOCK,
    BusSection,
    ModelSection,
    Name,
    PoolSection,
    RouteSection,
    Section,
    StagesSection,
    TenantSection,
)

Path = tuple[str | int, ...]

# Executors are named <pool>-<number>; their names must differ from those of stages and stay names.
STAGES = frozenset({"control", "ingress", "routing", "queueing", "egress", "metering"})
LONGEST_POOL_NAME = 48


@dataclass(frozen=True)
class Problem:
    """One mistake: where it is and what to write instead."""

    path: Path
    message: str


class Topology(Section):
    """The running system, declared."""

    version: Literal[1] = Field(description="of this schema")
    currency: str = Field("USD", pattern=r"^[A-Z]{3}$", description="of all prices (ISO 4217)")
    bus: BusSection = Field(default_factory=BusSection, description="the message bus")
    models: dict[Name, ModelSection] = Field(min_length=1, description="by name")
    pools: dict[Name, PoolSection] = Field(min_length=1, description="by name")
    routes: Annotated[list[RouteSection], Field(min_length=1)] = Field(
        description="tried in order; the first match decides"
    )
    tenants: dict[Name, TenantSection] = Field(min_length=1, description="by name")
    stages: StagesSection = Field(
        default_factory=StagesSection, description="the processes around the executors"
    )

    def route_name(self, index: int) -> str:
        """The name of a route in decisions."""
        return self.routes[index].name or f"route-{index}"

    def model_of(self, pool: str) -> ModelSection:
        """The model that a pool serves."""
        return self.models[self.pools[pool].model]

    def problems(self) -> list[Problem]:
        """Every mistake between sections, none left out."""
        return [
            *self._pool_problems(),
            *self._route_problems(),
            *self._tenant_problems(),
            *self._port_problems(),
        ]

    def _pool_problems(self) -> Iterator[Problem]:
        for name, pool in self.pools.items():
            here: Path = ("pools", name)
            if name in STAGES or len(name) > LONGEST_POOL_NAME:
                yield Problem(
                    here,
                    f"a pool's name has at most {LONGEST_POOL_NAME} characters and is not the name "
                    f"of a stage ({', '.join(sorted(STAGES))})",
                )
            if pool.model not in self.models:
                yield Problem((*here, "model"), _unknown("model", pool.model, self.models))
            if pool.executors.max < pool.executors.min:
                yield Problem(
                    (*here, "executors", "max"),
                    f"{pool.executors.max} is below min ({pool.executors.min})",
                )
            if sorted(set(pool.buckets)) != pool.buckets:
                yield Problem((*here, "buckets"), "write bounds in rising order, each once")
            if pool.step_tokens < pool.slots + KV_BLOCK:
                yield Problem(
                    (*here, "step_tokens"),
                    f"{pool.step_tokens} tokens a step leave no room for prefill beside "
                    f"{pool.slots} slots; write {pool.slots + KV_BLOCK} or more",
                )
            context = self.models[pool.model].context if pool.model in self.models else None
            usable = pool.kv_tokens // KV_BLOCK * KV_BLOCK
            if context is not None and usable < context:
                yield Problem(
                    (*here, "kv_tokens"),
                    f"{pool.kv_tokens} tokens ({usable} in whole blocks of {KV_BLOCK}) cannot hold "
                    f"the model's context of {context}; write "
                    f"{-(-context // KV_BLOCK) * KV_BLOCK} or more",
                )

    def _route_problems(self) -> Iterator[Problem]:
        seen: dict[str, int] = {}
        for index, route in enumerate(self.routes):
            here: Path = ("routes", index)
            if route.pool not in self.pools:
                yield Problem((*here, "pool"), _unknown("pool", route.pool, self.pools))
            if route.match.tenant is not None and route.match.tenant not in self.tenants:
                yield Problem(
                    (*here, "match", "tenant"),
                    _unknown("tenant", route.match.tenant, self.tenants),
                )
            if route.match.model is not None and route.match.model not in self.models:
                yield Problem(
                    (*here, "match", "model"), _unknown("model", route.match.model, self.models)
                )
            name = self.route_name(index)
            if name in seen:
                yield Problem((*here, "name"), f"{name!r} is already routes[{seen[name]}]")
            seen.setdefault(name, index)

    def _tenant_problems(self) -> Iterator[Problem]:
        owner: dict[str, str] = {}
        for name, tenant in self.tenants.items():
            names: set[str] = set()
            for index, key in enumerate(tenant.api_keys()):
                here: Path = ("tenants", name, "keys", index)
                if key.hash in owner:
                    yield Problem(
                        here,
                        f"this key already belongs to tenant {owner[key.hash]!r}; make a new one",
                    )
                owner.setdefault(key.hash, name)
                if key.name is not None and key.name in names:
                    yield Problem((*here, "name"), f"{key.name!r} is taken; take another")
                names.add(key.name or "")

    def _port_problems(self) -> Iterator[Problem]:
        taken = {self.bus.port: "bus.port"}
        for door in ("grpc", "http"):
            port = int(getattr(self.stages.egress, door).rpartition(":")[2])
            if port in taken:
                yield Problem(
                    ("stages", "egress", door),
                    f"port {port} is already {taken[port]}; take another",
                )
            taken.setdefault(port, f"stages.egress.{door}")


def _unknown(kind: str, value: str, known: Iterable[str]) -> str:
    close = get_close_matches(value, known, n=1)
    if close:
        return f"unknown {kind} {value!r}; did you mean {close[0]!r}?"
    return f"unknown {kind} {value!r}; known: {', '.join(sorted(known)) or 'none'}"
