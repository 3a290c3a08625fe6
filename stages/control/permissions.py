"""Which user may publish and hear what on the bus: the table that nats-server's config is made of.

NATS has no wildcard inside a token, so `_INBOX_*.>` cannot be allowed, and reloading a config closes
every connection that was let in by the auth callout. Ingress and egress, which answer any tenant,
therefore may publish everything except what they are not granted (`hidden`): the config does not
depend on the tenants and never changes while it runs.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from contracts import subjects
from contracts.subjects import (
    IDEMPOTENCY_BUCKET,
    OWNER_BUCKET,
    QUEUE_STREAM,
    SESSION_STREAM,
    TOKEN_STREAM,
    TOPOLOGY_BUCKET,
    USAGE_STREAM,
)

STREAMS: Final = (
    *(QUEUE_STREAM, USAGE_STREAM, TOKEN_STREAM, SESSION_STREAM, subjects.BOOKED_STREAM),
    *(f"KV_{bucket}" for bucket in (TOPOLOGY_BUCKET, OWNER_BUCKET, IDEMPOTENCY_BUCKET)),
)
_ANY: Final = "*"
_DOOR_CALLS: Final = "hr.in.*"


@dataclass(frozen=True)
class Permissions:
    """What one user may do, in NATS subjects. `clients`: it answers tenants at their inboxes."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    clients: bool = False


def user_of(stage: str) -> str:
    """The NATS user of a stage; the dot keeps it apart from every tenant."""
    return f"hr.{stage}"


def inbox_of(stage: str) -> str:
    """The prefix under which a stage hears answers; no other user hears them."""
    return f"hr.inbox.{stage}"


def _read(*streams: str) -> tuple[str, ...]:
    """Look at a stream and read messages directly."""
    return tuple(
        subject
        for stream in streams
        for subject in (
            f"$JS.API.STREAM.INFO.{stream}",
            f"$JS.API.STREAM.MSG.GET.{stream}",
            f"$JS.API.DIRECT.GET.{stream}",
            f"$JS.API.DIRECT.GET.{stream}.>",
        )
    )


def _consume(*streams: str) -> tuple[str, ...]:
    """Read by consumers, and acknowledge."""
    return tuple(
        subject
        for stream in streams
        for subject in (
            *_read(stream),
            f"$JS.API.CONSUMER.*.{stream}",
            f"$JS.API.CONSUMER.*.{stream}.>",
            f"$JS.API.CONSUMER.DURABLE.CREATE.{stream}.>",
            f"$JS.API.CONSUMER.MSG.NEXT.{stream}.>",
            f"$JS.ACK.{stream}.>",
            f"$JS.FC.{stream}.>",
        )
    )


def _keep(*streams: str) -> tuple[str, ...]:
    """All of it: make the stream, change its bounds, delete messages."""
    return tuple(
        subject
        for stream in streams
        for subject in (
            *_consume(stream),
            f"$JS.API.STREAM.*.{stream}",
            f"$JS.API.STREAM.MSG.*.{stream}",
        )
    )


def _make(*streams: str) -> tuple[str, ...]:
    """Make a stream where it is missing, change its bounds."""
    return tuple(
        f"$JS.API.STREAM.{verb}.{stream}"
        for stream in streams
        for verb in ("INFO", "CREATE", "UPDATE")
    )


def _stage(stage: str, **more: tuple[str, ...]) -> Permissions:
    """What every process does, and `publish`, `subscribe` of this one."""
    return Permissions(
        publish=(
            subjects.beat(stage, _ANY),
            *_read(f"KV_{TOPOLOGY_BUCKET}"),
            *more.get("publish", ()),
        ),
        subscribe=(
            f"{inbox_of(stage)}.>",
            f"$KV.{TOPOLOGY_BUCKET}.>",
            subjects.prepare(_ANY),
            *(f"$SRV.{verb}{rest}" for verb in ("PING", "INFO", "STATS") for rest in ("", ".>")),
            *more.get("subscribe", ()),
        ),
    )


def _answers_clients(one: Permissions) -> Permissions:
    return Permissions((*one.publish, "hr.inbox.>"), one.subscribe, clients=True)


