"""Requests through the engine: ends, cancellation, refusal, resumption, accounting."""

import pytest

from gpu_worker.engine import Engine
from gpu_worker.request import Request, RequestRefusedError
from stages.runtime.models.spec import ModelSpec
from tests.gpu_worker.conftest import TINY
from tests.gpu_worker.helpers import drain, run, tokens_of


def request(name: str, prompt: int = 10, output: int = 8, **more: object) -> Request:
    return Request(name, tuple(range(prompt)), output, ignore_eos=True, **more)  # type: ignore[arg-type]


def test_length_ends_a_request_with_exactly_max_tokens(engine: Engine) -> None:
    engine.add(request("a"))
    outputs = drain(engine)
    assert outputs[-1].finish == "length"
    assert len(tokens_of(outputs)["a"]) == 8
    assert outputs[-1].prompt_tokens == 10
    assert outputs[-1].computed_tokens == 17  # the last token is delivered, never computed


def test_cancel_frees_the_slot_at_the_next_step(engine: Engine) -> None:
    engine.add(request("a", 20, 100))
    engine.step()
    assert engine.running == ("a",)
    engine.cancel("a")
    engine.cancel("a")
    (output,) = engine.step()
    assert (output.finish, output.token_ids, output.busy_us) == ("cancelled", (), 0)
    assert output.busy_us_total > 0
    assert engine.idle
    engine.check_integrity()  # nobody owns a block, nobody runs
    assert engine._allocator.free_blocks == TINY.blocks


def test_cancelling_one_leaves_the_others_alone(engine: Engine) -> None:
    alone = run(engine, request("a"))["a"]
    for name in ("x", "a", "y"):
        engine.add(request(name))
    outputs = engine.step()
    engine.cancel("x")
    outputs += drain(engine)
    assert tokens_of(outputs)["a"] == alone


def test_cancelling_a_waiting_unknown_or_finished_request(engine: Engine) -> None:
    for i in range(6):
        engine.add(request(f"r{i}"))
    engine.cancel("r5")
    engine.cancel("nobody")
    finishes = {o.request_id: o.finish for o in drain(engine) if o.finish}
    assert finishes == {f"r{i}": "length" for i in range(5)} | {"r5": "cancelled"}
    engine.cancel("r0")
    assert engine.idle


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (Request("a", (), 4), "invalid_request"),
        (Request("a", (1,), 0), "invalid_request"),
        (Request("a", (256,), 4), "invalid_request"),
        (Request("a", (-1,), 4), "invalid_request"),
        (Request("a", (1,), 2, resume_ids=(1, 2, 3)), "invalid_request"),
        (Request("a", (1,) * 500, 13), "context_length_exceeded"),
        (Request("busy", (1,), 4), "conflict"),
    ],
)
def test_what_can_never_run_is_refused(engine: Engine, bad: Request, code: str) -> None:
    engine.add(request("busy"))
    with pytest.raises(RequestRefusedError) as error:
        engine.add(bad)
    assert error.value.code == code
    drain(engine)


def test_a_request_larger_than_the_pool_is_refused_not_queued(tiny: ModelSpec) -> None:
    config = type(TINY)(kv_tokens=64, block_size=16, weights="fp32", context=512)
    engine = Engine(tiny, config)
    with pytest.raises(RequestRefusedError, match="KV cache of 64"):
        engine.add(request("a", 60, 5))
    assert len(run(engine, request("b", 60, 4))["b"]) == 4


@pytest.mark.parametrize("done", [0, 1, 5, 7])
def test_resumed_greedy_continuation_is_the_same(engine: Engine, done: int) -> None:
    whole = run(engine, request("a"))["a"]
    engine.add(request("b", resume_ids=tuple(whole[:done])))
    outputs = drain(engine)
    assert min(o.offset for o in outputs) == done
    assert tokens_of(outputs)["b"] == whole[done:]


def test_resuming_what_was_complete_only_says_that_it_ended(engine: Engine) -> None:
    engine.add(request("a", resume_ids=(1,) * 8))
    assert not engine.idle
    (output,) = engine.step()
    assert (output.finish, output.offset, output.token_ids) == ("length", 8, ())
    assert engine.idle


def test_shares_of_a_step_add_up_to_its_time(engine: Engine) -> None:
    for i in range(6):
        engine.add(request(f"r{i}", 20 + 9 * i, 5))
    total = 0
    while not engine.idle:
        before = engine.busy_us
        outputs = engine.step()
        assert sum(o.busy_us for o in outputs) == engine.busy_us - before > 0
        total += sum(o.busy_us for o in outputs)
    assert total == engine.busy_us


def test_running_decodes_limit_prompt_chunks(engine: Engine) -> None:
    engine.add(request("a", 10, 30))
    engine.step()
    engine.add(request("b", 200, 4))
    (first, second) = engine.step()
    assert (first.request_id, len(first.token_ids)) == ("a", 1)
    assert second.computed_tokens == TINY.mixed_chunk
    engine.cancel("a")
    engine.step()
    (alone,) = engine.step()
    assert alone.computed_tokens == TINY.mixed_chunk + 2 * TINY.prefill_chunk
    drain(engine)


def test_order_of_arrival_is_the_order_of_service(engine: Engine) -> None:
    for i in range(8):
        engine.add(request(f"r{i}", 40, 4))
    first = {}
    for number, output in enumerate(drain(engine)):
        if output.token_ids:
            first.setdefault(output.request_id, number)
    assert list(first) == [f"r{i}" for i in range(8)]


def test_warm_up_leaves_no_trace(engine: Engine) -> None:
    engine.warm_up()
    assert (engine.idle, engine.busy_us) == (True, 0)
    engine.check_integrity()
    assert "fp32" in str(engine.fingerprint)
