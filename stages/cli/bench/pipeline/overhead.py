"""TTFT and throughput of the chain against the same engine in process, in interleaved pairs."""

import asyncio
import time
from statistics import median
from typing import Final

from contracts.client import GenerateRequest
from stages.cli.bench.calls import run_call
from stages.cli.bench.inprocess import InProcess
from stages.cli.bench.pipeline.site import Site

SETTLE_S: Final = 0.8  # before each measurement: what the last one left behind is done by then
TTFT_PAIRS: Final = 40
TTFT_PROMPT: Final = 32
WARM_UP: Final = 4
PAIRS: Final = 5
CONCURRENT: Final = 16
PROMPT: Final = 64
OUTPUT: Final = 64


def _request(text: str, tokens: int) -> GenerateRequest:
    return GenerateRequest(prompt=text, max_tokens=tokens, temperature=0.0, ignore_eos=True)


async def ttft(site: Site, engine: InProcess) -> dict[str, float]:
    """One request at a time, the doors in turn; the client's clock against the engine's own."""
    chain, alone = [], []
    for number in range(TTFT_PAIRS + WARM_UP):
        text = site.prompts.text(TTFT_PROMPT)
        await asyncio.sleep(SETTLE_S)
        record = await run_call(site.doors[number % 2], _request(text, 2))
        await asyncio.sleep(SETTLE_S)
        answer = await engine.run([site.prompts.ids(text)], 2, 1)
        if number >= WARM_UP:
            chain.append(record.ttft_ms)
            alone.append(answer["ttft_ms"][0])
    differences = [a - b for a, b in zip(chain, alone, strict=True)]
    return {
        "pipeline.ttft_ms_p50": median(chain),
        "pipeline.in_process_ttft_ms_p50": median(alone),
        "pipeline.ttft_overhead_ms_p50": median(differences),
        "pipeline.ttft_overhead_grpc_ms_p50": median(differences[::2]),
        "pipeline.ttft_overhead_nats_ms_p50": median(differences[1::2]),
    }


async def throughput(site: Site, engine: InProcess) -> dict[str, float]:
    """Sixteen requests at once, half of them on each door."""
    chain, alone = [], []
    for number in range(PAIRS + 1):
        texts = [site.prompts.text(PROMPT) for _ in range(CONCURRENT)]
        await asyncio.sleep(SETTLE_S)
        through_chain = await _chain_tokens_per_s(site, texts)
        await asyncio.sleep(SETTLE_S)
        answer = await engine.run([site.prompts.ids(text) for text in texts], OUTPUT, CONCURRENT)
        if number:  # the first pair warms both up
            chain.append(through_chain)
            alone.append(answer["output_tok_s"])
    ratios = [a / b for a, b in zip(chain, alone, strict=True)]
    return {
        "pipeline.tok_s_16": median(chain),
        "pipeline.in_process_tok_s_16": median(alone),
        "pipeline.throughput_ratio_16": median(ratios),
    }


async def _chain_tokens_per_s(site: Site, texts: list[str]) -> float:
    begin = time.perf_counter()
    calls = (
        run_call(site.doors[number % 2], _request(text, OUTPUT))
        for number, text in enumerate(texts)
    )
    records = await asyncio.gather(*calls)
    tokens = sum(record.complete.usage.completion_tokens for record in records if record.complete)
    return tokens / (time.perf_counter() - begin)
