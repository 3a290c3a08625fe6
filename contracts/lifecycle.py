"""Generations of the topology: what is stored, what a change consists of, how it is asked for."""

from typing import Literal

from pydantic import Field

from contracts.internal import Internal
from contracts.topology import Topology

Reason = Literal["start", "apply", "watch", "keys", "rollback"]


class Generation(Internal):
    """One generation (bucket HR_TOPOLOGY, key `spec`; the next one under `candidate` while it is
    being prepared). Its history is the bucket's."""

    generation: int = Field(description="1, 2, …; grows by one with every change")
    topology: Topology
    text: str = Field(description="the file's text, for `rollback` and `history`")
    reason: Reason
    applied_ms: float
    undoes: int | None = Field(None, description="of a rollback: the generation it went back to")


class Actuals(Internal):
    """What was decided while running (key `actuals`); the spec clamps it."""

    executors: dict[str, int] = Field(default_factory=dict, description="wanted, by pool")

    def executors_of(self, topology: Topology, pool: str) -> int:
        """Executors that a pool should have: within its min and max, min where nothing is said."""
        bounds = topology.pools[pool].executors
        return min(max(self.executors.get(pool, bounds.min), bounds.min), bounds.max)


Effect = Literal["live", "start", "stop", "replace", "restart"]


class Change(Internal):
    """One difference between two topologies."""

    kind: Literal["add", "change", "remove"]
    path: str = Field(description="dotted key, for example pools.small.price.accelerator_hour")
    before: str | None = Field(None, description="as YAML; keys only by their id")
    after: str | None = None
    effect: Effect = Field(
        description="live = running processes take it over; start, stop, replace = processes begin, "
        "end or are replaced one by one; restart = only `down` and `up` can do it"
    )


class ApplyCall(Internal):
    """Make this text the running topology (on `hr.control.apply`).

    Control answers with several `ApplyEvent`s on the reply subject, at least one a second, the last
    one `done` or `failed`.
    """

    text: str
    file: str = Field(description="its name in messages")
    base: int | None = Field(
        None, description="generation the caller has seen; another one running is a conflict"
    )
    reason: Reason = "apply"
    undoes: int | None = None


class ApplyEvent(Internal):
    """A step of a change, or its end."""

    event: Literal["step", "working", "done", "failed"]
    text: str = Field(description="what was done, or why it failed and what serves now")
    generation: int = Field(description="that serves now")


class PrepareCall(Internal):
    """Could this process serve that generation? It loads what it needs; answered by `Done` or an
    error, which stops the change."""

    generation: Generation
