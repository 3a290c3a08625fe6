"""Two tenants and every stage on nats-server as we configure it: what each can do, and nothing more."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import nats
import nats.errors
import pytest
from nats.aio.client import Client

from contracts import subjects
from contracts.topology import KeySection, TenantSection, Topology
from stages.control.accounts import Accounts
from stages.control.natsd import NatsServer
from stages.control.permissions import TABLE, hidden, overlap
from stages.ingress import clients
from stages.ingress.service import IngressService
from stages.runtime.bus import Bus
from stages.runtime.client import AccessDenied, CallerError, NatsCaller, connection
from tests.support.guarded import LOG, guarded, guarded_topology, guarding_ingress
from tests.support.nats import flushed
from tests.support.stages import KEY, OTHER_KEY, key_hash
from tests.support.waiting import LIMIT_S, eventually

PLAN = guarded_topology()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    """The guarded server."""
    async with guarded(tmp_path, PLAN) as running:
        yield running


@pytest.fixture
async def ingress(server: NatsServer, tmp_path: Path) -> AsyncIterator[IngressService]:
    """Who answers the callout."""
    async with guarding_ingress(server, tmp_path, PLAN) as service:
        yield service


class Tenant:
    """A tenant's connection, with everything the server refused it."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self.lost = asyncio.Event()
        self.client = Client()

    @classmethod
    async def connect(cls, server: NatsServer, user: str | None, key: str | None) -> "Tenant":
        made = cls()

        async def on_error(error: Exception) -> None:
            made.refused.append(str(error).lower())

        async def on_end() -> None:
            made.lost.set()

        try:
            await made.client.connect(
                server.url, user=user, password=key, error_cb=on_error, disconnected_cb=on_end,
                inbox_prefix=f"_INBOX_{user}", allow_reconnect=False, max_reconnect_attempts=1,
            )  # fmt: skip
        except (nats.errors.Error, OSError):
            await made.client.close()
            raise
        return made

    async def __aenter__(self) -> "Tenant":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()


async def refused_at_the_door(server: NatsServer, user: str | None, key: str | None) -> None:
    with pytest.raises((nats.errors.Error, OSError)):
        await Tenant.connect(server, user, key)


FOREIGN_SUBSCRIPTIONS = (
    *(">", "hr.>", "hr.inbox.>", "_INBOX.>", "_INBOX_other.>", "_INBOX_other.abc", "*.abc"),
    *("$SYS.>", "$SYS.REQ.USER.AUTH", "$JS.API.>", "$KV.>", "$SRV.>", "headrace.v1.>"),
    *("headrace.v1.acme.chat", "hr.tok.*", "hr.session.*", "hr.sys.disconnect"),
)
FOREIGN_PUBLICATIONS = (
    *("headrace.v1.other.chat", "headrace.v1.other.cancel", "headrace.v1.chat"),
    *("_INBOX_other.abc", "_INBOX.abc", "hr.in.0", "hr.cancel.x", "hr.open.egress-0"),
    *("hr.inbox.egress.x", "hr.control.apply", "hr.sys.kick.x", "hr.sys.connections"),
    *("$SYS.REQ.SERVER.PING", "$SYS.REQ.USER.AUTH", "$JS.API.STREAM.LIST", "$SRV.PING"),
    *("$JS.API.STREAM.MSG.GET.HR_QUEUE", "$KV.HR_TOPOLOGY.spec", "$JS.ACK.HR_QUEUE.x"),
)


async def test_a_tenant_can_do_nothing_but_call_and_hear_its_own_answers(
    server: NatsServer, ingress: IngressService
) -> None:
    async with (
        await Tenant.connect(server, "acme", KEY) as acme,
        await Tenant.connect(server, "other", OTHER_KEY) as other,
    ):
        headers = {"Authorization": f"Bearer {KEY}"}
        reply = await acme.client.request(
            "headrace.v1.acme.models", b"{}", LIMIT_S, headers=headers
        )
        assert json.loads(reply.data)["type"] == "models", reply.data
        assert acme.refused == []

        theirs = await other.client.subscribe("_INBOX_other.>")
        await flushed_client(other.client)
        for subject in FOREIGN_SUBSCRIPTIONS:
            await acme.client.subscribe(subject)
        for subject in FOREIGN_PUBLICATIONS:
            await acme.client.publish(subject, b"{}", reply="_INBOX_acme.x")
        tried = len(FOREIGN_SUBSCRIPTIONS) + len(FOREIGN_PUBLICATIONS)
        await eventually(lambda: len(acme.refused) >= tried)
        assert sum("subscription" in one for one in acme.refused) == len(FOREIGN_SUBSCRIPTIONS)
        assert sum("publish" in one for one in acme.refused) == len(FOREIGN_PUBLICATIONS)
        await flushed_client(other.client)
        assert theirs.pending_msgs == 0
        assert acme.client.is_connected


