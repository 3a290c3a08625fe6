"""The users of the bus: their passwords and the seed that signs tenants' users, kept over restarts.

A pipeline that a new control adopts goes on with the passwords it has, so they are drawn once per
state folder, into a file of mode 600.
"""

import json
import secrets
from pathlib import Path
from typing import Final

import nkeys
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from contracts import subjects
from stages.control.permissions import (
    TABLE,
    Permissions,
    hidden,
    inbox_of,
    user_of,
)
from stages.runtime.launch import BusAddress, write_private

_SECRET_BYTES: Final = 32
# An answer is owed to whoever asked, once; the longest question is whether a process could serve
# another topology (it may have to load a model).
_RESPONSES: Final = '{ max: 1, expires: "5m" }'
_CALLOUT_S: Final = 2.0

# SYS reports disconnections to HR, and lets ingress look for connections and end them: nobody needs
# to be a user of SYS.
_ACCOUNTS: Final = """\
accounts {{
  SYS {{
    exports: [
      {{ stream: "$SYS.ACCOUNT.{account}.DISCONNECT", accounts: [{account}] }}
      {{ service: "$SYS.REQ.SERVER.PING.CONNZ", accounts: [{account}] }}
      {{ service: "$SYS.REQ.SERVER.*.KICK", accounts: [{account}] }}
    ]
  }}
  {account} {{
    jetstream: enabled
    imports: [
      {{ stream: {{ account: SYS, subject: "$SYS.ACCOUNT.{account}.DISCONNECT" }}, to: "{disconnected}" }}
      {{ service: {{ account: SYS, subject: "$SYS.REQ.SERVER.PING.CONNZ" }}, to: "{connections}" }}
      {{ service: {{ account: SYS, subject: "$SYS.REQ.SERVER.*.KICK" }}, to: "{kick}" }}
    ]
    users: [
{users}
    ]
  }}
}}
system_account: SYS
authorization {{
  timeout: {timeout}
  auth_callout {{ issuer: {issuer}, account: {account}, auth_users: [{names}] }}
}}
"""


class Accounts(BaseModel):
    """nats/accounts.json."""

    model_config = ConfigDict(frozen=True)

    passwords: dict[str, str] = Field(repr=False, description="by stage")
    seed: str = Field(repr=False, description="of the account that signs tenants' users")

    @classmethod
    def of(cls, file: Path) -> "Accounts":
        """As stored; what is missing is drawn and stored."""
        try:
            found = cls.model_validate_json(file.read_bytes())
        except (OSError, ValidationError):
            found = cls(passwords={}, seed=_new_seed())
        drawn = {stage: secrets.token_urlsafe(_SECRET_BYTES) for stage in TABLE}
        whole = found.model_copy(update={"passwords": {**drawn, **found.passwords}})
        write_private(file, whole.model_dump_json(indent=1))
        return whole

    def address(self, url: str, stage: str) -> BusAddress:
        """How a stage reaches the bus."""
        return BusAddress(
            url=url,
            user=user_of(stage),
            password=self.passwords[stage],
            inbox=inbox_of(stage),
            issuer=self.seed if stage == "ingress" else None,
        )

    def config(self) -> str:
        """The part of nats-server's config that says who may do what."""
        issuer = nkeys.from_seed(bytearray(self.seed.encode())).public_key.decode()
        users = (_user(stage, one, self.passwords[stage]) for stage, one in TABLE.items())
        return _ACCOUNTS.format(
            account=subjects.ACCOUNT,
            disconnected=subjects.DISCONNECTED,
            connections=subjects.CONNECTIONS,
            kick=subjects.KICK_ALL,
            users="\n".join(users),
            timeout=_CALLOUT_S,
            issuer=issuer,
            names=", ".join(json.dumps(user_of(stage)) for stage in TABLE),
        )


def _new_seed() -> str:
    drawn = nkeys.encode_seed(secrets.token_bytes(32), nkeys.PREFIX_BYTE_ACCOUNT)
    return str(drawn.decode())


def _user(stage: str, one: Permissions, password: str) -> str:
    if one.clients:
        publish = {"allow": [">"], "deny": hidden(stage)}
        responses = ""
    else:
        publish = {"allow": list(one.publish)}
        responses = f"\n          allow_responses: {_RESPONSES}"
    subscribe = {"allow": list(one.subscribe)}
    return (
        f"      {{ user: {json.dumps(user_of(stage))}, password: {json.dumps(password)}\n"
        f"        permissions: {{ publish: {json.dumps(publish)}\n"
        f"          subscribe: {json.dumps(subscribe)}{responses}\n        }} }}"
    )
