"""Answers in OpenAI's form, as JSON text: whole, and as the data of server-sent events."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from contracts.client import Complete, FinishReason, Usage
from contracts.errors import ErrorCode, ErrorInfo
from contracts.internal import Verb
from stages.egress.http.errors import HttpError, problem

ENCODE: Final = msgspec.json.Encoder().encode
FINISHED: Final = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


def created_s(request_id: str) -> int:
    """When the request was made: its id (UUID 7) begins with the time, unix ms."""
    try:
        return (uuid.UUID(request_id).int >> 80) // 1000
    except ValueError:
        return 0


def failure(complete: Complete) -> HttpError | None:
    """Why an answer is not a whole one; None when it is."""
    if complete.finish_reason in FINISHED:
        return None
    if complete.finish_reason is FinishReason.CANCELLED and complete.error is None:
        message = "the request was cancelled: by a call of its tenant, or because its client left"
        return HttpError(409, "cancelled", message)
    error = complete.error or ErrorInfo(code=ErrorCode.INTERNAL, message="the request failed")
    return problem(error)


def total_usage(completes: Mapping[int, Complete]) -> dict[str, Any]:
    """Of all answers of a call; its prompt counts once."""
    first: Usage = completes[0].usage
    tokens = sum(complete.usage.completion_tokens for complete in completes.values())
    return {
        "prompt_tokens": first.prompt_tokens,
        "completion_tokens": tokens,
        "total_tokens": first.prompt_tokens + tokens,
        "prompt_tokens_details": {"cached_tokens": first.cached_tokens},
    }


def fingerprint(completes: Mapping[int, Complete]) -> str | None:
    """Of all executors of a call; None when they differ."""
    known = {complete.fingerprint for complete in completes.values()}
    return known.pop() if len(known) == 1 else None


@dataclass(frozen=True)
class Form:
    """How the answer to one call looks."""

    verb: Verb
    request_id: str
    model: str
    tier: str | None

    def whole(self, texts: Sequence[str], completes: Mapping[int, Complete]) -> bytes:
        """A whole answer, its choices in order."""
        choices = []
        for index, text in enumerate(texts):
            choice: dict[str, Any] = {"index": index}
            if self.verb == "chat":
                choice["message"] = {"role": "assistant", "content": text, "refusal": None}
            else:
                choice["text"] = text
            choice["logprobs"] = None
            choice["finish_reason"] = FINISHED[completes[index].finish_reason]
            choices.append(choice)
        kind = "chat.completion" if self.verb == "chat" else "text_completion"
        head = self._head(kind, fingerprint(completes))
        return ENCODE({**head, "choices": choices, "usage": total_usage(completes)})

    def _head(self, kind: str, made_by: str | None = None) -> dict[str, Any]:
        return {
            "id": self.request_id,
            "object": kind,
            "created": created_s(self.request_id),
            "model": self.model,
            "service_tier": self.tier,
            "system_fingerprint": made_by,
        }

    def chunks(self, include_usage: bool) -> "ChunkForm":
        """The same answer in pieces."""
        kind = "chat.completion.chunk" if self.verb == "chat" else "text_completion"
        head = self._head(kind)
        del head["system_fingerprint"]
        return ChunkForm(self.verb, ENCODE(head)[:-1], include_usage)


class ChunkForm:
    """The pieces of a streamed answer. What is the same in all of them is encoded once.

    Only the end knows which executors it was: it says the fingerprint, what comes before says null.
    """

    def __init__(self, verb: Verb, head: bytes, include_usage: bool) -> None:
        self._head = head  # an object without its closing brace
        self._chat = verb == "chat"
        # With usage asked for, every chunk but the last says null.
        self._end = b'}],"usage":null}' if include_usage else b"}]}"
        self._open = self._opening(None)

    def _opening(self, made_by: str | None) -> bytes:
        return self._head + b',"system_fingerprint":' + ENCODE(made_by) + b',"choices":['

    def first(self, choice: int) -> bytes | None:
        """Before any text: who speaks. Plain completions have no such chunk."""
        if not self._chat:
            return None
        return self._piece(choice, b'{"role":"assistant","content":""}', b"null")

    def text(self, choice: int, text: str) -> bytes:
        """New text."""
        value = ENCODE(text)
        return self._piece(choice, b'{"content":' + value + b"}" if self._chat else value, b"null")

    def last(self, choice: int, complete: Complete) -> bytes:
        """The end of one answer."""
        reason = ENCODE(FINISHED[complete.finish_reason])
        opening = self._opening(complete.fingerprint)
        return self._piece(choice, b"{}" if self._chat else b'""', reason, opening)

    def usage(self, completes: Mapping[int, Complete]) -> bytes:
        """The last chunk, without choices."""
        opening = self._opening(fingerprint(completes))
        return opening + b'],"usage":' + ENCODE(total_usage(completes)) + b"}"

    def _piece(
        self, choice: int, value: bytes, reason: bytes, opening: bytes | None = None
    ) -> bytes:
        name = b',"delta":' if self._chat else b',"text":'
        index = b'{"index":%d' % choice
        parts = (
            opening or self._open,
            index,
            name,
            value,
            b',"logprobs":null,"finish_reason":',
            reason,
        )
        return b"".join((*parts, self._end))
