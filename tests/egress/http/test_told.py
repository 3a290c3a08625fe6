"""What a developer is told: by errors, and by the document."""

import json

import httpx2
import openai
import pytest

from contracts.client import MAX_REQUEST_BYTES
from stages.egress import admission
from stages.egress.http import schemas
from tests.egress.conftest import World
from tests.egress.http.test_door import CHAT, HELLO


async def test_without_an_ingress(
    world: World, client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "UNARY_TIMEOUT_S", 1.1)
    await world.ingress.unsubscribe()
    await world.bus.client.flush()
    with pytest.raises(openai.InternalServerError) as refused:
        await client.models.list()
    assert (refused.value.status_code, refused.value.code) == (503, "no_capacity")
    assert "hr." not in refused.value.message  # subjects are none of the client's business


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/models", "/v1/models"),
        ("/v1/v1/models", "/v1/models"),
    ],
)
async def test_a_wrong_base_url_is_told(web: httpx2.AsyncClient, path: str, meant: str) -> None:
    error = schemas.ErrorEnvelope.model_validate_json((await web.post(path)).content).error
    assert error.code == "not_found"
    assert error.message.endswith(f"it {meant}")


async def test_every_error_has_the_envelope(web: httpx2.AsyncClient) -> None:
    kind = {"content-type": "application/json"}
    found = [
        (404, await web.get("/v2")),
        (404, await web.get("/docs")),
        (405, await web.get(CHAT)),
        (405, await web.delete("/health")),
        (415, await web.post(CHAT, content=b"{}", headers={"content-type": "text/plain"})),
        (415, await web.post(CHAT, content=b"{}", headers=kind | {"content-encoding": "gzip"})),
        (400, await web.post(CHAT, content=b"{", headers=kind)),
        (400, await web.post(CHAT, json={"messages": HELLO, "wat": 1})),
        (400, await web.post(CHAT, json={"messages": HELLO}, headers={"last-event-id": "x"})),
        (400, await web.post(CHAT, json={"messages": HELLO}, headers={"idempotency-key": ""})),
        (400, await web.get(f"{CHAT}/r1?stream=yes")),
        (413, await web.post(CHAT, content=b" " * (MAX_REQUEST_BYTES + 1), headers=kind)),
        (415, await web.post(CHAT, content=b"{}", headers={"content-type": "application/json; charset=utf-16"})),
        (413, await web.post(CHAT, json={"n": 16, "messages": [{"role": "user", "content": "x" * 10**6}]})),
    ]  # fmt: skip
    for status, response in found:
        assert response.status_code == status, response.text
        schemas.ErrorEnvelope.model_validate_json(response.content)
        assert response.headers["x-request-id"]
        assert response.headers["x-should-retry"] == "false"


async def test_the_document_names_no_other_host(web: httpx2.AsyncClient) -> None:
    document = (await web.get("/openapi.json")).json()
    assert set(document["paths"]) == {
        CHAT,
        CHAT + "/{request_id}",
        "/v1/completions",
        "/v1/completions/{request_id}",
        "/v1/models",
        "/v1/models/{model}",
        "/health",
    }
    assert document["paths"][CHAT]["post"]["operationId"] == "createChatCompletion"
    statuses = set(document["paths"][CHAT]["post"]["responses"])
    assert statuses >= {"200", "400", "401", "403", "404", "409", "413", "415", "429", "503", "504"}
    assert "422" not in json.dumps(document["paths"])
    assert "://" not in json.dumps(document)
