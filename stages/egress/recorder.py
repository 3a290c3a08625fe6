"""Token frames of the last minutes, read from the recorder stream HR_TOK."""

import json
import logging
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import nats.errors
from nats.aio.msg import Msg

from contracts import subjects
from contracts.frames import FRAME_DECODER, TokenFrame
from stages.runtime.bus import Bus

GET: Final = f"$JS.API.DIRECT.GET.{subjects.TOKEN_STREAM}"
BATCH: Final = 256  # frames of one question: bounded, so that the loop is not held up by them
LIMIT_S: Final = 5.0  # of one reading
SILENCE_S: Final = 1.0

log = logging.getLogger("headrace.egress")


async def recorded(bus: Bus, egress: str, since_ms: float) -> AsyncIterator[TokenFrame]:
    """Frames sent to `egress` (an incarnation) since then, in order; nothing when it cannot be read."""
    since = datetime.fromtimestamp(since_ms / 1000, UTC).isoformat().replace("+00:00", "Z")
    question: dict[str, Any] = {"start_time": since}
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        last: int | None = None
        async for msg in _batch(bus, egress, question):
            last = int((msg.headers or {})["Nats-Sequence"])
            try:
                yield FRAME_DECODER.decode(msg.data)
            except msgspec.MsgspecError as error:
                log.warning("unreadable recorded frame: %s", error)
        if last is None:
            return
        question = {"seq": last + 1}
    log.warning("frames of %s were read for %.0f s, not to their end", egress, LIMIT_S)


async def _batch(bus: Bus, egress: str, question: dict[str, Any]) -> AsyncIterator[Msg]:
    """At most `BATCH` messages: nats-server sends them to one inbox, an empty one is the last."""
    body = {**question, "batch": BATCH, "next_by_subj": subjects.tokens(egress)}
    inbox = bus.client.new_inbox()
    subscription = await bus.client.subscribe(inbox)
    try:
        await bus.client.publish(GET, json.dumps(body).encode(), reply=inbox)
        while True:
            msg = await subscription.next_msg(timeout=SILENCE_S)
            if (msg.headers or {}).get("Status") is not None:
                return  # 204: end of the batch, 404: nothing there, 503: no such stream
            yield msg
    except (TimeoutError, OSError, nats.errors.Error) as error:
        log.warning("recorded frames of %s cannot be read: %r", egress, error)
    finally:
        await subscription.unsubscribe()
