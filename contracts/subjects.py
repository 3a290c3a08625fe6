"""Every subject and stream name, built in one place."""

import re

CLIENT_VERBS = ("generate", "chat", "cancel", "resume", "models")
CLIENT_CALLS = "headrace.v1.*.*"

QUEUE_STREAM = "HR_QUEUE"
USAGE_STREAM = "HR_USAGE"
TOKEN_STREAM = "HR_TOK"  # noqa: S105
SESSION_STREAM = "HR_SESSION"
BOOKED_STREAM = "HR_BOOKED"
TOPOLOGY_BUCKET = "HR_TOPOLOGY"
TOPOLOGY_SPEC = "spec"
TOPOLOGY_CANDIDATE = "candidate"
TOPOLOGY_ACTUALS = "actuals"
OWNER_BUCKET = "HR_OWNER"
IDEMPOTENCY_BUCKET = "HR_IDEMPOTENCY"

ROUTE = "hr.route"
CREDIT_ALL = "hr.credit.*"
CANCEL_ALL = "hr.cancel.*"
BEAT_ALL = "hr.beat.*.*"
INVENTORY = "hr.inventory"
USAGE_ALL = "hr.usage.>"
SNAPSHOT = "hr.metering.snapshot"
STATUS = "hr.control.status"
APPLY = "hr.control.apply"
ACCOUNT = "HR"  # of nats-server: where stages and tenants meet
AUTH_CALLOUT = "$SYS.REQ.USER.AUTH"
DISCONNECTED = "hr.sys.disconnect"
CONNECTIONS = "hr.sys.connections"
KICK_ALL = "hr.sys.kick.*"
TOKENS_ALL = "hr.tok.*"
SESSION_RECORDS = "hr.session.*"

_INBOX_LONGEST = 256
# Printable ASCII: what else there is, is not read alike by everyone.
_INBOX_REST = re.compile(r"[^.*>\x00- \x7f-\U0010ffff]+(\.[^.*>\x00- \x7f-\U0010ffff]+)*")
_TOKEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def is_name(text: str) -> bool:
    """Whether `text` may be a tenant, pool, model or instance name (one subject token)."""
    return _TOKEN.fullmatch(text) is not None


def inbox(tenant: str) -> str:
    """The prefix under which a tenant's NATS clients listen for answers."""
    return f"_INBOX_{tenant}"


def is_inbox(reply: str, tenant: str) -> bool:
    """Whether a client of `tenant` may be answered there: only `_INBOX_<tenant>.…`.

    Anything else could be one of our own subjects, another tenant's inbox or a wildcard.
    """
    head, _, rest = reply.partition(".")
    owned = head == inbox(tenant)
    return owned and len(reply) <= _INBOX_LONGEST and _INBOX_REST.fullmatch(rest) is not None


def client_call(tenant: str, verb: str) -> str:
    """Where a NATS client of `tenant` publishes a call."""
    return f"headrace.v1.{tenant}.{verb}"


def ingress(partition: int) -> str:
    """Calls that came through a door other than NATS."""
    return f"hr.in.{partition}"


def kick(server: str) -> str:
    """Asks nats-server (its id) to end a connection."""
    return f"hr.sys.kick.{server}"


def admit(pool: str) -> str:
    """Admission to a pool's queue."""
    return f"hr.admit.{pool}"


def stored(pool: str) -> str:
    """Where a pool's accepted requests are stored (stream HR_QUEUE)."""
    return f"hr.q.{pool}"


def session(egress: str) -> str:
    """Requests to the egress that holds a client's connection."""
    return f"hr.open.{egress}"


def gone(egress: str, attachment: str) -> str:
    """Reply subject of chunks to a NATS client: the server answers here when nobody listens.

    Each attachment of a client has its own: an inbox that was left for another ends nothing.
    """
    return f"hr.gone.{egress}.{attachment}"


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


def booked(pool: str) -> str:
    """Copies of stored `interval` events, made by nats-server (stream HR_BOOKED)."""
    return f"hr.booked.{pool}"


def prepare(incarnation: str) -> str:
    """Control asks a process whether it could serve a new topology."""
    return f"hr.prepare.{incarnation}"


def repair(executor: str) -> str:
    """An egress asks an executor for tokens again, or for tokens at another egress from now on."""
    return f"hr.repair.{executor}"


def attempts(pool: str) -> str:
    """What the running attempts of an executor have taken so far, once a second."""
    return f"hr.attempts.{pool}"


def release(pool: str) -> str:
    """An executor that ends gives requests back before they are finished."""
    return f"hr.release.{pool}"


def take(pool: str) -> str:
    """An egress takes over a session: asked of the pool's queueing owner."""
    return f"hr.take.{pool}"


def move(pool: str) -> str:
    """Move waiting requests out of this pool: asked of its queueing owner."""
    return f"hr.move.{pool}"


def moved(pool: str) -> str:
    """A request that comes from another pool: asked of this pool's queueing owner."""
    return f"hr.moved.{pool}"


def session_record(request_id: str) -> str:
    """The last record of a session (stream HR_SESSION): its terms, later its finished answer."""
    return f"hr.session.{request_id}"
