"""What a request may say: options handed on to ingress as they are, and options that only a neutral
value is taken of, because what they ask for is not there yet."""

from collections.abc import Mapping
from typing import Any, Final

from contracts.client import ChatRequest, GenerateRequest
from contracts.internal import Verb
from stages.egress.http.errors import unsupported

Schema = dict[str, Any]
CHOICES_MAX: Final = 16
TIMEOUT_LEAST_MS: Final = 1000  # a client that is in more of a hurry than that can hang up

# `service_tier` is our priority; the one really used is said in the answer.
TIERS: Final = {"auto": "normal", "default": "normal", "flex": "low", "priority": "high"}
TIER_USED: Final = {"normal": "default", "low": "flex", "high": "priority"}

# Named as in our own schema; ingress checks them for all doors alike.
PASSED: Final = (
    "model", "temperature", "top_p", "seed", "max_tokens", "metadata",
    "top_k", "ignore_eos", "timeout_ms", "resume_window_ms",
)  # fmt: skip

# What to do about fields that other calls and doors have.
ADVICE: Final[Mapping[tuple[Verb | None, str], str]] = {
    ("chat", "prompt"): "send messages, or call /v1/completions",
    ("generate", "messages"): "send a prompt, or call /v1/chat/completions",
    ("generate", "max_completion_tokens"): "use max_tokens",
    (None, "priority"): "use service_tier",
    (None, "idempotency_key"): "send the header idempotency-key",
    (None, "deadline_unix_ms"): "use timeout_ms",
    (None, "max_new_tokens"): "use max_tokens",
}

_OFF: Final = (None, False)
_NONE: Final = (None,)
_EMPTY: Final[tuple[Any, ...]] = (None, [])
_ZERO: Final = (None, 0)
_BOTH: Final[Mapping[str, tuple[Any, ...]]] = {
    "frequency_penalty": _ZERO,
    "presence_penalty": _ZERO,
    "logit_bias": (None, {}),
}
NEUTRAL: Final[Mapping[Verb, Mapping[str, tuple[Any, ...]]]] = {
    "chat": {
        **_BOTH,
        "tools": _EMPTY,
        "tool_choice": (None, "none"),
        "parallel_tool_calls": (None, False, True),  # without tools there is nothing to call
        "functions": _EMPTY,
        "function_call": (None, "none"),
        "response_format": (None, {"type": "text"}),
        "logprobs": _OFF,
        "top_logprobs": _ZERO,
        "audio": _NONE,
        "modalities": (None, ["text"]),
        "prediction": _NONE,
        "store": _OFF,
        "reasoning_effort": _NONE,
        "verbosity": _NONE,
        "web_search_options": _NONE,
        "prompt_cache_key": _NONE,
        "prompt_cache_retention": _NONE,
        "safety_identifier": _NONE,
        "moderation": _NONE,
    },
    "generate": {
        **_BOTH,
        "suffix": (None, ""),
        "echo": _OFF,
        "best_of": (None, 1),
        "logprobs": _NONE,
    },
}


def refuse_unsupported(verb: Verb, body: Mapping[str, Any]) -> None:
    """Raises `HttpError` for the first option of `body` that is not there yet."""
    for name, values in NEUTRAL[verb].items():
        if name in body and not any(_same(body[name], value) for value in values):
            raise unsupported(name, f"{name} is not supported yet; leave it out")


def _same(value: Any, neutral: Any) -> bool:
    """JSON's equality: false is not 0."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def _or_null(schema: Schema) -> Schema:
    described = {key: schema[key] for key in ("description",) if key in schema}
    plain = {
        key: value for key, value in schema.items() if key not in ("title", "default", *described)
    }
    variants = plain["anyOf"] if set(plain) == {"anyOf"} else [plain]
    if {"type": "null"} not in variants:
        variants = [*variants, {"type": "null"}]
    return {"anyOf": variants, **described}


def _passed_schemas(verb: Verb) -> dict[str, Schema]:
    kind = ChatRequest if verb == "chat" else GenerateRequest
    properties = kind.model_json_schema()["properties"]
    found = {name: _or_null(properties[name]) for name in PASSED}
    for variant in found["timeout_ms"]["anyOf"]:
        if "minimum" in variant:
            variant["minimum"] = TIMEOUT_LEAST_MS
    return found


def _own_schemas() -> dict[str, Schema]:
    stop = GenerateRequest.model_json_schema()["properties"]["stop"]
    flag = {"anyOf": [{"type": "boolean"}, {"type": "null"}]}
    return {
        "n": {
            "anyOf": [{"type": "integer", "minimum": 1, "maximum": CHOICES_MAX}, {"type": "null"}],
            "description": "how many answers; the prompt is billed once",
        },
        "stream": {**flag, "description": "server-sent events instead of one JSON object"},
        "stream_options": {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {
                        "include_usage": {
                            **flag,
                            "description": "a last chunk without choices that has the usage",
                        },
                        "include_obfuscation": {"enum": [None, False]},
                    },
                    "additionalProperties": False,
                },
                {"type": "null"},
            ],
            "description": "only with stream: true",
        },
        "stop": {
            "anyOf": [
                stop["items"],
                {"type": "array", "items": stop["items"], "maxItems": stop["maxItems"]},
                {"type": "null"},
            ],
            "description": stop["description"],
        },
        "service_tier": {
            "enum": [*TIERS, None],
            "description": "order of service: priority, default (auto), flex",
        },
        "user": {"type": ["string", "null"], "description": "kept as metadata.user"},
    }


def option_schemas(verb: Verb) -> dict[str, Schema]:
    """JSON Schema of every option but the prompt, by name."""
    own = _passed_schemas(verb) | _own_schemas()
    if verb == "chat":
        own["max_completion_tokens"] = own["max_tokens"]
    told = "not supported yet: only the values that ask for nothing are taken"
    for name, values in NEUTRAL[verb].items():
        own[name] = {"enum": list(values), "description": told}
    return own
