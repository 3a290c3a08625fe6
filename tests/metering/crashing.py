"""Metering that kills itself with -9 after its first commit, before it has acked anything."""

import os
import signal

from nats.aio.msg import Msg

from stages.metering import service
from stages.runtime.stage import main


class CrashingService(service.MeteringService):
    """The real service, but it dies at the worst moment."""

    async def _acknowledge(self, _messages: list[Msg]) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


main("crashing", CrashingService)
