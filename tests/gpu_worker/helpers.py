"""What several tests of this room do with an engine."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from contracts import subjects
from contracts.usage import USAGE_EVENT
from gpu_worker.engine import Engine
from gpu_worker.output import StepOutput
from gpu_worker.request import Request
from stages.runtime.bus import Bus


def drain(engine: Engine, limit: int = 10_000) -> list[StepOutput]:
    """Step until nothing is left; fail instead of running for ever."""
    outputs: list[StepOutput] = []
    for _ in range(limit):
        if engine.idle:
            engine.check_integrity()
            return outputs
        outputs += engine.step()
    raise AssertionError("the engine does not come to rest")


def tokens_of(outputs: Iterable[StepOutput]) -> dict[str, list[int]]:
    """Output tokens by request; checks that offsets leave no gap."""
    tokens: dict[str, list[int]] = defaultdict(list)
    first: dict[str, int] = {}
    for output in outputs:
        begin = first.setdefault(output.request_id, output.offset)
        assert output.offset == begin + len(tokens[output.request_id])
        tokens[output.request_id] += output.token_ids
    return dict(tokens)


def run(engine: Engine, *requests: Request, stagger: int = 0) -> dict[str, list[int]]:
    """Add all requests, `stagger` steps apart, and run them to the end."""
    outputs: list[StepOutput] = []
    for request in requests:
        engine.add(request)
        for _ in range(stagger):
            outputs += engine.step()
    return tokens_of(outputs + drain(engine))


async def usage_events(bus: Bus) -> list[Any]:
    """All usage events stored so far."""
    info = await bus.js.stream_info(subjects.USAGE_STREAM)
    found = []
    for seq in range(info.state.first_seq, info.state.last_seq + 1):
        message = await bus.js.get_msg(subjects.USAGE_STREAM, seq)
        found.append(USAGE_EVENT.validate_json(message.data or b""))
    return found
