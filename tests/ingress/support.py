"""A tokenizer that counts words, and calls as doors make them."""

import json
from collections.abc import Sequence
from typing import Any

from contracts.topology import Topology
from stages.ingress.intake import Call, Intake
from stages.ingress.prompt import PromptMaker, Turn
from stages.runtime.models.errors import ModelError
from tests.support.stages import KEY, topology

NOW = 1_700_000_000_000.0


class Words:
    """One token a word; a turn costs two more. Refuses a first turn by the assistant."""

    def prompt_ids(self, text: str) -> list[int]:
        return list(range(len(text.split())))

    def chat_ids(self, turns: Sequence[Turn]) -> list[int]:
        if turns[0][0] == "assistant":
            raise ModelError("the conversation starts with the assistant")
        return list(range(sum(len(content.split()) + 2 for _, content in turns)))


def maker(model: str = "m", context: int = 100) -> PromptMaker:
    return PromptMaker(model, context, Words(), Words())


def intake(plan: Topology | None = None) -> Intake:
    """With both models of the test topology, contexts of 100 tokens, and a stopped clock."""
    models = {"m": maker(), "big": maker("big")}
    return Intake(plan or topology(), 7, models, lambda: NOW, lambda: 4242)


def call(body: Any, verb: str = "generate", **changes: Any) -> Call:
    """`body` is bytes as they are, or JSON to be."""
    fields: dict[str, Any] = {
        "request_id": "r1",
        "verb": verb,
        "door": "nats",
        "api_key": KEY,
        "tenant": "acme",
        "body": body if isinstance(body, bytes) else json.dumps(body).encode(),
        "received_ms": NOW,
    }
    return Call(**fields | changes)
