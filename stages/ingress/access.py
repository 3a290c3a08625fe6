"""Who is calling: an API key names a tenant."""

import hashlib
from collections.abc import Mapping
from typing import Final

from contracts.errors import ErrorCode, HeadraceError
from contracts.topology import TenantSection

SCHEME: Final = "bearer"
HOW: Final = "send the header `Authorization: Bearer KEY`"
KEY_MAX: Final = 1024


class Access:
    """Maps keys to tenants by their SHA-256.

    The look-up is by digest: what its timing could tell is about a digest, from which no key follows.
    """

    def __init__(self, tenants: Mapping[str, TenantSection]) -> None:
        self._tenant_of = {
            key.hash.removeprefix("sha256:"): name
            for name, tenant in tenants.items()
            for key in tenant.api_keys()
        }

    def tenant(self, key: str | None, named: str | None) -> str:
        """The key's tenant; `named` is the one the call names, None = whichever the key has.

        Raises unauthenticated (no, overlong or unknown key) and permission_denied (another tenant's key).
        """
        if not key:
            raise HeadraceError(ErrorCode.UNAUTHENTICATED, f"no API key; {HOW}")
        if len(key) > KEY_MAX:
            raise HeadraceError(
                ErrorCode.UNAUTHENTICATED,
                f"the API key has {len(key)} characters, at most {KEY_MAX} are read; {HOW}",
            )
        digest = hashlib.sha256(key.encode(errors="replace")).hexdigest()
        owner = self._tenant_of.get(digest)
        if owner is None:
            raise HeadraceError(
                ErrorCode.UNAUTHENTICATED, f"unknown API key; {HOW} with a key of your tenant"
            )
        if named is not None and named != owner:
            raise HeadraceError(
                ErrorCode.PERMISSION_DENIED,
                f"this API key does not belong to tenant {named[:64]!r}; call as the key's own tenant",
            )
        return owner


def bearer_key(headers: Mapping[str, str] | None) -> str | None:
    """The key of an `Authorization: Bearer KEY` header, in any case; None without one."""
    for name, value in (headers or {}).items():
        if name.lower() == "authorization":
            scheme, _, key = value.strip().partition(" ")
            if scheme.lower() == SCHEME:
                return key.strip() or None
    return None
