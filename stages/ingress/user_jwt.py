"""The signed papers by which nats-server takes a client in: NATS JWTs (ed25519, nkeys)."""

import base64
import hashlib
import json
from typing import Any, Final

import nkeys

from contracts import subjects
from stages.ingress.access import Caller

_HEAD: Final = {"typ": "JWT", "alg": "ed25519-nkey"}
_VERSION: Final = 2
_UNLIMITED: Final = -1
_NAME_MARK: Final = "/"  # in no tenant's name


def connection_name(tenant: str, key_id: str) -> str:
    """The user name of a tenant's connection, as nats-server shows it."""
    return f"{tenant}{_NAME_MARK}{key_id}"


def parse_connection_name(name: str) -> tuple[str, str] | None:
    """Tenant and key id; None for a user that is not a tenant's."""
    tenant, mark, key = name.partition(_NAME_MARK)
    return (tenant, key) if mark else None


def claims_of(token: str) -> dict[str, Any]:
    """What a JWT says, its signature unchecked. Raises ValueError.

    For requests on $SYS.REQ.USER.AUTH only: nobody but the server can publish there.
    """
    try:
        part = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (IndexError, ValueError) as error:
        raise ValueError("not a JWT") from error
    if not isinstance(claims, dict):
        raise ValueError("not a JWT with claims")
    return claims


class Issuer:
    """Signs in the name of the account whose seed control has made."""

    def __init__(self, seed: str) -> None:
        self._pair = nkeys.from_seed(bytearray(seed.encode()))
        self._name = self._pair.public_key.decode()

    def user(self, nkey: str, caller: Caller, now_s: float) -> str:
        """A tenant's user: calls as this tenant, hears its own inboxes, ends with the key."""
        claims: dict[str, Any] = {
            "sub": nkey,
            "aud": subjects.ACCOUNT,
            "name": connection_name(caller.tenant, caller.key_id),
            "nats": {
                "type": "user",
                "version": _VERSION,
                "pub": {"allow": [subjects.client_call(caller.tenant, ">")]},
                "sub": {"allow": [f"{subjects.inbox(caller.tenant)}.>"]},
                "subs": _UNLIMITED,
                "data": _UNLIMITED,
                "payload": _UNLIMITED,
            },
        }
        if caller.expires_ms is not None:
            claims["exp"] = int(caller.expires_ms / 1000)
        return self._signed(claims, now_s)

    def answer(
        self, nkey: str, server: str, now_s: float, *, jwt: str = "", error: str = ""
    ) -> str:
        """The answer to the server: a user, or why there is none (it logs that)."""
        said = {"jwt": jwt} if jwt else {"error": error}
        claims = {
            "sub": nkey,
            "aud": server,
            "nats": {"type": "authorization_response", "version": _VERSION, **said},
        }
        return self._signed(claims, now_s)

    def _signed(self, claims: dict[str, Any], now_s: float) -> str:
        whole = {**claims, "iss": self._name, "iat": int(now_s)}
        digest = hashlib.sha256(json.dumps(whole).encode()).digest()
        whole["jti"] = base64.b32encode(digest).decode().rstrip("=")
        body = f"{_part(_HEAD)}.{_part(whole)}"
        return f"{body}.{_base64(self._pair.sign(body.encode()))}"


def _part(value: dict[str, Any]) -> str:
    return _base64(json.dumps(value).encode())


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
