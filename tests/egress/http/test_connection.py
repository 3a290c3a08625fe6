"""What comes over a connection before there is a request, and bodies that are too much."""

import asyncio
from collections.abc import Awaitable, Callable

import httpx2
import pytest

from contracts.client import MAX_REQUEST_BYTES
from stages.egress.http import protocol, schemas
from stages.egress.http.intake import Bodies
from tests.egress.conftest import World

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
KIND = b"content-type: application/json\r\n"
LONG_S = 60.0

Open = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@pytest.fixture
def connect(world: World) -> Open:
    """A connection to the door."""
    host, _, port = world.http.rpartition(":")
    return lambda: asyncio.open_connection(host, int(port))


async def answer(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the door closes."""
    async with asyncio.timeout(LONG_S):
        return await reader.read()


async def test_what_is_no_http(connect: Open) -> None:
    reader, writer = await connect()
    writer.write(b"hello\r\n\r\n")
    said = await answer(reader)
    writer.close()
    assert said.startswith(b"HTTP/1.1 400")
    schemas.ErrorEnvelope.model_validate_json(said.partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize(
    "sent",
    [
        HEAD + b"x: " + b"a" * (2 * protocol.HEAD_BYTES),
        HEAD + b"x: a\r\n" * protocol.HEAD_BYTES + b"\r\n",
        b"GET /" + b"a" * protocol.HEAD_BYTES + b" HTTP/1.1\r\n\r\n",
    ],
)
async def test_a_head_has_bounds(connect: Open, sent: bytes) -> None:
    reader, writer = await connect()
    for start in range(0, len(sent), 16_384):
        writer.write(sent[start : start + 16_384])
        await asyncio.sleep(0)
    said = await answer(reader)
    writer.close()
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431")
    assert b"x-request-id: " in head
    schemas.ErrorEnvelope.model_validate_json(body)


@pytest.mark.parametrize("sent", [b"", b"\r\n", HEAD])
async def test_a_connection_without_a_request_is_closed(
    connect: Open, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(protocol, "IDLE_S", 0.2)
    monkeypatch.setattr(protocol, "HEAD_S", 0.2)
    reader, writer = await connect()
    writer.write(sent)
    assert await answer(reader) == b""
    writer.close()


async def test_a_client_that_closes_reads_why_its_body_was_too_large(connect: Open) -> None:
    reader, writer = await connect()
    body = b" " * (2 * MAX_REQUEST_BYTES)
    length = b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body)
    writer.write(HEAD + KIND + length + body)
    await writer.drain()  # raises when the door closes before it has read
    assert (await answer(reader)).startswith(b"HTTP/1.1 413")
    writer.close()


async def test_a_client_that_asks_first_is_refused_before_it_sends(connect: Open) -> None:
    reader, writer = await connect()
    length = b"content-length: %d\r\n" % (2 * MAX_REQUEST_BYTES)
    writer.write(HEAD + KIND + length + b"expect: 100-continue\r\n\r\n")
    assert (await answer(reader)).startswith(b"HTTP/1.1 413")
    writer.close()


async def test_bodies_that_arrive_have_a_bound_together(world: World, connect: Open) -> None:
    bodies = Bodies(most=1000)
    app = world.service._http._app
    app._bodies = bodies
    reader, writer = await connect()
    writer.write(HEAD + KIND + b"content-length: 2000\r\n\r\n" + b" " * 1500)
    said = await answer(reader)
    writer.close()
    assert said.startswith(b"HTTP/1.1 429")
    assert b"retry-after-ms: 1000" in said
    assert bodies._kept == 0


async def test_pages_have_a_head(web: httpx2.AsyncClient) -> None:
    for path in ("/health", "/openapi.json"):
        found = await web.head(path)
        assert (found.status_code, found.content) == (200, b"")
    assert (await web.head("/v1/completions/r1")).status_code == 405
