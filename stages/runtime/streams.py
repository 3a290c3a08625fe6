"""The durable streams, made in one place: control before the stages start, queueing if they are missing."""

from collections.abc import Iterator
from typing import Final

import nats.js.errors
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, RePublish, RetentionPolicy, StorageType, StreamConfig

from contracts import subjects
from contracts.topology import Topology

DUPLICATE_WINDOW_S: Final = 120.0
KEPT_S: Final = 300.0  # frames, and answers that have finished
SESSIONS_S: Final = 3600.0 + KEPT_S  # a session may be open for its longest deadline
MEMORY_BYTES: Final = 256 << 20  # of each stream in memory; the oldest goes first


def stream_configs(topology: Topology) -> Iterator[StreamConfig]:
    """HR_QUEUE (stored requests) and HR_USAGE (usage events), each within `bus.store_bytes`; HR_TOK
    (token frames), HR_SESSION (records of sessions) and HR_BOOKED (executors' last intervals) in
    memory.

    The first two keep a message until it is dealt with and refuse new ones when full, never drop old
    ones. The others are recorders that nobody waits for; after a restart of nats-server they are
    empty and are made again. What HR_BOOKED records the server itself copies there as it stores it:
    a control that starts again reads how far the time of an executor that ended meanwhile is booked.
    """
    for name, subject, age_s, of_each in (
        (subjects.TOKEN_STREAM, subjects.TOKENS_ALL, KEPT_S, -1),
        (subjects.SESSION_STREAM, subjects.SESSION_RECORDS, SESSIONS_S, 1),
        (subjects.BOOKED_STREAM, subjects.booked("*"), KEPT_S, -1),
    ):
        yield StreamConfig(
            name=name,
            subjects=[subject],
            storage=StorageType.MEMORY,
            discard=DiscardPolicy.OLD,
            max_bytes=MEMORY_BYTES,
            max_age=age_s,
            max_msgs_per_subject=of_each,
            no_ack=True,
            allow_direct=True,
        )
    copies = RePublish(src=subjects.usage("interval", "*"), dest=subjects.booked("{{wildcard(1)}}"))
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
            republish=copies if name == subjects.USAGE_STREAM else None,
        )


async def ensure_streams(
    js: JetStreamContext, topology: Topology, *, only: str | None = None
) -> None:
    """Create what is missing and take over a changed bound. Raises `nats.js.errors.APIError`.

    `only`: this stream, for whoever may not touch the others.
    """
    for config in stream_configs(topology):
        assert config.name is not None
        if only not in (None, config.name):
            continue
        try:
            found = (await js.stream_info(config.name)).config
        except nats.js.errors.NotFoundError:
            await js.add_stream(config)
            continue
        if found.max_bytes != config.max_bytes or (config.republish and not found.republish):
            found.max_bytes, found.republish = config.max_bytes, config.republish
            await js.update_stream(found)
