"""From one generation of the topology to the next, while requests run; all of it or nothing."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from contracts.errors import ErrorCode, HeadraceError
from contracts.lifecycle import Actuals, ApplyCall, Change, Generation
from contracts.topology import Topology
from stages.control.allowed import clamped, refuse_what_needs_a_restart
from stages.control.astray import astray
from stages.control.diff import diff
from stages.control.fleet import Fleet, StartError
from stages.control.generations import Generations, Stored
from stages.control.order import EXECUTOR, ProcessSpec, Steps, reconcile
from stages.control.retire import Retire
from stages.control.takeover import Takeover
from stages.runtime.bus import Bus
from stages.runtime.limits import EXECUTOR_READY_S
from stages.runtime.topology_file import Report, parse_topology

_SLACK_S: Final = 30.0  # on top of the fleet's own limit of a start

Planner = Callable[[Topology, Actuals], list[ProcessSpec]]
Tell = Callable[[str], None]

log = logging.getLogger("headrace.change")


class Host(Protocol):
    """What control itself has to do for a generation: it, too, serves one."""

    def check(self, report: Report) -> None:
        """Add to the report what this machine lacks for it (called in a thread)."""

    def expect(self, candidate: Generation) -> None:
        """Processes will be started for a generation that may come."""

    async def take(self, generation: Generation) -> None:
        """It serves now: streams, users of the bus, prices of lost time. Raises `HeadraceError`."""


@dataclass(frozen=True)
class _Move:
    """A change that has been found possible on paper."""

    base: Stored
    candidate: Generation
    actuals: Actuals
    steps: Steps
    changes: list[Change]
    inherited: list[str]  # run already, for this candidate's sake: of a control that died over it

    @property
    def staying(self) -> list[str]:
        """Processes that serve the candidate."""
        return [one.instance for one in self.steps.wanted]


class Changer:
    """One change at a time, each step with a deadline."""

    def __init__(
        self, bus: Bus, generations: Generations, fleet: Fleet, planner: Planner, host: Host
    ) -> None:
        self._generations = generations
        self._fleet = fleet
        self._planner = planner
        self._host = host
        self._takeover = Takeover(bus, fleet)
        self._retire = Retire(bus, fleet)
        self._turn = asyncio.Lock()
        self._taken = 0
        self.doing: str | None = None  # the change in progress and its step, for the status

    async def apply(self, call: ApplyCall, tell: Tell) -> str:
        """Make the call's text the topology; returns what was done in one sentence.

        Raises `HeadraceError` with the reason when it is not; the old generation serves then.
        """
        if self.doing is not None:
            raise HeadraceError(
                ErrorCode.CONFLICT,
                f"one change at a time, and one is being made ({self.doing}); try again after it",
                retry_after_s=2.0,
            )

        def step(text: str) -> None:
            self.doing = f"{call.reason}: {text}"
            log.info("%s: %s", call.reason, text)
            tell(text)

        self.doing = call.reason
        try:
            async with self._turn:  # a repair in progress ends first
                return await self._apply(call, step)
        finally:
            self.doing = None

    async def apply_quietly(self, call: ApplyCall) -> str:
        """`apply` for whom only the end counts."""
        return await self.apply(call, lambda _: None)

    async def _apply(self, call: ApplyCall, tell: Tell) -> str:
        base = await self._base(call)
        topology = await self._checked(call)
        actuals = clamped(await self._generations.actuals(), topology)
        changes = diff(base.generation.topology, topology, actuals)
        refuse_what_needs_a_restart(changes)
        steps = reconcile(self._planner(topology, actuals), self._fleet.specs().values())
        if not changes:
            await self._repair()
            return f"nothing to change: generation {base.generation.generation} is just this"
        candidate = await self._generations.next_one(topology, call.text, call.reason, call.undoes)
        move = _Move(
            base, candidate, actuals, steps, changes, self._inherited(base, actuals, steps)
        )
        tell(f"generation {candidate.generation} with {_count(changes, 'change')}")
        await self._before(move, tell)
        await self._after(move, tell)
        await self._generations.keep_actuals(actuals)
        await self._retire.all(steps.surplus, candidate, tell)
        return f"generation {candidate.generation} serves"

    def _inherited(self, base: Stored, actuals: Actuals, steps: Steps) -> list[str]:
        wanted = self._planner(base.generation.topology, actuals)
        strangers = reconcile(wanted, self._fleet.specs().values()).surplus
        return [one.instance for one in strangers if one in steps.keep]

    async def _base(self, call: ApplyCall) -> Stored:
        base = await self._generations.spec()
        if base is None:
            raise HeadraceError(ErrorCode.INTERNAL, "no generation is stored yet; is it starting?")
        now = base.generation.generation
        if call.base is not None and call.base != now:
            raise HeadraceError(
                ErrorCode.CONFLICT,
                f"generation {now} serves, this change was made for generation {call.base}; "
                "look at `headrace plan` and try again",
            )
        return base

    async def _checked(self, call: ApplyCall) -> Topology:
        """The text, with every mistake named if there is one."""

        def check() -> Report:
            report = parse_topology(call.text, call.file)
            self._host.check(report)
            return report

        report = await asyncio.to_thread(check)
        if report.topology is None:
            mistakes = "\n".join(one.text(report.file) for one in report.errors)
            raise HeadraceError(ErrorCode.INVALID_REQUEST, mistakes)
        return report.topology

    async def _before(self, move: _Move, tell: Tell) -> None:
        """Up to the moment when it serves; a failure leaves nothing of it."""
        committing = False
        try:
            await self._generations.announce(move.candidate)
            self._host.expect(move.candidate)
            await self._start(move, tell)
            ready = await self._takeover.prepare(move.candidate, move.staying)
            tell(f"{ready} processes are prepared for it")
            committing = True
            await self._generations.commit(move.candidate, move.base.revision)
        except Exception as error:
            if committing and not _certain(error):
                raise HeadraceError(
                    ErrorCode.INTERNAL,
                    f"{error}; whether generation {move.candidate.generation} serves is not known, "
                    "`headrace history` says so once the bus is back",
                ) from error
            await self._withdraw(move, tell)
            raise _told(error) from error
        tell(f"generation {move.candidate.generation} is the one that serves")

    async def _start(self, move: _Move, tell: Tell) -> None:
        """New processes. Stages start with what serves, and are prepared as their siblings are: only
        an executor may need what is new."""
        started = move.steps.start
        names = [*move.inherited, *(one.instance for one in started)]
        if not names:
            return
        for one in started:
            which = move.candidate if one.stage == EXECUTOR else move.base.generation
            self._fleet.start(one, which.generation)
        tell(f"starting {', '.join(names)}")
        limit_s = EXECUTOR_READY_S + _SLACK_S
        try:
            async with asyncio.timeout(limit_s):
                await self._fleet.until_ready(names)
        except TimeoutError:
            raise StartError(f"{', '.join(names)}: not ready within {limit_s:.0f} s") from None
        tell(f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} ready")

    async def _withdraw(self, move: _Move, tell: Tell) -> None:
        """End what was started for a generation that does not come."""
        try:
            await self._retire.started(move.steps.start, tell)
            await self._generations.withdraw()
        except Exception:  # the reason of the failure matters more; `repair` sees to the rest
            log.exception("generation %d is not fully undone", move.candidate.generation)

    async def _after(self, move: _Move, tell: Tell) -> None:
        """It serves: everyone takes it over, or it is undone by one more generation."""
        try:
            await self._host.take(move.candidate)
            await self._takeover.until_serving(move.candidate.generation, move.staying)
            self._taken = move.candidate.generation
            tell(f"all processes serve generation {move.candidate.generation}")
        except Exception as error:
            reason = _told(error)
            tell(f"going back: {reason}")
            back = await self._go_back(move, tell)
            code, text = reason.info.code, str(reason)
            raise HeadraceError(
                code,
                f"{text}; generation {back} has the topology of generation "
                f"{move.base.generation.generation} again",
            ) from error

    async def _go_back(self, move: _Move, tell: Tell) -> int:
        old = move.base.generation
        back = await self._generations.next_one(
            old.topology, old.text, "rollback", undoes=old.generation
        )
        written = await self._generations.spec()
        assert written is not None
        await self._generations.commit(back, written.revision)
        try:
            await self._host.take(back)
            running = [one.instance for one in move.steps.keep + move.steps.surplus]
            await self._takeover.until_serving(back.generation, running)
            self._taken = back.generation
        except HeadraceError as error:  # each process goes on trying; `headrace plan` shows it
            tell(f"{error}; they go on trying")
        await self._withdraw(move, tell)
        return back.generation

    async def astray(self) -> list[str]:
        """Processes that are not what the generation that serves wants; empty during a change."""
        spec = await self._generations.spec()
        if spec is None or self.doing is not None:
            return []
        generation = spec.generation
        wanted = self._planner(generation.topology, await self._generations.actuals())
        steps = reconcile(wanted, self._fleet.specs().values())
        return astray(steps, generation, self._fleet.beat)

    async def repair(self) -> None:
        """Make what runs what should run: after a control that ended in the middle of a change.

        Its generation either serves (then its surplus is stopped here) or never did (then what was
        started for it is the surplus). To be called now and then; does nothing during a change.
        """
        if self.doing is not None:
            return
        async with self._turn:
            await self._repair()

    async def _repair(self) -> None:
        spec = await self._generations.spec()
        if spec is None:
            return
        generation = spec.generation
        if generation.generation > self._taken:
            await self._host.take(generation)
            self._taken = generation.generation
        actuals = await self._generations.actuals()
        wanted = self._planner(generation.topology, actuals)
        steps = reconcile(wanted, self._fleet.specs().values())
        for one in steps.start:
            log.warning("%s is missing and is started", one.instance)
            self._fleet.start(one, generation.generation)
        await self._retire.replaced(steps, generation)


def _certain(error: Exception) -> bool:
    """Whether the bucket has said no (rather than nothing)."""
    return isinstance(error, HeadraceError) and error.info.code == ErrorCode.CONFLICT


def _told(error: Exception) -> HeadraceError:
    if isinstance(error, HeadraceError):
        return error
    if isinstance(error, StartError):
        return HeadraceError(ErrorCode.INTERNAL, str(error))
    log.error("a change failed", exc_info=error)
    return HeadraceError(ErrorCode.INTERNAL, f"{type(error).__name__}: {error}")


def _count(things: Sequence[object], name: str) -> str:
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"
