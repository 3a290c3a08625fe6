"""Where clients may be answered."""

import pytest

from contracts.subjects import is_inbox


@pytest.mark.parametrize("reply", ["_INBOX_acme.abc", "_INBOX_acme.a.B-_9", "_INBOX_acme.$a,/"])
def test_an_inbox_of_the_tenant(reply: str) -> None:
    assert is_inbox(reply, "acme")


@pytest.mark.parametrize(
    "reply",
    [
        *("", "_INBOX", "_INBOX.", "_INBOX.abc", "_INBOX.>", "_INBOX_other.abc", "_INBOX_acmeX.a"),
        *("_INBOX_acme", "_INBOX_acme.", "_INBOX_acme.a.", "_INBOX_acme..a", "_INBOX_acme.>"),
        *("_INBOX_acme.a.*", "_INBOX_acme.a b", "_INBOX_acme.a\n", "hr.usage.receipt.p"),
        *("_INBOX_*.a", "_INBOX_ACME.a", "x._INBOX_acme.a", "$JS.ACK.HR_QUEUE.x"),
        *("_INBOX_acme.\ufffd", "_INBOX_acme.a\x0bb", "_INBOX_acme.a\x00", "_INBOX_acme.\u2028"),
        "_INBOX_acme." + "a" * 300,
    ],
)
def test_anything_else(reply: str) -> None:
    assert not is_inbox(reply, "acme")
