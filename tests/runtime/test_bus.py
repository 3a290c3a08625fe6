"""The bus connection on a real nats-server that is killed and comes back."""

import asyncio
import json
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from stages.runtime.bus import Bus
from stages.runtime.launch import BusAddress
from tests.support.nats import NatsServer
from tests.support.waiting import eventually


async def test_what_the_server_answers_right_after_a_reconnection_is_known_to_be_early(
    tmp_path: Path,
) -> None:
    """A message that waited for the connection, to somebody who is not back yet."""
    server = NatsServer(tmp_path)
    bus = await Bus.connect(server.address, "test")
    held: list[float] = []

    def unheard(_: Msg) -> None:
        held.append(bus.connected_for_s())

    try:
        assert bus.connected_for_s() > 60
        await bus.listen("unheard", unheard)
        await bus.flush()
        server.kill()
        await eventually(lambda: not bus.client.is_connected)
        await bus.client.publish("inbox", b"", reply="unheard")
        server = NatsServer(tmp_path, int(server.address.url.rpartition(":")[2]))
        await eventually(lambda: held)
        assert held[0] < 5
        await eventually(lambda: bus.connected_for_s() > 0)
        assert bus.connected_for_s() < 60
    finally:
        await bus.client.close()
        server.stop()


async def _say_raw(address: BusAddress, line: bytes) -> None:
    """Publish as a client that writes its own bytes; returns when the server has passed them on."""
    host, _, port = address.url.removeprefix("nats://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    user = {"user": address.user, "pass": address.password, "verbose": False}
    writer.write(b"CONNECT " + json.dumps(user).encode() + b"\r\n" + line + b" 2\r\n{}\r\nPING\r\n")
    await asyncio.wait_for(reader.readuntil(b"PONG"), 10)
    writer.close()


@pytest.mark.parametrize(
    ("line", "subject", "reply"),
    [
        (b"PUB calls.\xff\xfe", "calls.\ufffd\ufffd", ""),
        (b"PUB calls.a in.\xff", "calls.a", "in.\ufffd"),
        (b"PUB calls.a\x0bb", "calls.a\x0bb", ""),
        (b"PUB calls.a in.a\x0c7", "calls.a", "in.a\x0c7"),
    ],
)
async def test_odd_bytes_of_a_client_do_not_end_our_reading(
    bus: Bus, bus_address: BusAddress, line: bytes, subject: str, reply: str
) -> None:
    heard: list[Msg] = []
    await bus.listen("calls.*", heard.append)
    await bus.flush()
    await _say_raw(bus_address, line)
    await _say_raw(bus_address, b"PUB calls.last")
    await eventually(lambda: len(heard) == 2)
    assert [(one.subject, one.reply) for one in heard] == [(subject, reply), ("calls.last", "")]
    assert bus.connected_for_s() > 60  # nor our connection


async def test_nobody_chooses_which_subscription_gets_a_message(
    bus: Bus, bus_address: BusAddress
) -> None:
    """A vertical tab in a subject once made `a`, subscription 2, of `a<VT>2`."""
    trusted: list[Msg] = []
    heard: list[Msg] = []
    target = await bus.listen("trusted", trusted.append)
    await bus.listen("calls.*", heard.append)
    await bus.flush()
    await _say_raw(bus_address, b"PUB calls.a\x0b%d" % target._id)
    await eventually(lambda: heard)
    assert not trusted
