"""What queueing and a new attempt rely on when the last frame or a receipt was lost."""

import asyncio

from contracts import subjects
from contracts.client import FinishReason
from contracts.sessions import ProgressQuery, ProgressReply
from tests.egress.builders import make_item
from tests.egress.conftest import EGRESS, World
from tests.egress.test_nats_door import opened


async def test_a_closed_session_tells_its_end_once_the_receipt_is_stored(world: World) -> None:
    await opened(world)
    await world.send(make_item("ab", 0, finish="stop"))
    (receipt,) = await world.receipts(1)
    query = ProgressQuery(request_ids=["r1"])
    reasons: list[FinishReason | None] = []
    for _ in range(200):
        reply = await world.bus.request(
            subjects.session(EGRESS), query, ProgressReply, timeout_s=10
        )
        reasons.append(reply.sessions[0].finish_reason)
        if reasons[-1] is not None:
            break
        await asyncio.sleep(0.05)
    assert reasons[-1] is receipt.finish_reason is FinishReason.STOP


async def test_a_new_attempt_without_tokens_ends_the_session(world: World) -> None:
    """All tokens came, the last frame's end did not: the next executor has only the end to say."""
    inbox = await opened(world)
    await world.send(make_item("ab", 0))
    await world.send(make_item([], 2, attempt=2, finish="length"))
    (receipt,) = await world.receipts(1)
    assert (receipt.finish_reason, receipt.completion_tokens) == (FinishReason.LENGTH, 2)
    last = await inbox.next()
    while last["type"] != "complete":
        last = await inbox.next()
    assert last["finish_reason"] == "length"
