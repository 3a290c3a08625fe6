"""Prompts of known length, made of ordinary words, different in every run of a suite."""

import math
import random
from typing import Final

from stages.cli.rig import MODEL
from stages.runtime.models.artifacts import load_tokenizer
from stages.runtime.models.store import open_model
from stages.runtime.models.tokenizer import Tokenizer

WORDS: Final = (
    "river",
    "stone",
    "wheel",
    "water",
    "light",
    "signal",
    "engine",
    "garden",
    "winter",
    "paper",
    "copper",
    "bridge",
    "window",
    "music",
    "market",
    "letter",
    "summer",
    "forest",
)


class Prompts:
    """Draws texts with a given number of tokens from a seeded source."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - test data, not secrets
        self.tokenizer: Tokenizer = load_tokenizer(open_model(MODEL))

    def text(self, tokens: int) -> str:
        """A text of about `tokens` tokens (one word is one or two)."""
        words = [self._random.choice(WORDS) for _ in range(tokens)]
        ids = self.tokenizer.encode(" ".join(words))[:tokens]
        return self.tokenizer.decode(ids)

    def between(self, low: int, high: int) -> int:
        """A number, both ends included."""
        return self._random.randint(low, high)

    def log_between(self, low: int, high: int) -> int:
        """A number whose logarithm is uniform: short ones are common, long ones do occur."""
        return round(low * math.pow(high / low, self._random.random()))

    def ids(self, text: str) -> list[int]:
        """The tokens of a text, counted by the client itself."""
        return self.tokenizer.encode(text)
