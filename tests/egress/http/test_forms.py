"""What ends an answer, in HTTP's words."""

import pytest

from contracts.client import FinishReason
from contracts.errors import ErrorCode, ErrorInfo
from stages.egress.http.forms import failure
from tests.egress.http.test_sse import complete


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (None, 409, "cancelled"),
        (ErrorInfo(code=ErrorCode.UNAUTHENTICATED, message="revoked"), 401, "invalid_api_key"),
    ],
)
def test_whoever_is_cancelled_for_a_reason_is_told_it(
    error: ErrorInfo | None, status: int, code: str
) -> None:
    ended = complete(FinishReason.CANCELLED).model_copy(update={"error": error})
    failed = failure(ended)
    assert failed is not None
    assert (failed.status, failed.code) == (status, code)
