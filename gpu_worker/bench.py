"""The in-process baseline: a fixed set of requests, N of them in flight, without any bus.

Each line on stdin is one command, each line on stdout its answer, so that a caller can interleave
runs with something else without loading the model again.
"""

import json
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from gpu_worker.engine import Engine
from gpu_worker.request import Request


@dataclass
class Run:
    """What one run measured. Times in seconds from the run's start, by request."""

    started: dict[str, float] = field(default_factory=dict)
    tokens: dict[str, list[float]] = field(default_factory=dict)
    steps: list[float] = field(default_factory=list)  # wall seconds a step
    wall_s: float = 0.0

    def summary(self) -> dict[str, Any]:
        """The figures, ready for JSON. Lists are in the order of the requests."""
        count = sum(len(times) for times in self.tokens.values())
        gaps = [(t[-1] - t[0]) / (len(t) - 1) for t in self.tokens.values() if len(t) > 1]
        first = [1e3 * (t[0] - self.started[i]) for i, t in self.tokens.items() if t]
        between = [b - a for times in self.tokens.values() for a, b in pairwise(times)]
        return {
            "requests": len(self.tokens),
            "output_tokens": count,
            "wall_s": round(self.wall_s, 4),
            "output_tok_s": round(count / self.wall_s, 2) if self.wall_s else 0.0,
            "ttft_ms": [round(each, 3) for each in first],
            "ttft_ms_p50": round(median(first), 3) if first else None,
            "tpot_ms_p50": round(1e3 * median(gaps), 3) if gaps else None,
            "gap_ms_max": round(1e3 * max(between), 3) if between else None,
            "step_ms_p50": round(1e3 * median(self.steps), 3) if self.steps else None,
            "steps": len(self.steps),
        }


def read_requests(path: Path, limit: int | None = None, ignore_eos: bool = True) -> list[Request]:
    """Requests from a JSON file: [{"prompt_ids": [...], "max_tokens": n}, ...]."""
    entries: list[Mapping[str, Any]] = json.loads(path.read_text())[:limit]
    return [
        Request(f"bench-{i}", tuple(e["prompt_ids"]), int(e["max_tokens"]), ignore_eos=ignore_eos)
        for i, e in enumerate(entries)
    ]


def measure(engine: Engine, requests: list[Request], concurrency: int) -> Run:
    """Run all requests, keeping `concurrency` of them in the engine. It must be idle before."""
    run, queue = Run(), deque(requests)
    begin = time.perf_counter()
    while queue or not engine.idle:
        while queue and len(engine.running) < concurrency:
            request = queue.popleft()
            run.tokens[request.id] = []
            run.started[request.id] = time.perf_counter() - begin
            engine.add(request)
        before = time.perf_counter()
        outputs = engine.step()
        now = time.perf_counter()
        run.steps.append(now - before)
        for output in outputs:
            run.tokens[output.request_id].extend([now - begin] * len(output.token_ids))
    run.wall_s = time.perf_counter() - begin
    return run


def serve(engine: Engine, defaults: Mapping[str, Any]) -> Iterator[str]:
    """Answer commands from stdin: {"requests": FILE, "concurrency": N, "limit": n, "ignore_eos": b}.

    Anything left out comes from `defaults`. Yields one JSON line a command; a command that cannot
    run yields {"error": ...}.
    """
    for line in sys.stdin:
        try:
            command = {**defaults, **json.loads(line)}
            requests = read_requests(
                Path(command["requests"]), command.get("limit"), command["ignore_eos"]
            )
            yield json.dumps(measure(engine, requests, command["concurrency"]).summary())
        except (ValueError, TypeError, KeyError, OSError) as error:
            yield json.dumps({"error": f"{type(error).__name__}: {error}"})
