"""Every subject and stream name, built in one place."""

import re

CLIENT_VERBS = ("generate", "chat", "cancel", "models")
CLIENT_CALLS = "headrace.v1.*.*"

QUEUE_STREAM = "HR_QUEUE"
USAGE_STREAM = "HR_USAGE"
TOPOLOGY_BUCKET = "HR_TOPOLOGY"
TOPOLOGY_SPEC = "spec"

ROUTE = "hr.route"
CREDIT_ALL = "hr.credit.*"
CANCEL_ALL = "hr.cancel.*"
BEAT_ALL = "hr.beat.*.*"
INVENTORY = "hr.inventory"
USAGE_ALL = "hr.usage.>"
SNAPSHOT = "hr.metering.snapshot"
STATUS = "hr.control.status"

_INBOX_LONGEST = 256
_INBOX_REST = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*")
_TOKEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def is_name(text: str) -> bool:
    """Whether `text` may be a tenant, pool, model or instance name (one subject token)."""
    return _TOKEN.fullmatch(text) is not None


def is_inbox(reply: str, tenant: str) -> bool:
    """Whether a client of `tenant` may be answered there: `_INBOX.…` or `_INBOX_<tenant>.…`.

    Anything else could be one of our own subjects, another tenant's inbox or a wildcard.
    """
    head, _, rest = reply.partition(".")
    owned = head in ("_INBOX", f"_INBOX_{tenant}")
    return owned and len(reply) <= _INBOX_LONGEST and _INBOX_REST.fullmatch(rest) is not None


def client_call(tenant: str, verb: str) -> str:
    """Where a NATS client of `tenant` publishes a call."""
    return f"headrace.v1.{tenant}.{verb}"


def ingress(partition: int) -> str:
    """Calls that came through a door other than NATS."""
    return f"hr.in.{partition}"


def admit(pool: str) -> str:
    """Admission to a pool's queue."""
    return f"hr.admit.{pool}"


def stored(pool: str) -> str:
    """Where a pool's accepted requests are stored (stream HR_QUEUE)."""
    return f"hr.q.{pool}"


def session(egress: str) -> str:
    """Requests to the egress that holds a client's connection."""
    return f"hr.open.{egress}"


def gone(egress: str, request_id: str) -> str:
    """Reply subject of chunks to a NATS client: the server answers here when nobody listens."""
    return f"hr.gone.{egress}.{request_id}"


def lease(executor: str) -> str:
    """Leases to one executor."""
    return f"hr.lease.{executor}"


def credit(pool: str) -> str:
    """What executors of a pool can take."""
    return f"hr.credit.{pool}"


def cancel(request_id: str) -> str:
    """The session is closed: queueing forgets it, executors stop it."""
    return f"hr.cancel.{request_id}"


def tokens(egress: str) -> str:
    """Frames of tokens, one per engine step."""
    return f"hr.tok.{egress}"


def beat(stage: str, instance: str) -> str:
    """Liveness and counters, twice a second."""
    return f"hr.beat.{stage}.{instance}"


def usage(kind: str, pool: str) -> str:
    """Usage events: kind is `attempt`, `receipt` or `interval`."""
    return f"hr.usage.{kind}.{pool}"
