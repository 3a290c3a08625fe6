"""What the answers look like, for the OpenAPI document (the hot path writes them by hand) and for tests."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Said(BaseModel):
    """Base: nothing more than what is written here."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ErrorBody(Said):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorEnvelope(Said):
    """Every answer that is not a success."""

    error: ErrorBody


class PromptDetails(Said):
    """Parts of the prompt."""

    cached_tokens: int = Field(description="prompt tokens that were not computed again")


class UsageBody(Said):
    """Tokens delivered (what is billed); the prompt counts once however many answers."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class Head(Said):
    """What every answer and every chunk begins with."""

    id: str = Field(description="the request; its answer can be read again under it for 5 minutes")
    created: int = Field(description="unix seconds")
    model: str
    service_tier: Literal["default", "flex", "priority"] | None
    system_fingerprint: str | None = Field(
        description="of the executor: where it is equal, equal seeds make equal texts. In a stream the "
        "last chunks say it"
    )


class ChatMessage(Said):
    """The answer to a conversation."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(Said):
    """One of n answers."""

    index: int
    message: ChatMessage
    logprobs: None
    finish_reason: Literal["stop", "length"]


class ChatCompletion(Head):
    """A whole answer to a chat."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: UsageBody


class Delta(Said):
    """New text of a chat's answer."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(Said):
    """New text of one of n answers, or its end."""

    index: int
    delta: Delta
    logprobs: None
    finish_reason: Literal["stop", "length"] | None


class ChatChunk(Head):
    """The data of one event."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: UsageBody | None = None


class TextChoice(Said):
    """One of n continuations."""

    index: int
    text: str
    logprobs: None
    finish_reason: Literal["stop", "length"]


class TextCompletion(Head):
    """A whole continuation."""

    object: Literal["text_completion"]
    choices: list[TextChoice]
    usage: UsageBody


class TextChunkChoice(Said):
    """New text of one of n continuations, or its end."""

    index: int
    text: str
    logprobs: None
    finish_reason: Literal["stop", "length"] | None


class TextChunk(Head):
    """The data of one event."""

    object: Literal["text_completion"]
    choices: list[TextChunkChoice]
    usage: UsageBody | None = None


class ModelBody(Said):
    """A model that the caller may name."""

    id: str
    object: Literal["model"] = "model"
    created: int = Field(0, description="not known")
    owned_by: Literal["headrace"] = "headrace"
    context: int = Field(description="longest prompt plus answer, in tokens")
    pools: list[str]


class ModelListBody(Said):
    """All of them."""

    object: Literal["list"] = "list"
    data: list[ModelBody]


class Health(Said):
    """For load balancers."""

    status: Literal["serving", "draining"]
