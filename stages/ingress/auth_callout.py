"""nats-server asks who a connecting client is; we answer by its tenant's API keys."""

import json
import logging
from collections.abc import Callable
from typing import Any, Final

from nats.aio.msg import Msg

from contracts import subjects
from contracts.errors import ErrorCode, HeadraceError
from stages.ingress.access import Access, Caller
from stages.ingress.refusals import Refusals
from stages.ingress.user_jwt import Issuer, claims_of, parse_connection_name
from stages.runtime.bus import Bus

ASK_S: Final = 2.0
# A connection's entry has what its client says of itself: 4 KB, in JSON six times as much at worst. A
# page must fit into one message, or the clients of a revoked key could stay.
PAGE: Final = 128
HOW: Final = "connect with user=<tenant>, password=<API key>, inbox prefix _INBOX_<tenant>"

log = logging.getLogger("headrace.ingress")


class AuthCallout:
    """Lets clients in, and shows those out whose key is no more. `access` says who may now."""

    def __init__(
        self, bus: Bus, issuer: Issuer, access: Callable[[], Access], now_ms: Callable[[], float]
    ) -> None:
        self._bus = bus
        self._issuer = issuer
        self._access = access
        self._now_ms = now_ms
        self._refusals = Refusals()
        self.counts = {"nats_clients": 0, "nats_refused": 0, "nats_dropped": 0}

    async def start(self) -> None:
        """Answer from now on; several ingress processes share the questions."""

        async def receive(msg: Msg) -> None:
            try:
                answer = self.answer(msg.data.decode())
            except (ValueError, LookupError, TypeError):
                log.exception("an unreadable question by nats-server")  # it refuses the client
                return
            await self._bus.publish(msg.reply, answer.encode())

        await self._bus.client.subscribe(subjects.AUTH_CALLOUT, queue="ingress", cb=receive)

    def answer(self, question: str) -> str:
        """A user for whoever shows a tenant's key, else a refusal. Raises ValueError, LookupError."""
        asked = claims_of(question)["nats"]
        nkey, server = str(asked["user_nkey"]), str(asked["server_id"]["id"])
        options: dict[str, Any] = asked["connect_opts"]
        tenant = options.get("user")
        now_s = self._now_ms() / 1000
        try:
            caller = self._caller(tenant, options.get("pass"))
        except HeadraceError as error:
            self.counts["nats_refused"] += 1
            # An unknown user may be a key in the wrong field: the log has known names only.
            named = tenant if tenant in self._access().tenants else "not a tenant"
            place = asked.get("client_info", {}).get("host", "?")
            why = f"at {place} (user: {named}): {error.info.code.value}: {error.info.message}"
            for line in self._refusals.lines(why, now_s):
                log.warning("refused a NATS client %s", line)
            return self._issuer.answer(nkey, server, now_s, error=error.info.code.value)
        self.counts["nats_clients"] += 1
        return self._issuer.answer(nkey, server, now_s, jwt=self._issuer.user(nkey, caller, now_s))

    def _caller(self, tenant: object, key: object) -> Caller:
        if not isinstance(tenant, str) or not isinstance(key, str) or not tenant or not key:
            raise HeadraceError(ErrorCode.UNAUTHENTICATED, f"no tenant or no API key; {HOW}")
        caller = self._access().caller(key, None, self._now_ms())
        if caller.tenant != tenant:
            raise HeadraceError(
                ErrorCode.PERMISSION_DENIED,
                f"the user it names is not the tenant of its key (key {caller.key_id}); {HOW}",
            )
        return caller

    def next_end_s(self) -> float:
        """How long until a key's time is over."""
        now_ms = self._now_ms()
        return (self._access().next_end_ms(now_ms) - now_ms) / 1000

    async def sweep(self) -> int:
        """End the connections whose key is no more; how many. Raises for what can be tried again."""
        ended = 0
        for server, cid, name in await self._connections():
            owner = parse_connection_name(name)
            if owner is None or self._access().holds(*owner, self._now_ms()):
                continue
            log.info("ending a connection of tenant %s: key %s is no more", *owner)
            await self._bus.client.request(
                subjects.kick(server), json.dumps({"cid": cid}).encode(), timeout=ASK_S
            )
            ended += 1
        self.counts["nats_dropped"] += ended
        return ended

    async def _connections(self) -> list[tuple[str, int, str]]:
        """Server, connection and user of every connection."""
        found: list[tuple[str, int, str]] = []
        offset, total = 0, 1
        while offset < total:
            page = {"auth": True, "limit": PAGE, "offset": offset}
            reply = await self._bus.client.request(
                subjects.CONNECTIONS, json.dumps(page).encode(), timeout=ASK_S
            )
            answer = json.loads(reply.data)
            server, data = answer["server"]["id"], answer["data"]
            found.extend(
                (server, one["cid"], str(one.get("authorized_user", "")))
                for one in data["connections"]
            )
            offset, total = offset + PAGE, int(data["total"])
        return found
