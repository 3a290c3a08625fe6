"""The durable streams, made in one place: control before the stages start, queueing if they are missing."""

from collections.abc import Iterator
from typing import Final

import nats.js.errors
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig

from contracts import subjects
from contracts.topology import Topology

DUPLICATE_WINDOW_S: Final = 120.0


def stream_configs(topology: Topology) -> Iterator[StreamConfig]:
    """HR_QUEUE (stored requests) and HR_USAGE (usage events), each within `bus.store_bytes`.

    Both keep a message until it is dealt with and refuse new ones when full, never drop old ones.
    """
    for name, subject in (
        (subjects.QUEUE_STREAM, subjects.stored("*")),
        (subjects.USAGE_STREAM, subjects.USAGE_ALL),
    ):
        yield StreamConfig(
            name=name,
            subjects=[subject],
            retention=RetentionPolicy.WORK_QUEUE,
            storage=StorageType.FILE,
            discard=DiscardPolicy.NEW,
            max_bytes=topology.bus.store_bytes,
            duplicate_window=DUPLICATE_WINDOW_S,
            allow_direct=True,
        )


async def ensure_streams(js: JetStreamContext, topology: Topology) -> None:
    """Create what is missing and take over a changed bound. Raises `nats.js.errors.APIError`."""
    for config in stream_configs(topology):
        assert config.name is not None
        try:
            found = (await js.stream_info(config.name)).config
        except nats.js.errors.NotFoundError:
            await js.add_stream(config)
            continue
        if found.max_bytes != config.max_bytes:
            found.max_bytes = config.max_bytes
            await js.update_stream(found)
