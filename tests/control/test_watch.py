"""`up --watch`: what is saved is applied, what is broken is told."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from contracts.errors import ErrorCode, HeadraceError
from contracts.lifecycle import ApplyCall
from stages.control.watch import Watch
from tests.support.topologies import write_topology
from tests.support.waiting import eventually


class Applied:
    """What was asked for; refuses what it is told to."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.told: list[tuple[str, str]] = []
        self.refuse: HeadraceError | None = None

    async def apply(self, call: ApplyCall) -> str:
        if self.refuse is not None:
            raise self.refuse
        assert call.reason == "watch"
        self.texts.append(call.text)
        return "generation 2 serves"

    def tell(self, event: str, text: str) -> None:
        self.told.append((event, text))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_topology(tmp_path)


def in_place(file: Path, text: str) -> None:
    file.write_text(text)


def renamed(file: Path, text: str) -> None:
    """As editors save."""
    draft = file.with_suffix(".draft")
    draft.write_text(text)
    draft.rename(file)


def relinked(file: Path, text: str) -> None:
    """As mounted configurations are replaced: the file is a link, and what it leads to changes."""
    other = file.parent / "elsewhere"
    other.mkdir(exist_ok=True)
    target = other / f"{len(list(other.iterdir()))}.yaml"
    target.write_text(text)
    link = file.with_suffix(".link")
    link.symlink_to(target)
    link.replace(file)


async def following(watch: Watch, work: Callable[[], Awaitable[None]]) -> None:
    running = asyncio.create_task(watch.run())
    try:
        await work()
    finally:
        running.cancel()
        await asyncio.wait({running}, timeout=30)
        assert running.cancelled()


@pytest.mark.parametrize("save", [in_place, renamed, relinked])
async def test_each_save_is_applied(file: Path, save: Callable[[Path, str], None]) -> None:
    applied = Applied()
    text = file.read_text()
    watch = Watch(file, text, applied.apply, applied.tell)

    async def work() -> None:
        for number in (1, 2):
            new = text + "\n" * number
            save(file, new)
            await eventually(lambda: applied.texts[-1:] == [new])  # noqa: B023

    await following(watch, work)
    assert watch.problem is None


async def test_a_save_while_nobody_watched_counts(file: Path) -> None:
    applied = Applied()
    watch = Watch(file, "another text", applied.apply, applied.tell)
    await watch.look()
    await watch.look()
    assert applied.texts == [file.read_text()]


async def test_a_broken_save_is_told_once_and_the_next_good_one_applied(file: Path) -> None:
    applied = Applied()
    text = file.read_text()
    watch = Watch(file, text, applied.apply, applied.tell)
    for broken in ("version: 1\npools: [", "", text.replace("small", "smal", 1)):
        file.write_text(broken)
        await watch.look()
        await watch.look()
        assert watch.problem is not None
        assert "the last save of topology.yaml is refused" in watch.problem
    file.unlink()
    await watch.look()
    assert "no such file" in str(watch.problem)
    assert [event for event, _ in applied.told] == ["refused"] * 4
    assert applied.texts == []
    file.write_text(text + "\n")
    await watch.look()
    assert watch.problem is None
    assert applied.texts == [text + "\n"]


async def test_what_is_refused_is_not_tried_again_and_what_has_to_wait_is(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stages.control.watch._AGAIN_S", 0.0)
    applied = Applied()
    watch = Watch(file, "", applied.apply, applied.tell)
    applied.refuse = HeadraceError(ErrorCode.CONFLICT, "one change at a time")
    await watch.look()
    assert "not applied yet: one change at a time" in str(watch.problem)
    assert applied.told == []
    applied.refuse = HeadraceError(ErrorCode.INTERNAL, "big-0 does not start")
    await watch.look()
    applied.refuse = None
    await watch.look()
    assert applied.texts == [], "until it is saved again"
    assert "big-0 does not start" in str(watch.problem)
    file.write_text(file.read_text() + "\n")
    await watch.look()
    assert len(applied.texts) == 1


async def test_a_save_that_had_to_wait_and_was_taken_back_is_no_problem_any_more(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What made it wait may have been that very text: what the file says now must serve."""
    monkeypatch.setattr("stages.control.watch._AGAIN_S", 0.0)
    applied = Applied()
    text = file.read_text()
    watch = Watch(file, text, applied.apply, applied.tell)
    applied.refuse = HeadraceError(ErrorCode.CONFLICT, "one change at a time")
    file.write_text(text + "\n")
    await watch.look()
    assert watch.problem is not None
    file.write_text(text)
    applied.refuse = None
    await watch.look()
    assert watch.problem is None
    assert applied.texts == [text]
