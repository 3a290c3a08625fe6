"""Who is calling."""

import pytest

from contracts.errors import ErrorCode, HeadraceError
from contracts.topology import TenantSection
from stages.ingress.access import Access, bearer_key
from tests.support.stages import KEY, OTHER_KEY, key_hash, topology

access = Access(topology().tenants)


def code_of(key: str | None, named: str | None) -> ErrorCode:
    with pytest.raises(HeadraceError) as refused:
        access.tenant(key, named)
    return refused.value.info.code


def test_a_key_names_its_tenant() -> None:
    assert access.tenant(KEY, None) == "acme"
    assert access.tenant(OTHER_KEY, "other") == "other"


def test_no_and_unknown_keys_are_unauthenticated() -> None:
    assert code_of(None, "acme") is ErrorCode.UNAUTHENTICATED
    assert code_of("", "acme") is ErrorCode.UNAUTHENTICATED
    assert code_of("guess", "acme") is ErrorCode.UNAUTHENTICATED
    assert code_of("\udcff", "acme") is ErrorCode.UNAUTHENTICATED


def test_an_overlong_key_is_refused_not_cut() -> None:
    topology_of_long = {"acme": TenantSection(keys=[key_hash("k" * 1024)])}
    with pytest.raises(HeadraceError, match="1025 characters, at most 1024"):
        Access(topology_of_long).tenant("k" * 1025, None)
    long = bearer_key({"Authorization": "Bearer " + "k" * 1025})
    assert long is not None
    assert len(long) == 1025


def test_the_key_of_another_tenant_is_denied() -> None:
    assert code_of(OTHER_KEY, "acme") is ErrorCode.PERMISSION_DENIED
    assert code_of(KEY, "nobody") is ErrorCode.PERMISSION_DENIED


def test_the_bearer_header_in_any_case() -> None:
    assert bearer_key({"Authorization": "Bearer abc"}) == "abc"
    assert bearer_key({"authorization": " bearer  abc "}) == "abc"
    assert bearer_key({"Authorization": "Basic abc"}) is None
    assert bearer_key({"Authorization": "Bearer "}) is None
    assert bearer_key(None) is None
