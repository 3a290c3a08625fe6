"""Who is calling: an API key names a tenant, and may be bounded by scopes and an end."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from contracts.errors import ErrorCode, HeadraceError
from contracts.topology import TenantSection

SCHEME: Final = "bearer"
HOW: Final = "send the header `Authorization: Bearer KEY`"
KEY_MAX: Final = 1024


@dataclass(frozen=True)
class Caller:
    """Who has the key, and what it may do. The key itself is kept nowhere."""

    tenant: str
    key_id: str
    scopes: frozenset[str] | None = None  # None = all calls
    expires_ms: float | None = None  # unix ms, None = never

    def expired(self, now_ms: float) -> bool:
        """Whether the key's time is over."""
        return self.expires_ms is not None and now_ms >= self.expires_ms

    def allow(self, verb: str) -> None:
        """Raises permission_denied for a call outside the key's scopes."""
        if self.scopes is not None and verb not in self.scopes:
            raise HeadraceError(
                ErrorCode.PERMISSION_DENIED,
                f"this API key has no scope {verb!r} (its scopes: {', '.join(sorted(self.scopes))}); "
                f"call with another key, or make one: headrace keys create {self.tenant} "
                f"--scope {verb}",
            )


class Access:
    """Maps keys to tenants by their SHA-256.

    The look-up is by digest: what its timing could tell is about a digest, from which no key follows.
    """

    def __init__(self, tenants: Mapping[str, TenantSection]) -> None:
        self.tenants = frozenset(tenants)
        self._callers = {
            key.hash.removeprefix("sha256:"): Caller(
                name, key.id, frozenset(key.scopes) if key.scopes else None, key.expires_ms
            )
            for name, tenant in tenants.items()
            for key in tenant.api_keys()
        }

    def caller(self, key: str | None, named: str | None, now_ms: float) -> Caller:
        """Who has the key; `named` is the tenant the call names, None = whichever the key has.

        Raises unauthenticated (no, overlong, unknown or expired key) and permission_denied (another
        tenant's key).
        """
        if not key:
            raise HeadraceError(ErrorCode.UNAUTHENTICATED, f"no API key; {HOW}")
        if len(key) > KEY_MAX:
            raise HeadraceError(
                ErrorCode.UNAUTHENTICATED,
                f"the API key has {len(key)} characters, at most {KEY_MAX} are read; {HOW}",
            )
        digest = hashlib.sha256(key.encode(errors="replace")).hexdigest()
        found = self._callers.get(digest)
        if found is None:
            raise HeadraceError(
                ErrorCode.UNAUTHENTICATED, f"unknown API key; {HOW} with a key of your tenant"
            )
        if found.expired(now_ms):
            assert found.expires_ms is not None
            at = datetime.fromtimestamp(found.expires_ms / 1e3, UTC)
            raise HeadraceError(
                ErrorCode.UNAUTHENTICATED,
                f"this API key ({found.key_id}) expired at {at:%Y-%m-%dT%H:%M:%SZ}; "
                f"make another: headrace keys create {found.tenant}",
            )
        if named is not None and named != found.tenant:
            raise HeadraceError(
                ErrorCode.PERMISSION_DENIED,
                f"this API key does not belong to tenant {named[:64]!r}; call as the key's own tenant",
            )
        return found

    def holds(self, tenant: str, key_id: str, now_ms: float) -> bool:
        """Whether a connection that was let in by this key may stay."""
        return any(
            one.tenant == tenant and one.key_id == key_id and not one.expired(now_ms)
            for one in self._callers.values()
        )

    def next_end_ms(self, now_ms: float) -> float:
        """When the next key ends (unix ms); infinite where none will."""
        ends = (one.expires_ms for one in self._callers.values() if one.expires_ms is not None)
        return min((end for end in ends if end > now_ms), default=math.inf)


def bearer_key(headers: Mapping[str, str] | None) -> str | None:
    """The key of an `Authorization: Bearer KEY` header, in any case; None without one."""
    for name, value in (headers or {}).items():
        if name.lower() == "authorization":
            scheme, _, key = value.strip().partition(" ")
            if scheme.lower() == SCHEME:
                return key.strip() or None
    return None
