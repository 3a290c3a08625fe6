"""Who is calling, and what its key allows."""

import pytest

from contracts.errors import ErrorCode, ErrorInfo, HeadraceError
from contracts.topology import KeySection, TenantSection, key_id
from stages.ingress.access import Access, bearer_key
from stages.ingress.refusals import Refusals
from tests.support.stages import KEY, OTHER_KEY, key_hash, topology

NOW = 1_700_000_000_000.0
END = "2023-11-14T22:13:20Z"  # is NOW
access = Access(topology().tenants)


def refused(key: str | None, named: str | None, by: Access = access) -> ErrorInfo:
    with pytest.raises(HeadraceError) as error:
        by.caller(key, named, NOW)
    return error.value.info


def code_of(key: str | None, named: str | None) -> ErrorCode:
    return refused(key, named).code


def bounded(**bounds: object) -> Access:
    section = KeySection.model_validate({"hash": key_hash(KEY), **bounds})
    return Access({"acme": TenantSection(keys=[section])})


def test_a_key_names_its_tenant_and_itself() -> None:
    caller = access.caller(KEY, None, NOW)
    assert caller.tenant == "acme"
    assert caller.key_id == key_id(key_hash(KEY))
    assert access.caller(OTHER_KEY, "other", NOW).tenant == "other"


def test_no_and_unknown_keys_are_unauthenticated() -> None:
    assert code_of(None, "acme") is ErrorCode.UNAUTHENTICATED
    assert code_of("", "acme") is ErrorCode.UNAUTHENTICATED
    assert code_of("guess", "acme") is ErrorCode.UNAUTHENTICATED
    assert code_of("\udcff", "acme") is ErrorCode.UNAUTHENTICATED


def test_an_overlong_key_is_refused_not_cut() -> None:
    topology_of_long = {"acme": TenantSection(keys=[key_hash("k" * 1024)])}
    with pytest.raises(HeadraceError, match="1025 characters, at most 1024"):
        Access(topology_of_long).caller("k" * 1025, None, NOW)
    long = bearer_key({"Authorization": "Bearer " + "k" * 1025})
    assert long is not None
    assert len(long) == 1025


def test_the_key_of_another_tenant_is_denied() -> None:
    assert code_of(OTHER_KEY, "acme") is ErrorCode.PERMISSION_DENIED
    assert code_of(KEY, "nobody") is ErrorCode.PERMISSION_DENIED


def test_an_expired_key_is_unauthenticated_and_told_so() -> None:
    assert bounded(expires="2023-11-14T22:13:21Z").caller(KEY, None, NOW).tenant == "acme"
    info = refused(KEY, None, bounded(expires=END))
    assert info.code is ErrorCode.UNAUTHENTICATED
    assert f"expired at {END}" in info.message
    assert "headrace keys create acme" in info.message
    assert KEY not in info.message


def test_a_call_outside_the_scopes_is_denied_by_name() -> None:
    caller = bounded(scopes=["chat", "models"]).caller(KEY, None, NOW)
    caller.allow("chat")
    with pytest.raises(
        HeadraceError, match="no scope 'generate' \\(its scopes: chat, models\\)"
    ) as error:
        caller.allow("generate")
    assert error.value.info.code is ErrorCode.PERMISSION_DENIED
    access.caller(KEY, None, NOW).allow("generate")


def test_only_the_keys_of_now_hold_a_connection() -> None:
    mine = key_id(key_hash(KEY))
    assert access.holds("acme", mine, NOW)
    assert not access.holds("other", mine, NOW)
    assert not access.holds("acme", "0" * 12, NOW)
    assert not bounded(expires=END).holds("acme", mine, NOW)


def test_refusals_are_told_at_once_and_then_summed_up() -> None:
    refusals = Refusals()
    assert list(refusals.lines("a", 100.0)) == ["a"]
    assert [list(refusals.lines("a", 100.0 + number)) for number in range(1, 4)] == [[]] * 3
    assert list(refusals.lines("b", 104.0)) == ["b"]
    assert list(refusals.lines("a", 110.0)) == ["a (3 more like this before)"]


def test_the_bearer_header_in_any_case() -> None:
    assert bearer_key({"Authorization": "Bearer abc"}) == "abc"
    assert bearer_key({"authorization": " bearer  abc "}) == "abc"
    assert bearer_key({"Authorization": "Basic abc"}) is None
    assert bearer_key({"Authorization": "Bearer "}) is None
    assert bearer_key(None) is None
