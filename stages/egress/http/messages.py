"""OpenAI's messages and prompts in our schema's terms. Other content than text is refused by name."""

from collections.abc import Mapping
from typing import Any, Final

from stages.egress.http.errors import invalid, unsupported

ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
# What the client's own objects say when they are sent back (`message.model_dump()`) asks for nothing.
_NULL_ONLY: Final = ("name", "tool_call_id", "function_call", "refusal", "audio")
_EMPTY_ONLY: Final = ("tool_calls", "annotations")
_NOTHING: Final[Mapping[str, tuple[Any, ...]]] = {
    **dict.fromkeys(_NULL_ONLY, (None,)),
    **{name: (None, []) for name in _EMPTY_ONLY},
}

MESSAGE_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"enum": list(ROLES)},
        "content": {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["type", "text"],
                        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                        "additionalProperties": False,
                    },
                },
            ]
        },
        **{name: {"enum": list(values)} for name, values in _NOTHING.items()},
    },
    "additionalProperties": False,
}
MESSAGES_SCHEMA: Final[dict[str, Any]] = {
    "type": "array",
    "items": MESSAGE_SCHEMA,
    "minItems": 1,
    "maxItems": 4096,
    "description": "oldest first",
}
PROMPT_SCHEMA: Final[dict[str, Any]] = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {
            "type": "array",
            "items": {"type": "string", "minLength": 1},
            "minItems": 1,
            "maxItems": 1,
        },
    ],
    "description": "the text to continue; one text a call",
}


def messages(value: Any) -> Any:
    """Each message with role and text. What is no message at all goes on: ingress explains it."""
    if not isinstance(value, list):
        return value
    return [_message(each, f"messages.{index}") for index, each in enumerate(value)]


def _message(value: Any, path: str) -> Any:
    if not isinstance(value, Mapping):
        return value
    kept = dict(value)
    for name, values in _NOTHING.items():
        if kept.pop(name, None) not in values:
            raise unsupported(f"{path}.{name}", f"{path}.{name} is not supported yet; leave it out")
    role = kept.get("role")
    if role in ("tool", "function"):
        raise unsupported(f"{path}.role", f"messages of role {role!r} are not supported yet")
    if isinstance(role, str):
        kept["role"] = ROLES.get(role, role)
    if isinstance(kept.get("content"), list):
        parts = enumerate(kept["content"])
        kept["content"] = "".join(_part(each, f"{path}.content.{index}") for index, each in parts)
    return kept


def _part(value: Any, path: str) -> str:
    if not isinstance(value, Mapping) or not isinstance(value.get("type"), str):
        raise invalid(f'{path} is no content part; send {{"type": "text", "text": …}}', path)
    if value["type"] != "text":
        kind = value["type"][:64]
        raise unsupported(f"{path}.type", f"content of type {kind!r} is not supported yet")
    if not isinstance(value.get("text"), str) or len(value) != 2:
        raise invalid(f"{path} must have a text and nothing else; correct it", path)
    text: str = value["text"]
    return text


def prompt(value: Any) -> Any:
    """The one text. Token arrays and several prompts are not there yet."""
    if not isinstance(value, list):
        return value
    if any(not isinstance(each, str) for each in value):
        raise unsupported("prompt", "a prompt of tokens is not supported yet; send its text")
    if not value:
        raise invalid("prompt is []: it should be one text; add it", "prompt")
    if len(value) != 1:
        raise unsupported(
            "prompt",
            f"{len(value)} prompts in one call are not supported yet; make one call for each",
        )
    return value[0]
