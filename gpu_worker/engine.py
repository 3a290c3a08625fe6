"""The engine: receive, schedule, launch, commit. One thread at a time may use it (see driver.py).

engine = Engine(spec, EngineConfig(threads=2))
engine.add(Request("a", prompt_ids=(1, 2, 3), max_tokens=16))
while not engine.idle:
    for output in engine.step():
        print(output.request_id, output.token_ids, output.finish)
"""

import time
from collections.abc import Callable, Iterator

import torch

from gpu_worker.admission import Limits
from gpu_worker.attention.base import Attention
from gpu_worker.attention.cpu import CpuAttention
from gpu_worker.batch import Chunk, build
from gpu_worker.cache.allocator import BlockAllocator
from gpu_worker.cache.storage import KVStorage
from gpu_worker.config import EngineConfig
from gpu_worker.fingerprint import Fingerprint
from gpu_worker.memory import MemoryPlan, available_memory, plan_memory
from gpu_worker.model.linear import choose_scheme
from gpu_worker.model.llama import Llama
from gpu_worker.model.loader import load_weights
from gpu_worker.output import StepOutput, split
from gpu_worker.request import FinishReason, Request, RequestRefusedError, Sequence
from gpu_worker.sample import Sampler
from gpu_worker.scheduler import Scheduler
from stages.runtime.models.spec import ModelSpec

WARM_UP_TOKENS = 6  # more than one row: a prefill, then a decode


