"""The HTTP door of an egress on a real bus, and unmodified clients of it."""

from collections.abc import AsyncIterator

import httpx2
import openai
import pytest

from tests.egress.conftest import World, buffer_chunks, world

__all__ = ["buffer_chunks", "world"]

KEY = "secret"


@pytest.fixture
async def web(world: World) -> AsyncIterator[httpx2.AsyncClient]:
    """A plain HTTP client with a key."""
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx2.AsyncClient(base_url=f"http://{world.http}", headers=headers) as client:
        yield client


@pytest.fixture
async def client(world: World) -> AsyncIterator[openai.AsyncOpenAI]:
    """The official client."""
    base_url = f"http://{world.http}/v1"
    async with openai.AsyncOpenAI(base_url=base_url, api_key=KEY, max_retries=0) as connected:
        yield connected
