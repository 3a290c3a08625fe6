"""When two calls are the same: idempotency key and body. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from contracts.client import ChatRequest, GenerateRequest
from contracts.internal import Verb

# A call that is repeated has another deadline (gRPC sends what is left of it): not part of its body.
APART: Final = frozenset({"idempotency_key", "timeout_ms", "deadline_unix_ms"})


@dataclass(frozen=True)
class Identity:
    """`key` names the record of the idempotency key, `body` tells two bodies apart (both hex)."""

    key: str
    body: str


def identity(
    tenant: str, verb: Verb, choice: int, request: GenerateRequest | ChatRequest
) -> Identity | None:
    """None for a call without an idempotency key.

    Keys are their tenant's own, and each choice of a call with several answers has its own record.
    The body is compared with all defaults filled in, whatever the order of its fields; `verb`
    belongs to it.
    """
    if request.idempotency_key is None:
        return None
    body: Mapping[str, Any] = request.model_dump(mode="json", exclude=set(APART))
    return Identity(
        key=_digest([tenant, request.idempotency_key, choice]), body=_digest([verb, body])
    )


def _digest(value: Any) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode(errors="surrogatepass")).hexdigest()
