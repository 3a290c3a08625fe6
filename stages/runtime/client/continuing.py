"""A stream that breaks is gone on with, so that its reader sees neither a repeat nor a gap."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from typing import Final

from tenacity import (
    AsyncRetrying,
    retry_if_exception_type,
    stop_after_delay,
    wait_exponential_jitter,
)

from contracts.client import Accepted, Chunk, Complete, Refused
from contracts.errors import ErrorCode
from stages.runtime.client.answers import Answer, CannotConnect, NoAnswer

Stream = AsyncGenerator[Answer, None]
PAUSE_S: Final = 0.05  # before the first try, and the shortest between tries
PAUSE_MAX_S: Final = 1.0
# Refusals of an accepted request after which it may be resumed, here or at another egress.
PASSING: Final = (ErrorCode.NO_CAPACITY, ErrorCode.SHUTTING_DOWN, ErrorCode.SATURATED)


class Broken(CannotConnect):
    """The stream ended without its terminal; the request may well go on."""


class Refusal(Broken):
    """It was answered: not now."""


class Place:
    """What a reader has had of one request.

    `left`: resumes of ours that we gave up without an answer. Each may still be carried out after a later
    one, and replace it; nobody reads there, so the request is resumed once more.
    """

    def __init__(self, request_id: str | None = None, offset: int = 0) -> None:
        self.request_id = request_id
        self.offset = offset
        self.left = 0
        self._accepted = False
        self._seq = 0

    def take(self, answer: Answer) -> Answer | None:
        """The answer as the reader sees it; None for what was said before."""
        match answer:
            case Accepted():
                again, self._accepted = self._accepted, True
                self.request_id = answer.request_id
                return None if again else answer
            case Chunk():
                self.offset = answer.next_offset
                seq, self._seq = self._seq, self._seq + 1
                return answer if answer.seq == seq else answer.model_copy(update={"seq": seq})
        return answer


async def continued(
    first: Callable[[], Stream],
    resume: Callable[[str, int], Stream],
    place: Place,
    until: float,
    *,
    repeatable: bool = False,
) -> Stream:
    """The answers of `first`, and after every break those of `resume`, until the monotonic `until`.

    What breaks before it was accepted may never have come in: it is an error, unless the call is
    `repeatable` (it has an idempotency key).
    """
    early: Answer | None = None
    stream = first()
    while True:
        try:
            async with contextlib.aclosing(stream) as answers:
                if early is not None:
                    yield early
                    early = None
                async for answer in answers:
                    _check(answer, place)
                    seen = place.take(answer)
                    if seen is not None:
                        yield seen
                    if isinstance(answer, Complete | Refused):
                        return
            raise Broken("the stream ended without `complete`")
        except CannotConnect:
            if place.request_id is None and not repeatable:
                raise
        stream, answer = await _opened(_opening(first, resume, place), place, until)
        early = place.take(answer)
        if isinstance(answer, Complete | Refused):
            await stream.aclose()
            yield answer
            return


def _opening(
    first: Callable[[], Stream], resume: Callable[[str, int], Stream], place: Place
) -> Callable[[], Stream]:
    if place.request_id is None:
        return first
    request_id, offset = place.request_id, place.offset
    return lambda: resume(request_id, offset)


async def _opened(
    opening: Callable[[], Stream], place: Place, until: float
) -> tuple[Stream, Answer]:
    """The stream again, and its first answer. Raises `NoAnswer` when there is no time left."""
    await asyncio.sleep(PAUSE_S)
    try:
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(CannotConnect),
            stop=stop_after_delay(until - time.monotonic()),
            wait=wait_exponential_jitter(multiplier=PAUSE_S, max=PAUSE_MAX_S, jitter=PAUSE_S),
            reraise=True,
        ):
            with attempt:
                return await _tried(opening, place)
    except CannotConnect as error:
        raise NoAnswer(f"the answer broke off and could not be resumed in time: {error}") from None
    raise AssertionError("tenacity ends by an answer or an exception")


async def _tried(opening: Callable[[], Stream], place: Place) -> tuple[Stream, Answer]:
    stream = opening()
    try:
        answer = await anext(stream)
        _check(answer, place)
    except StopAsyncIteration:
        place.left += 1
        raise Broken("the stream ended without an answer") from None
    except BaseException as error:
        place.left += not isinstance(error, Refusal)
        await stream.aclose()
        raise
    return stream, answer


def _check(answer: Answer, place: Place) -> None:
    """Raises `Refusal` for one that passes: also one that a resume of our own, left behind, brought."""
    if not isinstance(answer, Refused) or not place.request_id:
        return
    if answer.error.code is ErrorCode.CONFLICT and place.left:
        place.left -= 1
        raise Refusal(answer.error.message)
    if answer.error.code in PASSING:
        raise Refusal(answer.error.message)
