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
        return HttpError(409, "cancelled", "the request was cancelled by a call of its tenant")
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
        return ENCODE({**self._head(kind), "choices": choices, "usage": total_usage(completes)})

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.request_id,
            "object": kind,
            "created": created_s(self.request_id),
            "model": self.model,
            "service_tier": self.tier,
            "system_fingerprint": None,
        }

    def chunks(self, include_usage: bool) -> "ChunkForm":
        """The same answer in pieces."""
        kind = "chat.completion.chunk" if self.verb == "chat" else "text_completion"
        return ChunkForm(self.verb, ENCODE(self._head(kind))[:-1], include_usage)


class ChunkForm:
    """The pieces of a streamed answer. What is the same in all of them is encoded once."""

    def __init__(self, verb: Verb, head: bytes, include_usage: bool) -> None:
        self._head = head  # an object without its closing brace
        self._chat = verb == "chat"
        # With usage asked for, every chunk but the last says null.
        self._end = b'}],"usage":null}' if include_usage else b"}]}"
        self._open = head + b',"choices":[{"index":'

    def first(self, choice: int) -> bytes | None:
        """Before any text: who speaks. Plain completions have no such chunk."""
        if not self._chat:
            return None
        return self._piece(choice, b'{"role":"assistant","content":""}', b"null")

    def text(self, choice: int, text: str) -> bytes:
        """New text."""
        value = ENCODE(text)
        return self._piece(choice, b'{"content":' + value + b"}" if self._chat else value, b"null")

    def last(self, choice: int, reason: FinishReason) -> bytes:
        """The end of one answer."""
        return self._piece(choice, b"{}" if self._chat else b'""', ENCODE(FINISHED[reason]))

    def usage(self, completes: Mapping[int, Complete]) -> bytes:
        """The last chunk, without choices."""
        return self._head + b',"choices":[],"usage":' + ENCODE(total_usage(completes)) + b"}"

    def _piece(self, choice: int, value: bytes, reason: bytes) -> bytes:
        name = b',"delta":' if self._chat else b',"text":'
        index = b"%d" % choice
        parts = (self._open, index, name, value, b',"logprobs":null,"finish_reason":', reason)
        return b"".join((*parts, self._end))