_BUCKETS: Final = (OWNER_BUCKET, IDEMPOTENCY_BUCKET)

TABLE: Final[dict[str, Permissions]] = {
    # Starts everything: makes the streams, changes the topology, closes executors' time.
    "control": _stage(
        "control",
        publish=(
            *("$JS.API.>", "$JS.ACK.>", "$JS.FC.>", f"$KV.{TOPOLOGY_BUCKET}.>"),
            *(subjects.usage("interval", _ANY), subjects.usage("attempt", _ANY)),
            *(subjects.prepare(_ANY), subjects.move(_ANY), "hr.control.>", "$SRV.>"),
            *("hr.inbox.operator.>",),  # several answers to one question
            *(subjects.cancel(_ANY),),
        ),
        subscribe=(
            *(subjects.BEAT_ALL, "hr.control.>", subjects.CREDIT_ALL, subjects.DISCONNECTED),
            *(subjects.usage("interval", _ANY), subjects.booked(_ANY)),
            *(f"$KV.{bucket}.>" for bucket in (TOPOLOGY_BUCKET, *_BUCKETS)),
        ),
    ),
    "ingress": _answers_clients(
        _stage(
            "ingress",
            publish=(
                *(subjects.ROUTE, subjects.admit(_ANY), subjects.session(_ANY)),
                *(subjects.cancel(_ANY), subjects.take(_ANY)),
                *_keep(f"KV_{IDEMPOTENCY_BUCKET}"),
                *(f"$KV.{IDEMPOTENCY_BUCKET}.>", *_read(SESSION_STREAM)),
                *(subjects.CONNECTIONS, subjects.KICK_ALL, "$SYS._INBOX.>"),
            ),
            subscribe=(
                *(_DOOR_CALLS, subjects.CLIENT_CALLS),
                *(subjects.AUTH_CALLOUT, subjects.BEAT_ALL, f"$KV.{IDEMPOTENCY_BUCKET}.>"),
            ),
        )
    ),
    "routing": _stage(
        "routing",
        publish=(subjects.admit(_ANY),),
        subscribe=(subjects.ROUTE, subjects.BEAT_ALL),
    ),
    "queueing": _stage(
        "queueing",
        publish=(
            *(*_keep(QUEUE_STREAM, f"KV_{OWNER_BUCKET}"), *_make(*STREAMS)),
            *("$JS.API.INFO", "$JS.API.STREAM.NAMES", f"$KV.{OWNER_BUCKET}.>"),
            *(subjects.stored(_ANY), subjects.lease(_ANY), subjects.session(_ANY)),
            *(subjects.cancel(_ANY), subjects.INVENTORY, subjects.repair(_ANY)),
            *(subjects.admit(_ANY), subjects.move(_ANY), subjects.moved(_ANY)),
            *(subjects.usage("receipt", _ANY), subjects.usage("attempt", _ANY)),
        ),
        subscribe=(
            *(subjects.admit(_ANY), subjects.take(_ANY), subjects.move(_ANY)),
            *(subjects.moved(_ANY), subjects.release(_ANY), subjects.attempts(_ANY)),
            *(subjects.CREDIT_ALL, subjects.CANCEL_ALL, subjects.BEAT_ALL),
            *(subjects.USAGE_ALL, subjects.DISCONNECTED),
            f"$KV.{OWNER_BUCKET}.>",
        ),
    ),
    "egress": _answers_clients(
        _stage(
            "egress",
            publish=(
                *(_DOOR_CALLS, subjects.session(_ANY)),
                *(subjects.cancel(_ANY), subjects.take(_ANY), subjects.repair(_ANY)),
                *(subjects.usage("receipt", _ANY), subjects.SESSION_RECORDS),
                *_read(SESSION_STREAM, TOKEN_STREAM),
            ),
            subscribe=(
                *(subjects.session(_ANY), subjects.gone(_ANY, _ANY), subjects.TOKENS_ALL),
                *(subjects.BEAT_ALL,),
            ),
        )
    ),
    "metering": _stage(
        "metering",
        publish=(*_consume(USAGE_STREAM), *_make(USAGE_STREAM)),
        subscribe=("hr.metering.>",),
    ),
    "gpu_worker": _stage(
        "gpu_worker",
        publish=(
            *(subjects.TOKENS_ALL, subjects.CREDIT_ALL, subjects.attempts(_ANY)),
            *(subjects.usage("attempt", _ANY), subjects.usage("interval", _ANY)),
            *(subjects.release(_ANY),),
        ),
        subscribe=(
            *(subjects.lease(_ANY), subjects.CANCEL_ALL, subjects.repair(_ANY)),
            *(subjects.INVENTORY,),
        ),
    ),
    # Who owns the state folder: the command line and the benches. Asks, looks, and applies changes.
    "operator": Permissions(
        publish=(
            *("hr.control.>", "hr.metering.>", subjects.move(_ANY), "$SRV.>"),
            *_read(*STREAMS),
            *("$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST"),
            *("$JS.API.CONSUMER.INFO.>", "$JS.API.CONSUMER.NAMES.*", "$JS.API.CONSUMER.LIST.*"),
            *_consume(f"KV_{TOPOLOGY_BUCKET}", f"KV_{OWNER_BUCKET}"),
        ),
        subscribe=(
            *(f"{inbox_of('operator')}.>", subjects.BEAT_ALL, subjects.CANCEL_ALL),
            *(subjects.USAGE_ALL, subjects.CREDIT_ALL, subjects.DISCONNECTED),
            *(f"$KV.{bucket}.>" for bucket in (TOPOLOGY_BUCKET, OWNER_BUCKET)),
        ),
    ),
}

