"""Models and engines that this room's tests share."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from contracts import subjects
from contracts.frames import CREDIT_DECODER, FRAME_DECODER
from gpu_worker.config import EngineConfig
from gpu_worker.engine import Engine
from gpu_worker.output import StepOutput
from gpu_worker.service import ExecutorService
from stages.runtime.bus import Bus
from stages.runtime.launch import BusAddress
from stages.runtime.models.spec import ModelSpec
from stages.runtime.models.store import open_model
from stages.runtime.stage import Context
from stages.runtime.streams import ensure_streams
from tests.gpu_worker.executor import ME, Watch, launch_file, topology
from tests.support.nats import flushed

THREADS = 2


@pytest.fixture(autouse=True, scope="session")
def torch_threads() -> None:
    """References run with as many threads as the engine."""
    torch.set_num_threads(THREADS)


@pytest.fixture(scope="session")
def smollm() -> ModelSpec:
    """The built-in model; `make test` pulls it."""
    return open_model("smollm2-135m-instruct")


def write_tiny(folder: Path, *, tied: bool, kv_heads: int = 2) -> LlamaForCausalLM:
    """A random two-layer Llama, saved as safetensors; weights are large enough for clear argmaxes."""
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        max_position_embeddings=512,
        rope_theta=10000.0,
        tie_word_embeddings=tied,
        initializer_range=0.3,
        eos_token_id=255,
        bos_token_id=1,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="session")
def tiny_reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[LlamaForCausalLM, ModelSpec]:
    """The tiny model in transformers, and as our spec."""
    folder = tmp_path_factory.mktemp("tiny")
    model = write_tiny(folder, tied=True)
    return model, open_model(str(folder))


@pytest.fixture(scope="session")
def tiny(tiny_reference: tuple[LlamaForCausalLM, ModelSpec]) -> ModelSpec:
    """The tiny model's spec."""
    return tiny_reference[1]


TINY = EngineConfig(
    threads=THREADS,
    kv_tokens=1024,
    block_size=16,
    max_batch=4,
    step_tokens=64,
    prefill_chunk=48,
    mixed_chunk=16,
    weights="fp32",
)


@pytest.fixture
def engine(tiny: ModelSpec) -> Engine:
    """A fresh engine on the tiny model: 64 blocks of 16 tokens, 4 slots."""
    return Engine(tiny, TINY)


@pytest.fixture
async def service(
    tmp_path: Path, bus: Bus, bus_address: BusAddress
) -> AsyncIterator[ExecutorService]:
    """A started executor; drained by the test or here."""
    write_tiny(tmp_path / "tiny", tied=True)
    launch = launch_file(tmp_path, bus_address)
    await ensure_streams(bus.js, topology(tmp_path / "tiny"))
    executor_bus = await Bus.connect(bus_address, ME)
    executor = ExecutorService(Context(launch, executor_bus, topology(tmp_path / "tiny"), 1))
    await executor.start()
    await flushed(executor_bus)
    yield executor
    await executor.drain()
    await executor_bus.settle(2.0)
    await executor_bus.close()


@pytest.fixture
async def watch(bus: Bus) -> Watch:
    """Subscribed to what the executor says."""
    seen = Watch()
    await bus.listen(
        subjects.tokens("egress-0-a"),
        lambda msg: seen.items.extend(FRAME_DECODER.decode(msg.data).items),
    )
    await bus.listen(
        subjects.credit("small"), lambda msg: seen.credits.append(CREDIT_DECODER.decode(msg.data))
    )
    await flushed(bus)
    return seen


@pytest.fixture
def slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step takes 10 ms or more, so that requests run long enough to be met."""
    stepping = Engine.step

    def step(engine: Engine) -> list[StepOutput]:
        time.sleep(0.01)
        return stepping(engine)

    monkeypatch.setattr(Engine, "step", step)
