"""An egress dies in mid-stream: its clients go on at the other one, by (request id, offset)."""

import asyncio
import os
import signal

import pytest

from contracts.client import Chunk, Complete
from stages.cli.bench.pipeline.site import Site
from tests.chaos.conftest import pids, until_billed, until_healthy
from tests.chaos.traffic import Traffic, asking

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOKENS = 120


async def test_clients_of_both_doors_get_every_byte_once(site: Site) -> None:
    rig = site.rig
    undisturbed = Traffic()
    undisturbed.send(site.grpc, asking(TOKENS))
    await undisturbed.ended()
    before = await asyncio.to_thread(pids, rig)
    traffic = Traffic()
    for number in range(8):
        traffic.send(site.doors[number % 2], asking(TOKENS))
    while not all(len(each.record.token_ids) > 10 for each in traffic.calls):
        await asyncio.sleep(0.05)
        assert traffic.running
    for name in ("egress-0", "egress-1"):  # one after the other: nobody is spared
        os.kill(before[name], signal.SIGKILL)
        await asyncio.sleep(0.5)
    await traffic.ended()
    assert traffic.faults(TOKENS) == {}
    text = undisturbed.calls[0].record.text
    assert [each.record.text for each in traffic.calls] == [text] * 8
    await until_billed(rig, [each.record.request_id or "" for each in traffic.calls], TOKENS)
    await until_healthy(rig)


async def test_a_finished_answer_can_be_read_again(site: Site) -> None:
    traffic = Traffic()
    first = traffic.send(site.grpc, asking(24))
    await traffic.ended()
    assert first.record.request_id is not None
    for caller in site.doors:
        for offset in (0, 10, 24):
            answers = [one async for one in caller.resume(first.record.request_id, offset)]
            chunks = [one for one in answers if isinstance(one, Chunk)]
            ids = [index for one in chunks for index in one.token_ids or []]
            assert ids == first.record.token_ids[offset:]
            assert first.record.text.endswith("".join(one.text for one in chunks))
            assert isinstance(answers[-1], Complete)
            assert answers[-1].usage.completion_tokens == 24
