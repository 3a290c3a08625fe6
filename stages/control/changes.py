"""Changes of the running topology as control offers them: on the bus, by the file, by itself."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from stages.control.apply_door import ApplyDoor
from stages.control.change import Changer, Host, Planner
from stages.control.fleet import Fleet
from stages.control.generations import Generations
from stages.control.watch import Watch
from stages.runtime.bus import Bus
from stages.runtime.loops import forever

REPAIR_S: Final = 3.0

Tell = Callable[[str, str], None]


class Changes:
    """The one changer of a pipeline and its callers."""

    def __init__(
        self, bus: Bus, generations: Generations, fleet: Fleet, planner: Planner, host: Host
    ) -> None:
        self._changer = Changer(bus, generations, fleet, planner, host)
        self._door = ApplyDoor(bus, self._changer, generations)
        self._watch: Watch | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, watched: Path | None, served: str, tell: Tell) -> None:
        """Take calls, repair what differs, follow the file if there is one to be `watched`.

        `served`: the text of the generation that serves.
        """
        await self._door.start()
        loop = asyncio.get_running_loop()
        repairing = forever("comparing processes with the topology", self._changer.repair, REPAIR_S)
        self._tasks = [loop.create_task(repairing)]
        if watched is not None:
            self._watch = watch = Watch(watched, served, self._changer.apply_quietly, tell)
            following = forever("following the topology file", watch.run, REPAIR_S)
            self._tasks.append(loop.create_task(following))

    async def stop(self) -> None:
        """Begin nothing any more; a change in progress is left to the next start."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)
        await self._door.stop()

    @property
    def doing(self) -> str | None:
        """The change that is being made, with its step."""
        return self._changer.doing

    @property
    def problem(self) -> str | None:
        """Why the last save of the file is not what serves."""
        return self._watch.problem if self._watch else None

    async def astray(self) -> list[str]:
        """Processes that are not what the generation wants. Raises `HeadraceError`."""
        return await self._changer.astray()
