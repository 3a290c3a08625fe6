"""A thousand calls made up from our own OpenAPI document, sound and unsound ones: no server error, and
no status, content type or answer that the document does not name."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from stages.cli.rig import KEY, Rig, default_topology, private_pipeline
from tests.runtime.models.tiny import write_folder

# An unknown id is looked for a while before it is not found, so there are few of those.
CASES: Final = {
    "GET /health": 1,
    "GET /v1/models": 30,
    "GET /v1/models/{model}": 99,
    "GET /v1/chat/completions/{request_id}": 35,
    "GET /v1/completions/{request_id}": 35,
    "POST /v1/completions": 400,
    "POST /v1/chat/completions": 400,
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A pipeline whose model is tiny and random: a call takes milliseconds."""
    source: Path = write_folder(tmp_path_factory.mktemp("tiny"))
    topology = default_topology()
    topology["models"] = {"smollm": {"source": str(source), "context": 128}}
    topology["pools"]["small"] |= {"kv_tokens": 4096, "threads": 1}
    topology["routes"] = [{"name": "default", "pool": "small", "max_tokens": 8}]
    with private_pipeline(topology) as running:
        yield running


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_thousand_calls(tiny: Rig) -> None:
    load_all_checks()
    address = tiny.http_url.removesuffix("/v1")
    document = schemathesis.openapi.from_url(f"{address}/openapi.json")
    operations = [found.ok() for found in document.get_all_operations()]
    assert {operation.label for operation in operations} == set(CASES)
    answered: Counter[int] = Counter()
    for operation in operations:
        _try(operation, address, answered)
    assert answered.total() >= sum(CASES.values()) == 1000
    assert answered[200] > 50, answered  # not all of it was refused


def _try(operation: Any, address: str, answered: Counter[int]) -> None:
    """Make calls of one operation and count the statuses."""
    modes = [GenerationMode.POSITIVE]
    if operation.label not in ("GET /health", "GET /v1/models"):
        modes.append(GenerationMode.NEGATIVE)

    @seed(1)
    @settings(
        max_examples=CASES[operation.label],
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in modes)))
    def check(case: Case) -> None:
        if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
            case.body["model"] = "smollm"  # a model made up would never be served
        response = case.call(
            base_url=address, headers={"authorization": f"Bearer {KEY}"}, timeout=60
        )
        answered[response.status_code] += 1
        assert response.status_code < 500, response.text
        case.validate_response(
            response,
            checks=[
                status_code_conformance,
                content_type_conformance,
                response_schema_conformance,
            ],
        )

    check()
