"""`headrace keys` on a file: what is written, what is shown, what is left alone."""

import asyncio
import hashlib
import json
import stat
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg
from typer.testing import CliRunner, Result

from contracts import subjects
from contracts.lifecycle import ApplyCall, ApplyEvent, Generation
from contracts.topology import KeySection
from stages.cli.keys import force
from stages.cli.keys.command import app
from stages.cli.keys.file import Document, KeysError, read
from stages.cli.keys.moment import expiry
from stages.cli.keys.rows import find, rows
from stages.control.state import StateFolder
from stages.runtime.bus import Bus
from stages.runtime.topology_file import parse_topology
from tests.support.topologies import KEY_HASH, write_topology

NOW = datetime(2027, 1, 1, tzinfo=UTC)
BLOCK = """\
# our service
version: 1
models: {m: {source: smollm2-135m-instruct}}
pools:
  p: {model: m}    # small
routes: [{pool: p}]
tenants:
    demo:
        keys:
        # the first
        - "sha256:8a6372a1a33e8bab9d2d841147579f0a80de6ff6a3f367bc55c45271a0dee454"   # keep
        -   hash: "sha256:0000000000000000000000000000000000000000000000000000000000000000"
            name: laptop

stages: {ingress: {replicas: 2}}
"""
FLOW = BLOCK[: BLOCK.index("tenants")] + f'tenants: {{demo: {{keys: ["{KEY_HASH}"]}}}} # end'
run = CliRunner()


def keys(folder: Path, *words: str) -> Result:
    where = ["--topology", str(folder / "topology.yaml"), "--state", str(folder / "state")]
    return run.invoke(app, [*words, *where])


