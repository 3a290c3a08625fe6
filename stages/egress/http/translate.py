"""An OpenAI request in our own schema's terms."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic_core import from_json, to_json

from contracts.internal import Verb
from stages.egress.http import messages as said
from stages.egress.http.errors import HttpError, invalid
from stages.egress.http.options import (
    ADVICE,
    CHOICES_MAX,
    NEUTRAL,
    PASSED,
    TIER_USED,
    TIERS,
    TIMEOUT_LEAST_MS,
    refuse_unsupported,
)

_OWN: Final = ("n", "stream", "stream_options", "stop", "service_tier", "user")
_SEEDS: Final = 2**63


@dataclass(frozen=True)
class Asked:
    """One call: `fields` is a chat or generate request of ours, the rest is the door's affair."""

    verb: Verb
    fields: Mapping[str, Any]
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    tier: str | None = None
    names: Mapping[str, str] | None = None  # our field → the caller's name for it

    def body(self, choice: int, idempotency_key: str | None) -> str:
        """What ingress is asked for one of the answers; each has a seed of its own."""
        fields = dict(self.fields)
        seed = fields.get("seed")
        if choice and type(seed) is int:
            fields["seed"] = (seed + choice) % _SEEDS
        if idempotency_key is not None:
            fields["idempotency_key"] = idempotency_key
        return to_json(fields).decode()


def read_object(raw: bytes) -> dict[str, Any]:
    """The body as a JSON object; raises `HttpError`."""
    try:
        value = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise invalid(f"the body is not JSON: {error}; send one JSON object") from None
    if not isinstance(value, dict):
        raise invalid("the body is not a JSON object; send one with the fields of the request")
    return value


def translate(verb: Verb, raw: bytes) -> Asked:
    """Raises `HttpError` for what is no JSON, unknown, not supported or cannot be said to ingress."""
    body = read_object(raw)
    refuse_unsupported(verb, body)
    _refuse_unknown(verb, body)
    stream = _flag(body, "stream")
    include_usage = _include_usage(body, stream)
    fields, names = _fields(verb, body)
    return Asked(
        verb=verb,
        fields=fields,
        n=_count(body),
        stream=stream,
        include_usage=include_usage,
        tier=TIER_USED[fields["priority"]],
        names=names,
    )


def _refuse_unknown(verb: Verb, body: Mapping[str, Any]) -> None:
    known = {*PASSED, *_OWN, *NEUTRAL[verb]}
    known |= {"messages", "max_completion_tokens"} if verb == "chat" else {"prompt"}
    for name in body:
        if name not in known:
            shown = name[:64]
            advice = ADVICE.get((verb, name)) or ADVICE.get((None, name), "remove it")
            message = f"unknown field {shown!r}; {advice}"
            raise HttpError(400, "unknown_parameter", message, param=shown)


def _fields(verb: Verb, body: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    fields = {name: body[name] for name in PASSED if body.get(name) is not None}
    names = {}
    if verb == "chat":
        fields["messages"] = said.messages(body.get("messages"))
        newer = body.get("max_completion_tokens")
        if newer is not None:
            if fields.get("max_tokens", newer) != newer:
                message = "max_tokens and max_completion_tokens differ; send only the second"
                raise invalid(message, "max_tokens")
            fields["max_tokens"] = newer
            names["max_tokens"] = "max_completion_tokens"
    else:
        fields["prompt"] = said.prompt(body.get("prompt"))
    if fields[_prompt := "messages" if verb == "chat" else "prompt"] is None:
        raise invalid(f"{_prompt} is missing; add it", _prompt)
    stop = body.get("stop")
    if stop is not None:
        fields["stop"] = [stop] if isinstance(stop, str) else stop
        if isinstance(stop, str):
            names["stop.0"] = "stop"
    user = body.get("user")
    if user is not None:
        _note_user(fields, user)
        names["metadata.user"] = "user"
    fields["priority"] = _priority(body.get("service_tier"))
    _check_timeout(fields.get("timeout_ms"))
    return fields, names


def _note_user(fields: dict[str, Any], user: Any) -> None:
    metadata = fields.setdefault("metadata", {})
    if isinstance(metadata, dict):
        fields["metadata"] = {"user": user, **metadata}


def _priority(tier: Any) -> str:
    if tier is None:
        return "normal"
    if not isinstance(tier, str) or tier not in TIERS:
        known = ", ".join(TIERS)
        raise invalid(f"service_tier must be one of: {known}; correct it", "service_tier")
    return TIERS[tier]


def _check_timeout(value: Any) -> None:
    if isinstance(value, int) and value < TIMEOUT_LEAST_MS:
        message = f"timeout_ms is {value}: it should be at least {TIMEOUT_LEAST_MS} over HTTP"
        raise invalid(message, "timeout_ms")


def _count(body: Mapping[str, Any]) -> int:
    n = body.get("n")
    if n is None:
        return 1
    if type(n) is not int or not 1 <= n <= CHOICES_MAX:
        raise invalid(f"n must be a whole number from 1 to {CHOICES_MAX}; correct it", "n")
    return n


def _flag(body: Mapping[str, Any], name: str, path: str | None = None) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise invalid(f"{path or name} must be true or false; correct it", path or name)
    return bool(value)


def _include_usage(body: Mapping[str, Any], stream: bool) -> bool:
    options = body.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise invalid("stream_options must be an object; correct it", "stream_options")
    if not stream:
        raise invalid("stream_options needs stream: true; set it or leave both", "stream_options")
    for name in options:
        path = f"stream_options.{name[:64]}"
        if name not in ("include_usage", "include_obfuscation"):
            raise HttpError(400, "unknown_parameter", f"unknown field {path!r}; remove it", path)
    if _flag(options, "include_obfuscation", "stream_options.include_obfuscation"):
        path = "stream_options.include_obfuscation"
        raise HttpError(400, "unsupported_parameter", f"{path} is not supported yet", path)
    return _flag(options, "include_usage", "stream_options.include_usage")