@pytest.mark.parametrize(
    "reply",
    ["_INBOX_other.abc", "_INBOX.abc", "hr.cancel.x", "hr.inbox.ingress.x", "_INBOX_acme", ""],
)
async def test_a_reply_subject_outside_the_tenant_s_inbox_is_refused(
    server: NatsServer, ingress: IngressService, reply: str
) -> None:
    async with await Tenant.connect(server, "acme", KEY) as acme:
        headers = {"Authorization": f"Bearer {KEY}"}
        before = ingress.counters()["dropped"]
        await acme.client.publish("headrace.v1.acme.models", b"{}", reply=reply, headers=headers)
        await eventually(lambda: ingress.counters()["dropped"] == before + 1)


async def test_nobody_without_a_tenant_s_key_is_let_in_and_no_log_has_the_key(
    server: NatsServer, ingress: IngressService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "hr-a-key-that-is-not-ours"
    with caplog.at_level(logging.INFO):
        for user, key in (
            *((None, None), ("acme", None), ("acme", ""), ("acme", secret), ("other", KEY)),
            *((secret, KEY), ("hr.control", secret), ("hr.ingress", ""), ("", KEY)),
        ):
            await refused_at_the_door(server, user, key)
    assert "refused a NATS client" in caplog.text
    assert "user: acme" in caplog.text
    for text in (caplog.text, (tmp_path / LOG).read_text().replace(f'User "{secret}"', "")):
        assert secret not in text
        assert KEY not in text


async def test_the_caller_says_that_its_key_is_not_taken(
    server: NatsServer, ingress: IngressService
) -> None:
    with pytest.raises(CallerError, match="tenant 'acme'") as error:
        await NatsCaller.connect(server.url, "acme", "wrong-key")
    assert "wrong-key" not in str(error.value)


def without(plan: Topology, tenant: str) -> Topology:
    """The same with no key for a tenant."""
    tenants = {**plan.tenants, tenant: TenantSection(keys=[])}
    return plan.model_copy(update={"tenants": tenants})


async def test_a_revoked_key_s_connections_end_and_others_stay(
    server: NatsServer, ingress: IngressService
) -> None:
    async with (
        await Tenant.connect(server, "acme", KEY) as acme,
        await Tenant.connect(server, "other", OTHER_KEY) as other,
    ):
        await ingress.reconfigure(without(PLAN, "acme"), 2)
        await asyncio.wait_for(acme.lost.wait(), LIMIT_S)
        await refused_at_the_door(server, "acme", KEY)
        headers = {"Authorization": f"Bearer {OTHER_KEY}"}
        reply = await other.client.request(
            "headrace.v1.other.models", b"{}", LIMIT_S, headers=headers
        )
        assert json.loads(reply.data)["type"] == "models"
        assert not other.lost.is_set()


async def test_a_connection_ends_with_its_key_also_where_that_end_was_set_later(
    server: NatsServer, ingress: IngressService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "SELDOM_S", 1000.0)
    async with await Tenant.connect(server, "acme", KEY) as acme:
        at = f"{datetime.now(UTC) + timedelta(seconds=2):%Y-%m-%dT%H:%M:%SZ}"
        key = KeySection(hash=key_hash(KEY), expires=at)
        tenants = {**PLAN.tenants, "acme": TenantSection(keys=[key])}
        await ingress.reconfigure(PLAN.model_copy(update={"tenants": tenants}), 2)
        await asyncio.wait_for(acme.lost.wait(), LIMIT_S)


async def test_our_client_gives_up_where_its_key_was_revoked(
    server: NatsServer, ingress: IngressService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "DENIED_S", 0.5)
    async with await NatsCaller.connect(server.url, "acme", KEY) as caller:
        await ingress.reconfigure(without(PLAN, "acme"), 2)
        await eventually(lambda: not caller._connection.client.is_connected)
        with pytest.raises(AccessDenied, match="revoked"):
            await caller.models()


async def test_a_client_let_in_by_an_ingress_that_knew_the_old_keys_is_shown_out(
    server: NatsServer, ingress: IngressService, tmp_path: Path
) -> None:
    """The second ingress takes the change over later: until then it lets the key in."""
    await ingress.reconfigure(without(PLAN, "acme"), 2)
    async with guarding_ingress(server, tmp_path, PLAN) as late:
        async with asyncio.timeout(LIMIT_S):
            while True:  # the two share the questions
                try:
                    acme = await Tenant.connect(server, "acme", KEY)
                    break
                except nats.errors.Error:
                    continue
        async with acme:
            await late.reconfigure(without(PLAN, "acme"), 2)
            await asyncio.wait_for(acme.lost.wait(), LIMIT_S)


async def test_a_new_tenant_comes_in_without_touching_other_connections(
    server: NatsServer, ingress: IngressService
) -> None:
    async with await Tenant.connect(server, "acme", KEY) as acme:
        tenants = {**PLAN.tenants, "new": TenantSection(keys=[key_hash("key-of-new")])}
        await ingress.reconfigure(PLAN.model_copy(update={"tenants": tenants}), 2)
        egress = await Bus.connect(server.address_of("egress"), "egress-0-test")
        async with await Tenant.connect(server, "new", "key-of-new") as new:
            heard = await new.client.subscribe("_INBOX_new.x")
            await flushed_client(new.client)
            await egress.publish("_INBOX_new.x", b"answer")
            assert (await heard.next_msg(LIMIT_S)).data == b"answer"
        await egress.close()
        assert not acme.lost.is_set()
        assert acme.client.is_connected


async def test_the_end_of_a_connection_is_told_to_queueing(server: NatsServer) -> None:
    bus = await Bus.connect(server.address_of("queueing"), "queueing-0")
    ended: list[str] = []
    await bus.listen(
        subjects.DISCONNECTED, lambda msg: ended.append(json.loads(msg.data)["client"]["name"])
    )
    await flushed(bus)
    executor = await Bus.connect(server.address_of("gpu_worker"), "small-0-abcd")
    await executor.close()
    await eventually(lambda: ended == ["small-0-abcd"])
    await bus.close()


FORBIDDEN = {
    "ingress": ("hr.lease.x", "hr.tok.x", "hr.usage.receipt.p", "hr.q.p", "$KV.HR_TOPOLOGY.spec",
                "$JS.API.STREAM.DELETE.HR_QUEUE", "$JS.API.STREAM.MSG.GET.HR_QUEUE",
                "$SYS.REQ.SERVER.PING", "hr.control.apply", "headrace.v1.acme.chat", "_INBOX.x"),
    "routing": ("_INBOX_acme.x", "hr.lease.x", "$JS.API.STREAM.LIST", "hr.q.p"),
    "queueing": ("_INBOX_acme.x", "hr.tok.x", "hr.control.apply", "$KV.HR_TOPOLOGY.spec"),
    "egress": ("hr.lease.x", "hr.tok.x", "hr.q.p", "hr.usage.attempt.p", "hr.control.apply",
               "$JS.API.STREAM.DELETE.HR_USAGE", "$JS.API.CONSUMER.CREATE.HR_QUEUE",
               "$JS.API.DIRECT.GET.HR_QUEUE.hr.q.p", "$KV.HR_TOPOLOGY.spec", "hr.sys.kick.x",
               "headrace.v1.acme.chat", "_INBOX.x", "$SYS.REQ.USER.AUTH"),
    "gpu_worker": ("_INBOX_acme.x", "hr.lease.x", "hr.q.p", "hr.usage.receipt.p"),
    "metering": ("_INBOX_acme.x", "hr.usage.receipt.p", "$JS.API.STREAM.DELETE.HR_USAGE"),
    "operator": ("_INBOX_acme.x", "hr.q.p", "$KV.HR_TOPOLOGY.spec", "hr.sys.kick.x",
                 "$JS.API.STREAM.DELETE.HR_QUEUE", "hr.usage.receipt.p"),
}  # fmt: skip


@pytest.mark.parametrize("stage", FORBIDDEN)
async def test_a_stage_can_do_only_what_it_is_for(server: NatsServer, stage: str) -> None:
    address = server.address_of(stage)
    refused: list[str] = []

    async def on_error(error: Exception) -> None:
        refused.append(str(error))

    client = await nats.connect(
        address.url, user=address.user, password=address.password, error_cb=on_error
    )
    for subject in FORBIDDEN[stage]:
        await client.publish(subject, b"{}")
    for subject in ("_INBOX_acme.>", "hr.>", "hr.inbox.control.>", "$SYS.>"):
        await client.subscribe(subject)
    await eventually(lambda: len(refused) == len(FORBIDDEN[stage]) + 4)
    await client.close()


def test_what_is_granted_to_those_who_answer_tenants_is_not_denied_to_them() -> None:
    for stage in ("ingress", "egress"):
        for denied in hidden(stage):
            assert not any(overlap(denied, own) for own in TABLE[stage].publish)
            assert not overlap(denied, "_INBOX_acme.x")


@pytest.mark.parametrize(
    ("one", "other", "whether"),
    [("a.b", "a.b", True), ("a.*", "a.b", True), ("a.>", "a.b.c", True), ("a", "a.>", False),
     ("a.*", "a.b.c", False), ("*.b", "a.*", True), ("a.b", "a.c", False), (">", "a", True)],
)  # fmt: skip
def test_overlap(one: str, other: str, whether: bool) -> None:
    assert overlap(one, other) is overlap(other, one) is whether


def test_passwords_and_the_seed_are_kept_and_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "accounts.json"
    first = Accounts.of(file)
    assert Accounts.of(file) == first
    assert file.stat().st_mode & 0o077 == 0
    ingress = first.address("nats://x", "ingress")
    assert ingress.issuer == first.seed
    assert first.address("nats://x", "egress").issuer is None
    for secret in (*first.passwords.values(), first.seed):
        assert secret not in repr(first)
        assert secret not in repr(ingress)


async def flushed_client(client: Client) -> None:
    """The server has read everything sent so far."""
    await client.flush()
    await client.flush()
