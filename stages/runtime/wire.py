"""A NATS connection that no message of another client can deafen or mislead.

nats-server parts subject and reply of a PUB at spaces and tabs only and passes every other byte on.
nats-py reads what it passes on otherwise, so whoever may publish to us could, by a subject or reply
with a byte that is not UTF-8, end our reading for seconds, or, with a form feed or vertical tab,
choose the subscription that gets the message.
"""

import re

import nats.protocol.parser
from nats.aio.client import Client
from nats.aio.msg import Msg

_WORD = rb"([^ \t\r\n]+)"
_GAP = rb"[ \t]+"
_START = rb"MSG" + _GAP + _WORD + _GAP + _WORD + _GAP + rb"(" + _WORD + _GAP + rb")?"
# Same groups as nats-py's: subject, subscription, _, reply, (bytes of headers,) bytes. It takes them
# from its module, so they count for every connection of the process.
nats.protocol.parser.MSG_RE = re.compile(rb"\A" + _START + rb"(\d+)\r\n")
nats.protocol.parser.HMSG_RE = re.compile(rb"\AH" + _START + rb"(\d+)" + _GAP + rb"(\d+)\r\n")


class WireClient(Client):
    """nats-py's client; bytes that are no UTF-8 become U+FFFD, which is in no subject of ours."""

    async def flush(self, timeout: int = 10) -> None:  # noqa: ASYNC109 - nats-py's signature
        """Return when the server has read all that was sent before. Raises `FlushTimeoutError`.

        nats-py sends its PING ahead of what is pending: the first answer says nothing about that,
        the second does.
        """
        await super().flush(timeout)
        await super().flush(timeout)

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Msg:
        return self.msg_class(
            subject=subject.decode(errors="replace"),
            reply=reply.decode(errors="replace"),
            data=data,
            headers=headers,
            _client=self,
            _sid=sid,
        )