# What nobody but the server and its owner does, and the namespaces of others.
_NOBODY: Final = (
    *(f"$SYS.{name}.>" for name in ("REQ", "ACCOUNT", "SERVER", "DEBUG", "_INBOX")),
    *("headrace.>", "_INBOX.>", "_R_.>", "hr.sys.>", "$SRV.>"),
)
_STREAM_VERBS: Final = ("CREATE", "UPDATE", "DELETE", "PURGE", "SNAPSHOT", "RESTORE")
_CONSUMER_VERBS: Final = ("CREATE", "DELETE", "PAUSE", "RESET", "UNPIN")


def _all_of_jetstream() -> Iterable[str]:
    yield from ("$JS.API.META.>", "$JS.API.SERVER.>", "$JS.API.ACCOUNT.>", "$JS.EVENT.>")
    for stream in STREAMS:
        yield from (f"$JS.API.STREAM.{verb}.{stream}" for verb in _STREAM_VERBS)
        yield from (f"$JS.API.STREAM.MSG.{verb}.{stream}" for verb in ("GET", "DELETE"))
        yield from (f"$JS.API.CONSUMER.{verb}.{stream}" for verb in _CONSUMER_VERBS)
        yield from (f"$JS.API.CONSUMER.{verb}.{stream}.>" for verb in _CONSUMER_VERBS)
        yield from (f"$JS.API.CONSUMER.DURABLE.CREATE.{stream}.>",)
        yield from (f"$JS.API.CONSUMER.MSG.NEXT.{stream}.>",)
        yield from (f"$JS.API.DIRECT.GET.{stream}", f"$JS.API.DIRECT.GET.{stream}.>")
        yield from (f"$JS.ACK.{stream}.>", f"$JS.FC.{stream}.>")


def hidden(stage: str) -> list[str]:
    """What a stage that answers tenants may not publish: all that anybody uses and it was not granted."""
    own = TABLE[stage].publish
    used = {one for each in TABLE.values() for one in (*each.publish, *each.subscribe)}
    used |= {*_NOBODY, *_all_of_jetstream()}
    buckets = {f"$KV.{name}.>" for name in (TOPOLOGY_BUCKET, *_BUCKETS)}
    return sorted(one for one in used | buckets if not any(overlap(one, mine) for mine in own))


def overlap(one: str, other: str) -> bool:
    """Whether a subject can match both patterns."""
    mine, theirs = one.split("."), other.split(".")
    for a, b in zip(mine, theirs, strict=False):
        if ">" in (a, b):
            return True
        if _ANY not in (a, b) and a != b:
            return False
    return len(mine) == len(theirs)
