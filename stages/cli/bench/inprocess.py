"""The engine without any bus, in a process of its own: what the pipeline is compared with."""

import asyncio
import json
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from stages.cli.rig import MODEL

LOAD_S = 120.0
RUN_S = 600.0
EXIT_S = 20.0


class InProcess:
    """`python -m gpu_worker bench`, driven by JSON lines so that it loads once."""

    def __init__(self, folder: Path, *, threads: int, kv_tokens: int, slots: int) -> None:
        self._requests = folder / "in-process-requests.json"
        self._options = {"--threads": threads, "--kv-tokens": kv_tokens, "--max-batch": slots}

    async def __aenter__(self) -> "InProcess":
        words = [str(word) for pair in self._options.items() for word in pair]
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gpu_worker", "bench", "--source", MODEL, *words,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        await self._answer(LOAD_S)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), EXIT_S)
        except TimeoutError:
            self._process.kill()

    async def run(
        self, prompts: list[list[int]], max_tokens: int, concurrency: int
    ) -> dict[str, Any]:
        """Run requests to their full length; times in ms, throughput in output tokens/s."""
        requests = [{"prompt_ids": ids, "max_tokens": max_tokens} for ids in prompts]
        self._requests.write_text(json.dumps(requests))
        command = {"requests": str(self._requests), "concurrency": concurrency}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        return await self._answer(RUN_S)

    async def _answer(self, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), timeout_s)
        answer: dict[str, Any] = json.loads(line or b'{"error": "the in-process engine ended"}')
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer
