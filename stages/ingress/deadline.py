"""When a request is too late."""

from contracts.client import CallOptions
from contracts.errors import ErrorCode, HeadraceError


def deadline_ms(options: CallOptions, default_ms: int, received_ms: float, now_ms: float) -> int:
    """Absolute deadline in unix ms: the earlier of timeout_ms (else `default_ms`) after the arrival
    and deadline_unix_ms. Raises deadline_exceeded when it has passed.
    """
    given_ms = options.timeout_ms or default_ms
    field = "timeout_ms"
    deadline = int(received_ms + given_ms)
    if options.deadline_unix_ms is not None and options.deadline_unix_ms < deadline:
        field, deadline = "deadline_unix_ms", options.deadline_unix_ms
    if deadline <= now_ms:
        late = (now_ms - deadline) / 1000
        raise HeadraceError(
            ErrorCode.DEADLINE_EXCEEDED,
            f"the deadline passed {late:.3f} s ago ({deadline} unix ms); call with a later {field}",
            field=field,
        )
    return deadline
