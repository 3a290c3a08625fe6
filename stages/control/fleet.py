"""The processes of a pipeline as whoever changes it sees them."""

from collections.abc import Collection, Mapping
from typing import Protocol

from contracts.internal import Beat
from stages.control.order import ProcessSpec


class StartError(RuntimeError):
    """A process did not start; the message says which and why."""


class Fleet(Protocol):
    """Kept running by control: started, watched, restarted, adopted after control's own restart."""

    def specs(self) -> Mapping[str, ProcessSpec]:
        """What is kept running, by instance name (nats-server is not among them)."""

    def start(self, spec: ProcessSpec, generation: int) -> None:
        """Begin to keep a process running that serves `generation` (or a later one) of the topology."""

    async def until_ready(self, instances: Collection[str]) -> None:
        """Return when all are ready. Raises `StartError` as soon as one keeps failing."""

    async def stop(self, instance: str, grace_s: float) -> None:
        """Drain and end a process within `grace_s`, and keep it running no more."""

    def beat(self, instance: str) -> Beat | None:
        """The last beat of its present incarnation; None before the first."""