class Engine:
    """A model, its KV cache, and the requests that run on it.

    Loading raises reader.WeightError, MemoryPlanError or ValueError (a scheme that cannot run).
    `busy_us` is the time spent in steps that computed something, since the start.
    """

    def __init__(
        self,
        spec: ModelSpec,
        config: EngineConfig,
        clock_us: Callable[[], int] = lambda: time.monotonic_ns() // 1000,
    ) -> None:
        torch.set_num_threads(config.threads)
        self.spec, self.config = spec, config
        self.scheme = choose_scheme(config.weights)
        self.memory: MemoryPlan = plan_memory(spec.config, config, self.scheme, available_memory())
        pool = config.blocks * config.block_size
        self.context = min(spec.config.context, config.context or spec.config.context)
        self._limits = Limits(spec.config.vocab_size, self.context, pool)
        longest = self._limits.longest
        weights = load_weights(spec, self.scheme, config.threads)
        self._model = Llama(spec.config, weights, longest)
        self._allocator = BlockAllocator(config.blocks)
        self._storage = KVStorage(spec.config, config.blocks, config.block_size)
        self._attention: Attention = CpuAttention(
            spec.config, self._storage, config.block_size, longest
        )
        self._scheduler = Scheduler(config, self._allocator)
        self._sampler = Sampler()
        self._sequences: dict[str, Sequence] = {}
        self._cancelled: list[str] = []
        self._ended: list[Sequence] = []
        self._clock_us = clock_us
        self.busy_us = 0

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestRefusedError for one that can never run."""
        if request.id in self._sequences:
            raise RequestRefusedError("conflict", f"request {request.id} is already here")
        self._limits.check(request)
        stops = () if request.ignore_eos else self.spec.config.eos_ids
        sequence = Sequence(request, frozenset(stops))
        if len(request.resume_ids) == request.max_tokens:
            self._ended.append(sequence)  # all was delivered, only the end was not
            return
        self._sequences[request.id] = sequence
        self._sampler.add(request)
        self._scheduler.submit(sequence)

    def cancel(self, request_id: str) -> None:
        """End a request at the next step boundary; unknown or finished ids are ignored."""
        if request_id in self._sequences:
            self._cancelled.append(request_id)

    def step(self) -> list[StepOutput]:
        """Apply cancellations, compute one batch, return what happened to each request in it."""
        outputs = self._take_cancelled()
        begin = self._clock_us()
        chunks = self._scheduler.schedule()
        if not chunks:
            return outputs
        tokens = self._launch(chunks)
        self._scheduler.commit(chunks)
        finishes = [self._commit(chunk, token) for chunk, token in zip(chunks, tokens, strict=True)]
        spent = self._clock_us() - begin
        self.busy_us += spent
        shares = split(spent, [chunk.rows for chunk in chunks])
        for chunk, token, finish, share in zip(chunks, tokens, finishes, shares, strict=True):
            chunk.sequence.busy_us += share
            kept = () if token is None or finish == "stop" else (token,)
            outputs.append(_output(chunk.sequence, kept, finish, share))
        return outputs

    def stream(self, request: Request) -> Iterator[StepOutput]:
        """Run a request to its end in this thread, yielding its steps; others advance with it.

        Outputs of other requests are dropped: use `step` when several matter. Leaving early
        cancels the request.
        """
        self.add(request)
        try:
            while not self.idle:
                yield from (o for o in self.step() if o.request_id == request.id)
        finally:
            self.cancel(request.id)

    def warm_up(self) -> None:
        """Run a tiny request, so that no user pays for what libraries do at their first call.

        A longer one would take up to half a second of a restart and warm nothing more.
        """
        prompt = (0,) * min(WARM_UP_TOKENS, self._limits.longest - 2)
        for _ in self.stream(Request("warm-up", prompt, max_tokens=2, ignore_eos=True)):
            pass
        self.busy_us = 0

    @property
    def idle(self) -> bool:
        """Whether a step would have nothing to do or to say."""
        return not (self._sequences or self._cancelled or self._ended)

    @property
    def running(self) -> tuple[str, ...]:
        """Ids of all requests in the engine, waiting ones included, in order of arrival."""
        return tuple(self._sequences)

    @property
    def fingerprint(self) -> Fingerprint:
        """What another executor must share to continue this one's requests exactly."""
        capability = torch.backends.cpu.get_cpu_capability().lower()
        backend = f"cpu-{capability}-torch{torch.__version__}"
        return Fingerprint(self.spec.digest, self.scheme, backend, "fp32", "tp1")

    def check_integrity(self) -> None:
        """Raise AssertionError when blocks, slots and requests do not agree."""
        self._allocator.check_integrity()
        running = [sequence.id for sequence in self._scheduler.running]
        waiting = [sequence.id for sequence in self._scheduler.waiting]
        assert self._allocator.owners() == set(running), "block owners are not the running requests"
        assert len(running) <= self.config.max_batch, "more requests run than there are slots"
        assert sorted(running + waiting) == sorted(self._sequences), "a request is lost or doubled"
        assert self._sampler.known() == set(self._sequences), "sampler state is lost or left behind"

    def _take_cancelled(self) -> list[StepOutput]:
        outputs = [_output(sequence, (), "length", 0) for sequence in self._ended]
        self._ended.clear()
        for request_id in self._cancelled:
            sequence = self._sequences.get(request_id)
            if sequence is not None:  # else it finished, or was cancelled twice
                self._forget(sequence)
                outputs.append(_output(sequence, (), "cancelled", 0))
        self._cancelled.clear()
        return outputs

    def _launch(self, chunks: list[Chunk]) -> list[int | None]:
        """Run the model; the new token of each chunk, None where a prompt is not done yet."""
        batch = build(chunks, self.config.block_size)
        sampling = [chunk.sequence for chunk in chunks if chunk.samples]
        with torch.inference_mode():
            logits = self._model.forward(batch, self._attention.plan(batch))
            drawn = iter(self._sampler.sample(logits, sampling) if sampling else ())
        return [next(drawn) if chunk.samples else None for chunk in chunks]

    def _commit(self, chunk: Chunk, token: int | None) -> FinishReason | None:
        finish = None if token is None else chunk.sequence.commit(token)
        if finish is not None:
            self._forget(chunk.sequence)
        return finish

    def _forget(self, sequence: Sequence) -> None:
        self._scheduler.remove(sequence)
        self._sampler.remove(sequence.id)
        del self._sequences[sequence.id]


def _output(
    sequence: Sequence, tokens: tuple[int, ...], finish: FinishReason | None, share_us: int
) -> StepOutput:
    return StepOutput(
        request_id=sequence.id,
        token_ids=tokens,
        offset=sequence.output_tokens - len(tokens),
        finish=finish,
        prompt_tokens=sequence.prompt_tokens,
        cached_tokens=0,
        computed_tokens=sequence.computed,
        busy_us=share_us,
        busy_us_total=sequence.busy_us,
    )
