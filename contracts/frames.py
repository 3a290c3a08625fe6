"""Hot messages (msgpack by msgspec): token frames and executor credit."""

from typing import Final

import msgspec


class TokenItem(msgspec.Struct, array_like=True, frozen=True):
    """New tokens of one request in one engine step.

    `offset` counts output tokens before `ids` (resumed tokens included). Times are unix ms.
    `accelerator_us` is cumulative over the attempt. `finish` is None until the last item, then
    stop | length | cancelled | error. `fingerprint` is of the executor, in the first item of an
    attempt only.
    """

    request_id: str
    attempt: int
    offset: int
    ids: list[int]
    accelerator_us: int
    cached_tokens: int
    started_ms: float
    finish: str | None = None
    error: str | None = None
    fingerprint: str = ""


class TokenFrame(msgspec.Struct, array_like=True, frozen=True):
    """Everything one engine step has for one egress."""

    executor: str
    sent_ms: float
    items: list[TokenItem]


class Credit(msgspec.Struct, array_like=True, frozen=True):
    """What an executor can take now, absolute; a higher `seq` replaces a lower one."""

    executor: str
    pool: str
    seq: int
    free_slots: int
    free_kv_tokens: int
    running: list[tuple[str, int]]
    draining: bool = False


class LeaseReply(msgspec.Struct, array_like=True, frozen=True):
    """Whether the executor took the lease, with its credit afterwards.

    `fatal` says that no executor of this pool could ever run it (`reason` goes to the caller).
    """

    accepted: bool
    credit: Credit
    reason: str = ""
    fatal: bool = False


FRAME_ENCODER: Final = msgspec.msgpack.Encoder()
FRAME_DECODER: Final = msgspec.msgpack.Decoder(TokenFrame)
CREDIT_DECODER: Final = msgspec.msgpack.Decoder(Credit)
LEASE_REPLY_DECODER: Final = msgspec.msgpack.Decoder(LeaseReply)