def hashed(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def document(text: str) -> Document:
    topology = parse_topology(text, "topology.yaml").topology
    assert topology is not None
    return Document(Path("topology.yaml"), text, topology)


@pytest.mark.parametrize(
    "shape", [lambda text: text, lambda text: text.replace("\n", "\r\n")], ids=["lf", "crlf"]
)
@pytest.mark.parametrize("text", [BLOCK, FLOW], ids=["block", "flow"])
def test_a_key_put_in_and_taken_out_leaves_every_other_byte(
    text: str, shape: Callable[[str], str]
) -> None:
    before = document(shape(text))
    key = KeySection(hash=hashed("a"), name="ci", scopes=["chat"], expires="2030-01-01T00:00:00Z")
    after = before.with_key("demo", key, new_tenant=False)
    assert after.topology.tenants["demo"].api_keys()[-1] == key
    assert after.without_key("demo", key).text == before.text
    for line in before.text.splitlines():
        assert line in after.text or "keys: [" in line


@pytest.mark.parametrize("text", [BLOCK, FLOW], ids=["block", "flow"])
def test_a_new_tenant_and_a_tenant_without_keys(text: str) -> None:
    one = KeySection(hash=hashed("a"))
    made = document(text).with_key("acme", one, new_tenant=True)
    assert made.topology.tenants["acme"].keys == [hashed("a")]
    for key in made.topology.tenants["demo"].api_keys():
        made = made.without_key("demo", key)
    assert made.topology.tenants["demo"].keys == []
    again = made.with_key("demo", KeySection(hash=hashed("b")), new_tenant=False)
    assert again.topology.tenants["demo"].keys == [hashed("b")]


def test_a_file_that_says_one_thing_in_two_places_is_left_alone() -> None:
    shared = FLOW.replace("tenants: {demo: {", "tenants: {acme: &e {keys: []}, b: *e, demo: {")
    with pytest.raises(KeysError, match="already belongs to tenant"):
        document(shared).with_key("acme", KeySection(hash=hashed("a")), new_tenant=False)


def test_create_prints_the_key_once_and_keeps_its_hash(tmp_path: Path) -> None:
    file = write_topology(tmp_path)
    file.chmod(0o640)
    done = keys(tmp_path, "create", "demo", "--name", "ci", "--scope", "chat", "--expires", "30d")
    assert done.exit_code == 0, done.output
    secret = done.stdout.strip()
    assert secret.startswith("hr-demo-")
    assert len(secret) >= len("hr-demo-") + 43  # 256 bits
    assert secret not in done.stderr
    assert secret not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert [one.name for one in tmp_path.iterdir()] == ["topology.yaml"]
    [_, key] = read(file).topology.tenants["demo"].api_keys()
    assert key.hash == hashed(secret)
    assert (key.name, key.scopes) == ("ci", ["chat"])

    listed = json.loads(keys(tmp_path, "list", "--json").stdout)
    assert [(one["tenant"], one["name"], one["state"]) for one in listed] == [
        ("demo", None, "active"),
        ("demo", "ci", "active"),
    ]
    assert hashed(secret)[10:] not in json.dumps(listed)
    assert keys(tmp_path, "revoke", key.id).exit_code == 0
    assert [one.hash for one in read(file).topology.tenants["demo"].api_keys()] == [KEY_HASH]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("create", "acme"), "--new-tenant"),
        (("create", "demo", "--new-tenant"), "leave out --new-tenant"),
        (("create", "a b", "--new-tenant"), "TENANT"),
        (("create", "demo", "--scope", "fly"), "generate, chat"),
        (("create", "demo", "--name", "a b"), "--name"),
        (("create", "demo", "--expires", "soon"), "30d"),
        (("create", "demo", "--expires", "999999w"), "30d"),
        (("create", "demo", "--expires", "2020-01-01T00:00:00Z"), "over already"),
        (("revoke", "nothing"), "'nothing'"),
    ],
)
def test_what_cannot_be_done_changes_nothing(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    file = write_topology(tmp_path)
    before = file.read_bytes()
    done = keys(tmp_path, *words)
    assert done.exit_code == 1
    assert said in done.stderr
    assert done.stdout == ""
    assert file.read_bytes() == before


def test_a_key_given_where_its_id_belongs_is_not_repeated(tmp_path: Path) -> None:
    write_topology(tmp_path)
    assert "secret" not in keys(tmp_path, "revoke", "hr-demo-secret").output


def test_expiry() -> None:
    assert expiry("30d", NOW) == "2027-01-31T00:00:00Z"
    assert expiry("90m", NOW) == "2027-01-01T01:30:00Z"
    assert expiry("2027-02-01T02:00:00+02:00", NOW) == "2027-02-01T00:00:00Z"


def test_the_state_of_a_key() -> None:
    ended = KeySection(hash=hashed("old"), expires="2026-12-31T00:00:00Z")
    written = document(FLOW).with_key("demo", ended, new_tenant=False)
    serving = document(FLOW).with_key("demo", KeySection(hash=hashed("b")), new_tenant=False)
    written = written.with_key("demo", KeySection(hash=hashed("c")), new_tenant=False)
    states = {
        one.key.hash: one.state.partition(":")[0]
        for one in rows(written.topology, serving.topology, NOW)
    }
    assert states == {
        KEY_HASH: "active",
        hashed("old"): "expired",
        hashed("b"): "revoked in the file, still in force",
        hashed("c"): "not in force yet",
    }


# With a pipeline: control is played by hand, its bus is real


class Scripted:
    """Control's side of `hr.control.apply`, and the generation that serves."""

    def __init__(self, bus: Bus, text: str, *answers: Any) -> None:
        self.bus, self.text, self.answers = bus, text, list(answers)
        self.calls: list[ApplyCall] = []

    async def start(self) -> None:
        self.bucket = await self.bus.js.create_key_value(bucket=subjects.TOPOLOGY_BUCKET)
        await self.serve(1, self.text)
        await self.bus.client.subscribe(subjects.APPLY, cb=self.answer)

    async def serve(self, number: int, text: str) -> None:
        generation = Generation(
            generation=number, topology=document(text).topology, text=text, reason="start",
            applied_ms=0,
        )  # fmt: skip
        await self.bucket.put(subjects.TOPOLOGY_SPEC, generation.model_dump_json().encode())

    async def answer(self, msg: Msg) -> None:
        self.calls.append(ApplyCall.model_validate_json(msg.data))
        for event in self.answers.pop(0):
            await self.bus.publish(msg.reply, event)


def said(event: Any, text: str, generation: int = 1) -> ApplyEvent:
    return ApplyEvent(event=event, text=text, generation=generation)


async def test_the_change_is_asked_of_control_until_it_is_in_force(
    bus: Bus, tmp_path: Path
) -> None:
    busy = said("failed", "one change at a time, and one is being made")
    control = Scripted(
        bus, FLOW, [said("step", "a"), busy], [said("working", "b"), said("done", "c", 2)]
    )
    await control.start()
    changed = document(FLOW).with_key("demo", KeySection(hash=hashed("a")), new_tenant=False)
    await force.check(bus, changed, StateFolder(tmp_path))
    assert await force.apply(bus, changed) == 2
    assert [(one.base, one.reason) for one in control.calls] == [(1, "keys")] * 2
    assert control.calls[0].text == changed.text


async def test_other_changes_in_the_file_are_not_carried_along(bus: Bus, tmp_path: Path) -> None:
    control = Scripted(bus, FLOW)
    await control.start()
    other = document(FLOW.replace("p: {model: m}", "p: {model: m, slots: 3}"))
    with pytest.raises(KeysError, match="headrace apply"):
        await force.check(bus, other, StateFolder(tmp_path))


async def test_a_change_that_fails_is_told(bus: Bus) -> None:
    control = Scripted(bus, FLOW, [said("failed", "egress-0 does not take it over")])
    await control.start()
    with pytest.raises(KeysError, match="egress-0 does not take it over"):
        await asyncio.wait_for(force.apply(bus, document(FLOW)), 30)


def test_an_id_is_meant_before_a_name_that_looks_like_it() -> None:
    text = BLOCK.replace("name: laptop", f'name: "{KEY_HASH[7:19]}"')
    assert find(document(text).topology, KEY_HASH[7:19], None).key.hash == KEY_HASH
    assert find(document(BLOCK).topology, "laptop", "demo").key.name == "laptop"
