"""From text to token ids, and whether prompt and answer fit the model."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from contracts.client import ChatRequest, GenerateRequest
from contracts.errors import ErrorCode, HeadraceError
from stages.runtime.models.errors import ModelError

INLINE_CHARS: Final = 2_000  # 1.5 ms of tokenizing; longer prompts leave the event loop
TURN_CHARS: Final = 20  # what the template's frame around one message costs, in characters of text
PROBE_CHARS: Final = 8  # per token of context: a first look at a long prompt
PROBE_SLACK: Final = 64  # tokens a cut may add at its end

Turn = tuple[str, str]  # role, content


class Encoder(Protocol):
    """A model's tokenizer and template, as this module uses them."""

    def prompt_ids(self, text: str) -> list[int]:
        """Ids of a bare prompt."""

    def chat_ids(self, turns: Sequence[Turn]) -> list[int]:
        """Ids of a conversation. Raises ModelError when the template refuses it."""


class PromptMaker:
    """Makes prompt ids for one model. `quick` serves the event loop, `patient` a thread.

    They are two instances because a tokenizer keeps a lock while it works.
    """

    def __init__(self, model: str, context: int, quick: Encoder, patient: Encoder) -> None:
        self.model = model
        self.context = context
        self._quick = quick
        self._patient = patient

    async def ids(self, request: GenerateRequest | ChatRequest) -> list[int]:
        """Raises invalid_request (template) and context_length_exceeded (a prompt far too long)."""
        if _size(request) <= INLINE_CHARS:
            return self._encode(self._quick, request)
        return await asyncio.to_thread(self._encode_long, request)

    def _encode_long(self, request: GenerateRequest | ChatRequest) -> list[int]:
        text = _text(request)
        turns = len(request.messages) if isinstance(request, ChatRequest) else 0
        at_least = probe(text, self.context + PROBE_SLACK + turns, self._patient.prompt_ids)
        if at_least is not None:
            raise _too_long(f"at least {at_least}", self.model, self.context)
        return self._encode(self._patient, request)

    def _encode(self, encoder: Encoder, request: GenerateRequest | ChatRequest) -> list[int]:
        if isinstance(request, GenerateRequest):
            ids = encoder.prompt_ids(request.prompt)
        else:
            try:
                ids = encoder.chat_ids([(turn.role, turn.content) for turn in request.messages])
            except ModelError as error:
                raise HeadraceError(
                    ErrorCode.INVALID_REQUEST,
                    f"model {self.model!r} cannot take these messages: {error}",
                    field="messages",
                ) from error
        if not ids:
            raise HeadraceError(
                ErrorCode.INVALID_REQUEST, "the prompt has no tokens; write a text", field="prompt"
            )
        return ids


def answer_limit(prompt: int, wanted: int | None, default: int, model: str, context: int) -> int:
    """How many tokens may be generated: `wanted`, else `default` cut to what the context leaves.

    Raises context_length_exceeded when the prompt and one token, or the prompt and `wanted`, do not
    fit `context` tokens.
    """
    if prompt + 1 > context:
        raise _too_long(str(prompt), model, context)
    if wanted is None:
        return min(default, context - prompt)
    if prompt + wanted > context:
        raise HeadraceError(
            ErrorCode.CONTEXT_LENGTH_EXCEEDED,
            f"the prompt has {prompt} tokens and max_tokens is {wanted}, together {prompt + wanted}; "
            f"model {model!r} has a context of {context}: ask for at most {context - prompt}",
            field="max_tokens",
        )
    return wanted


def probe(text: str, limit: int, encode: Callable[[str], list[int]]) -> int | None:
    """A number of tokens above `limit` that `text` surely has, None if it may have fewer.

    Looks at prefixes of doubling length, so a prompt of megabytes costs no more than one that fits.
    """
    size = PROBE_CHARS * limit
    while size < len(text):
        count = len(encode(text[:size]))
        if count > limit:
            return count
        size *= 2
    return None


def _size(request: GenerateRequest | ChatRequest) -> int:
    """What tokenizing costs, in characters: thousands of empty messages are not free."""
    if isinstance(request, GenerateRequest):
        return len(request.prompt)
    return sum(len(turn.content) + TURN_CHARS for turn in request.messages)


def _text(request: GenerateRequest | ChatRequest) -> str:
    if isinstance(request, GenerateRequest):
        return request.prompt
    return "\n".join(turn.content for turn in request.messages)


def _too_long(tokens: str, model: str, context: int) -> HeadraceError:
    return HeadraceError(
        ErrorCode.CONTEXT_LENGTH_EXCEEDED,
        f"the prompt has {tokens} tokens; model {model!r} has a context of {context} for prompt and "
        "answer together: shorten the prompt",
        field="prompt",
    )
