"""Events on their way into a stream, over a real server and over one that misbehaves."""

import asyncio
from typing import Any, cast

import nats.errors
import pytest

from contracts import subjects
from stages.runtime.bus import Bus
from stages.runtime.sender import DurableSender
from tests.support.nats import MAX_PAYLOAD

SUBJECT = subjects.usage("receipt", "p")
LIMIT_S = 30.0


async def make_stream(bus: Bus) -> None:
    await bus.js.add_stream(name=subjects.USAGE_STREAM, subjects=[subjects.USAGE_ALL])


async def stored(bus: Bus) -> list[int]:
    """The numbers in the stream, in its order."""
    state = (await bus.js.stream_info(subjects.USAGE_STREAM)).state
    messages = [
        await bus.js.get_msg(subjects.USAGE_STREAM, seq)
        for seq in range(state.first_seq, state.last_seq + 1)
    ]
    return [int(message.data or b"-1") for message in messages]


async def test_everything_arrives_once_and_in_order_when_the_stream_comes_late(bus: Bus) -> None:
    sender = DurableSender(bus)
    futures = [sender.put(SUBJECT, b"%d" % number, f"k{number}") for number in range(150)]
    assert not await sender.drain(0.3)
    assert sender.left == 150
    await make_stream(bus)
    futures += [sender.put(SUBJECT, b"%d" % number, f"k{number}") for number in range(150, 300)]
    assert await sender.drain(LIMIT_S)
    assert all(future.done() for future in futures)
    assert await stored(bus) == list(range(300))


async def test_what_can_never_be_stored_holds_nobody_up(bus: Bus) -> None:
    await make_stream(bus)
    sender = DurableSender(bus)
    lost = sender.put(SUBJECT, b"x" * (MAX_PAYLOAD + 1), "big")
    sender.put(SUBJECT, b"1", "k1")
    with pytest.raises(nats.errors.MaxPayloadError):
        await asyncio.wait_for(lost, LIMIT_S)
    assert await sender.drain(LIMIT_S)
    assert await stored(bus) == [1]


async def test_who_stops_waiting_does_not_stop_the_event(bus: Bus) -> None:
    sender = DurableSender(bus)
    sender.put(SUBJECT, b"1", "k1").cancel()
    await make_stream(bus)
    assert await sender.drain(LIMIT_S)
    assert await stored(bus) == [1]


class Misbehaving:
    """A bus whose stream fails now and then, and whose connection can be away."""

    def __init__(self) -> None:
        self.client = self.js = self
        self.is_closed, self.is_connected = False, True
        self.errors: list[Exception] = []
        self.stored: list[bytes] = []
        self.flying = self.most = self.tries = 0

    async def publish(self, _: str, payload: bytes, **__: Any) -> None:
        """A store that takes a moment."""
        self.tries += 1
        self.flying += 1
        self.most = max(self.most, self.flying)
        error = self.errors.pop(0) if self.errors else None
        await asyncio.sleep(0)
        self.flying -= 1
        if error is not None:
            raise error
        self.stored.append(payload)


async def test_any_failure_is_tried_again_and_the_flight_is_bounded() -> None:
    bus = Misbehaving()
    sender = DurableSender(cast("Bus", bus))
    bus.errors = [RuntimeError("odd"), TimeoutError(), ConnectionResetError()]
    payloads = [b"%d" % number for number in range(1000)]
    for payload in payloads:
        sender.put(SUBJECT, payload, payload.decode())
    assert await sender.drain(LIMIT_S)
    assert bus.stored == payloads
    assert bus.most == 64


async def test_a_lone_event_waits_for_nothing() -> None:
    bus = Misbehaving()
    sender = DurableSender(cast("Bus", bus))
    await sender.put(SUBJECT, b"1", "k1")
    first, second = sender.put(SUBJECT, b"2", "k2"), sender.put(SUBJECT, b"3", "k3")
    await asyncio.gather(first, second)
    assert bus.most == 2


async def test_nothing_is_sent_without_a_connection_and_a_closed_bus_ends_it() -> None:
    bus = Misbehaving()
    bus.is_connected = False
    sender = DurableSender(cast("Bus", bus))
    future = sender.put(SUBJECT, b"1", "k1")
    assert not await sender.drain(0.2)
    assert bus.tries == 0
    bus.is_closed = True
    with pytest.raises(asyncio.CancelledError):
        await future
    assert sender.left == 0
