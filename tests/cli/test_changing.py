"""`headrace plan | apply | history | rollback` against control over small real stages."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from contracts.lifecycle import Actuals, Change, Generation
from contracts.topology import Topology
from stages.cli import app
from stages.cli.rollback import choose, returning_keys
from stages.control.order import ProcessSpec, plan
from stages.control.progress import Progress
from stages.control.service import Control
from stages.control.state import StateFolder
from stages.runtime.clock import now_ms
from stages.runtime.topology_file import load_topology
from tests.support.stages import topology
from tests.support.topologies import write_topology

NEW_KEY = "sha256:" + "0123456789ab" + "c" * 52


def few(wanted: Topology, actuals: Actuals) -> list[ProcessSpec]:
    """Enough processes to see everything, as dummies."""
    found = [one for one in plan(wanted, actuals) if one.stage in ("queueing", "gpu_worker")]
    return [replace(one, module="tests.support.dummy_stage") for one in found]


class Pipeline:
    """Control in this process and the command line beside it."""

    def __init__(self, file: Path, folder: StateFolder, control: Control) -> None:
        self.file = file
        self.folder = folder
        self.control = control
        self.events: list[dict[str, Any]] = []

    def edit(self, before: str, after: str) -> None:
        text = self.file.read_text()
        assert before in text
        self.file.write_text(text.replace(before, after, 1))

    async def headrace(self, *words: str, code: int = 0) -> Result:
        state = ["--state", str(self.folder.root)]
        done = await asyncio.to_thread(CliRunner().invoke, app, [*words, *state])
        assert done.exit_code == code, done.output
        return done

    def pids(self) -> dict[str, int | None]:
        report = self.control.status()
        return {one.instance: one.pid for one in (*report.stages, *report.executors)}


@pytest.fixture
async def pipeline(tmp_path: Path) -> AsyncIterator[Pipeline]:
    (tmp_path / "model").mkdir()
    file = write_topology(tmp_path, source=str(tmp_path / "model"))
    read = load_topology(file)
    assert read.topology is not None
    assert read.text is not None
    folder = StateFolder(tmp_path / "state")
    folder.make()
    begin = Generation(
        generation=0, topology=read.topology, text=read.text, reason="start", applied_ms=now_ms()
    )
    control = Control(begin, file, folder, Progress(), few)
    lock = folder.lock()
    assert lock is not None
    with lock:
        await control.start()
        yield Pipeline(file, folder, control)
        await control.stop()


async def test_a_day_of_changes(pipeline: Pipeline) -> None:
    pids = pipeline.pids()
    assert "no changes: generation 1" in (await pipeline.headrace("plan")).stdout

    pipeline.edit('"threads": 1', '"threads": 1, "price": {"accelerator_hour": 0.5}')
    shown = (await pipeline.headrace("plan")).stdout
    assert "~ pools.small.price.accelerator_hour  0.0 → 0.5  (live)" in shown
    await pipeline.headrace("plan", "--exit-code", code=2)
    done = await pipeline.headrace("apply")
    assert "generation 2 serves" in done.stdout
    assert pipeline.pids() == pids

    pipeline.edit('"keys": [', f'"keys": ["{NEW_KEY}", ')
    pipeline.edit('"threads": 1', '"threads": 1, "executors": {"min": 2, "max": 2}')
    planned = json.loads((await pipeline.headrace("plan", "--json")).stdout)
    assert {one["effect"] for one in planned["changes"]} == {"start", "live"}
    assert NEW_KEY.removeprefix("sha256:") not in json.dumps(planned)
    applied = json.loads((await pipeline.headrace("apply", "--json")).stdout)
    assert applied["ok"]
    assert applied["generation"] == 3
    assert "small-1 is ready" in applied["steps"]
    assert pipeline.pids() == {**pids, "small-1": pipeline.pids()["small-1"]}

    good = pipeline.file.read_text()
    pipeline.edit('"threads": 1', '"threads": 0, "kv_tokens": "4k"')
    for command in ("plan", "apply"):
        done = await pipeline.headrace(command, code=1)
        assert "pools.small.threads" in done.output
        assert "kv_tokens" in done.output
    assert "nothing was changed" in done.output
    pipeline.file.write_text(good)
    pipeline.edit(str(pipeline.file.parent / "model"), "hf:nobody/nothing")
    done = await pipeline.headrace("apply", code=1)
    assert "headrace models pull hf:nobody/nothing" in done.output
    assert "generation 3 serves" in done.output
    pipeline.file.write_text(good)

    history = json.loads((await pipeline.headrace("history", "--json")).stdout)["generations"]
    assert [one["generation"] for one in history] == [3, 2, 1]
    shown = (await pipeline.headrace("history")).stdout
    assert "when (UTC)" in shown
    assert re.search(r"[+~]pools\.small\.price", shown), shown

    await pipeline.headrace("rollback")
    assert pipeline.pids() == pids
    done = await pipeline.headrace("rollback", "3", code=1)
    assert "would work again: demo 0123456789ab" in done.output
    await pipeline.headrace("rollback", "2", "--write")
    assert "0.5" in pipeline.file.read_text()
    assert pipeline.control.current.generation == 4, "it was that one already"
    await pipeline.headrace("rollback", "1", "--write")
    assert "0.5" not in pipeline.file.read_text()
    assert pipeline.control.current.undoes == 1
    assert pipeline.pids() == pids
    status = json.loads((await pipeline.headrace("status", "--json")).stdout)
    assert status["astray"] == []
    assert status["drift"] is None


async def test_a_pool_whose_executor_does_not_start_is_told_with_its_last_words(
    pipeline: Pipeline,
) -> None:
    pids = pipeline.pids()
    (pipeline.folder.root / "dummy").mkdir()
    (pipeline.folder.root / "dummy" / "big-0.start").write_text("weights are cut short")
    pipeline.edit('"pools": {', '"pools": {"big": {"model": "smollm", "kv_tokens": 4096}, ')
    done = await pipeline.headrace("apply", code=1)
    assert "failed: big-0 does not start: exit code 1" in done.output
    assert "weights are cut short" in done.output
    assert done.output.rstrip().endswith("generation 1 serves")
    assert pipeline.pids() == pids
    assert pipeline.control.status().problems == []


async def test_without_a_pipeline_there_is_nothing_to_change(tmp_path: Path) -> None:
    for words in (["plan"], ["apply"], ["history"], ["rollback"]):
        done = CliRunner().invoke(app, [*words, "--state", str(tmp_path)])
        assert done.exit_code == 3
        assert "headrace up" in done.output


def generation(number: int, undoes: int | None = None) -> Generation:
    return Generation(
        generation=number,
        topology=topology(),
        text="",
        reason="apply" if undoes is None else "rollback",
        applied_ms=0,
        undoes=undoes,
    )


def test_each_rollback_goes_one_further() -> None:
    kept = [generation(1), generation(2), generation(3)]
    assert choose(kept, kept[2], None).generation == 2
    kept.append(generation(4, undoes=2))
    assert choose(kept, kept[3], None).generation == 1
    assert choose(kept, kept[3], 3).generation == 3
    kept.append(generation(5, undoes=1))
    with pytest.raises(LookupError, match="no generation before 1"):
        choose(kept, kept[4], None)
    with pytest.raises(LookupError, match="generation 9 is not kept; known: 1, 2"):
        choose(kept, kept[4], 9)


@pytest.mark.parametrize(
    ("kind", "path", "after", "found"),
    [
        ("add", "tenants.a.keys.0123", "{}", ["a 0123"]),
        ("change", "tenants.a.keys.0123.expires", "null", ["a 0123"]),
        ("remove", "tenants.a.keys.0123", None, []),
        ("add", "tenants.a", "{keys: {}}", []),
        ("add", "tenants.a", "{keys: {0123: {}}}", ["a (whole tenant)"]),
        ("change", "pools.p.threads", "1", []),
    ],
)
def test_keys_that_come_back_are_seen(
    kind: Any, path: str, after: str | None, found: list[str]
) -> None:
    change = Change(kind=kind, path=path, after=after, effect="live")
    assert returning_keys([change]) == found


def test_both_spellings_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    file = str(write_topology(tmp_path, source=str(tmp_path / "model")))
    for words in ([file], ["--topology", file], [file, "--topology", file]):
        done = CliRunner().invoke(app, ["check", "--file-only", *words])
        assert done.exit_code == 0, done.output
    done = CliRunner().invoke(app, ["check", file, "--topology", "other.yaml"])
    assert done.exit_code == 2
    assert "name one" in " ".join(done.output.split())
