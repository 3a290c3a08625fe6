"""Made-up usage: a few tenants and executors, every event consistent with the others."""

import random
from collections.abc import Iterator
from pathlib import Path

from contracts import subjects
from contracts.client import FinishReason, Priority
from contracts.internal import SnapshotCall, SnapshotReply
from contracts.lifecycle import Generation
from contracts.topology import Topology
from contracts.usage import AttemptEvent, IntervalEvent, Price, ReceiptEvent, UsageEvent
from stages.metering.events import Received
from stages.runtime.bus import Bus
from stages.runtime.clock import now_ms
from stages.runtime.launch import BusAddress, Launch
from stages.runtime.stage import Context
from stages.runtime.streams import ensure_streams

START_MS = 1_767_225_600_000.0  # 2026-01-01 00:00 UTC
HOUR_MS = 3_600_000.0
PRICES = {"small": 0.08, "large": 2.5}
MODELS = {"small": "smollm", "large": "bigllm"}

TOPOLOGY = Topology.model_validate(
    {
        "version": 1,
        "models": {"smollm": {"source": "smollm2-135m-instruct"}},
        "pools": {"small": {"model": "smollm"}},
        "routes": [{"pool": "small"}],
        "tenants": {"demo": {"keys": ["sha256:" + "0" * 64]}},
    }
)


def price(pool: str) -> Price:
    """What the pool's accelerator costs."""
    return Price(accelerator_hour=PRICES[pool], currency="USD")


def receipt(number: int = 0, **changes: object) -> ReceiptEvent:
    """A delivered request."""
    values: dict[str, object] = {
        "request_id": f"r{number}",
        "tenant": "demo",
        "route": "default",
        "pool": "small",
        "model": "smollm",
        "reason": "route",
        "door": "grpc",
        "priority": Priority.NORMAL,
        "generation": 1,
        "egress": "egress-0-aaaa",
        "finish_reason": FinishReason.STOP,
        "attempt": 1,
        "prompt_tokens": 100,
        "cached_tokens": 20,
        "completion_tokens": 50,
        "queue_ms": 1.5,
        "ttft_ms": 20.0,
        "tpot_ms": 5.0,
        "e2e_ms": 270.0,
        "received_ms": START_MS,
        "finished_ms": START_MS + 270,
        "stages": {"ingress": 0.5, "queueing": 1.5},
    }
    return ReceiptEvent.model_validate(values | changes)


def attempt(number: int = 0, **changes: object) -> AttemptEvent:
    """A run of a request that took 0.9 s of an accelerator."""
    values: dict[str, object] = {
        "request_id": f"r{number}",
        "attempt": 1,
        "tenant": "demo",
        "pool": "small",
        "model": "smollm",
        "executor": "small-0-aaaa",
        "generation": 1,
        "finish": "stop",
        "prompt_tokens": 100,
        "cached_tokens": 20,
        "computed_tokens": 130,
        "completion_tokens": 50,
        "accelerator_s": 0.9,
        "started_ms": START_MS,
        "finished_ms": START_MS + 260,
        "price": price("small"),
    }
    return AttemptEvent.model_validate(values | changes)


def interval(number: int = 0, **changes: object) -> IntervalEvent:
    """Two seconds of an executor's life."""
    start = START_MS + 2000 * number
    values: dict[str, object] = {
        "executor": "small-0-aaaa",
        "pool": "small",
        "model": "smollm",
        "zone": "a",
        "device": "cpu",
        "generation": 1,
        "start_ms": start,
        "end_ms": start + 2000,
        "busy_ms": 900.0,
        "host_ms": 100.0,
        "idle_ms": 1000.0,
        "price": price("small"),
    }
    return IntervalEvent.model_validate(values | changes)


def traffic(seed: int, requests: int) -> Iterator[UsageEvent]:
    """Receipts, one to three attempts each, and intervals whose busy time is the attempts'."""
    dice = random.Random(seed)
    at = START_MS
    for number in range(requests):
        pool = dice.choice(["small", "small", "small", "large"])
        tries = dice.choice([1] * 8 + [0, 2, 3])
        busy_ms = 0.0
        executor = f"{pool}-{dice.randrange(2)}-aaaa"
        who = {"pool": pool, "model": MODELS[pool], "tenant": dice.choice(["ann", "bob", "eve"])}
        for index in range(1, tries + 1):
            took = dice.uniform(1, 900)
            busy_ms += took
            yield attempt(
                number,
                **who,
                attempt=index,
                executor=executor,
                accelerator_s=took / 1000,
                prefill_s=dice.choice([None, took / 4000]),
                prompt_tokens=dice.randrange(1, 2000),
                cached_tokens=0,
                computed_tokens=dice.randrange(1, 2500),
                completion_tokens=dice.randrange(0, 500),
                finish="stop" if index == tries else "error",
                started_ms=at,
                finished_ms=at + took,
                price=price(pool),
            )
        parts = {"host_ms": dice.uniform(0, 50), "idle_ms": dice.uniform(0, 2000)}
        yield interval(
            **{key: who[key] for key in ("pool", "model")},
            executor=executor,
            start_ms=at,
            end_ms=at + busy_ms + sum(parts.values()),
            busy_ms=busy_ms,
            **parts,
            price=price(pool),
        )
        if dice.random() < 0.95:  # the others still run, or their receipt is on its way
            yield receipt(
                number,
                **who,
                attempt=tries,
                prompt_tokens=dice.randrange(1, 2000),
                cached_tokens=dice.randrange(0, 2) * 16,
                completion_tokens=dice.randrange(0, 500),
                finish_reason=dice.choice(list(FinishReason)),
                received_ms=at,
                finished_ms=at + busy_ms,
            )
        at += dice.uniform(3000, 200_000)


def message(event: UsageEvent, sequence: int = 1) -> Received:
    """An event as the stream delivers it."""
    return Received(
        subjects.usage(event.kind, event.pool), event.model_dump_json().encode(), sequence, 0.0
    )


async def make_stream(bus: Bus) -> None:
    """The usage stream as control makes it, and a topology for stages that are started."""
    await ensure_streams(bus.js, TOPOLOGY)
    bucket = await bus.js.create_key_value(bucket=subjects.TOPOLOGY_BUCKET)
    current = Generation(generation=1, topology=TOPOLOGY, text="", reason="start", applied_ms=0)
    await bucket.put(subjects.TOPOLOGY_SPEC, current.model_dump_json().encode())


async def publish(bus: Bus, event: UsageEvent) -> None:
    """Into the stream, without a Msg-Id: the database alone has to stop repeats."""
    await bus.js.publish(subjects.usage(event.kind, event.pool), event.model_dump_json().encode())


async def snapshot(bus: Bus) -> SnapshotReply:
    """Ask metering for a snapshot that holds all that is stored now."""
    return await bus.request(subjects.SNAPSHOT, SnapshotCall(), SnapshotReply, 40.0)


def launch(address: BusAddress, state: Path) -> Launch:
    """A launch file's content for metering."""
    return Launch(
        stage="metering",
        instance="metering-0",
        incarnation="metering-0-aaaa",
        bus=address,
        state=state,
        spawned_ms=now_ms(),
    )


def context(bus: Bus, address: BusAddress, state: Path) -> Context:
    """For a service inside the test's own process."""
    return Context(launch(address, state), bus, TOPOLOGY, 1)
