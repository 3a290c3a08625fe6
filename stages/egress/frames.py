"""Token frames from the executors: one subscription, read in order."""

import logging

import msgspec
from nats.aio.msg import Msg

from contracts import subjects
from contracts.frames import FRAME_DECODER
from stages.egress.sessions import Sessions
from stages.runtime.bus import Bus

log = logging.getLogger("headrace.egress")


async def receive_frames(bus: Bus, sessions: Sessions, egress: str) -> None:
    """Subscribe to the frames for this incarnation; a frame is finished before the next is read."""

    async def receive(msg: Msg) -> None:
        try:
            frame = FRAME_DECODER.decode(msg.data)
        except msgspec.MsgspecError as error:
            log.warning("unreadable frame: %s", error)
            return
        await sessions.frame(frame)

    await bus.client.subscribe(subjects.tokens(egress), cb=receive)
