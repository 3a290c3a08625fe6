"""What a step says of each request it touched."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from gpu_worker.request import FinishReason


@dataclass(frozen=True)
class StepOutput:
    """One request's part of one step.

    `token_ids`: new output tokens. A stop token ends the text and is not among them, so the number
    of delivered tokens is the completion count. `offset`: place of the first new token in the
    output, tokens of earlier attempts counted. `computed_tokens`: rows run for it so far, prompt
    and output. `cached_tokens`: prompt tokens that needed no computing. `busy_us`: its share of
    this step's time by rows, in whole microseconds; the shares of a step add up to the step.
    """

    request_id: str
    token_ids: tuple[int, ...]
    offset: int
    finish: FinishReason | None
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    busy_us: int
    busy_us_total: int


def split(total: int, weights: Seq[int]) -> list[int]:
    """Divide an integer by weights into integers that add up to it exactly."""
    whole = sum(weights)
    shares: list[int] = []
    seen = given = 0
    for weight in weights:
        seen += weight
        upto = total * seen // whole
        shares.append(upto - given)
        given = upto
    return shares
