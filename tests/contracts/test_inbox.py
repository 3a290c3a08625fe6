"""Where clients may be answered."""

import pytest

from contracts.subjects import is_inbox


@pytest.mark.parametrize("reply", ["_INBOX.abc", "_INBOX_acme.abc", "_INBOX.a.B-_9", "_INBOX.$a"])
def test_an_inbox_of_the_tenant(reply: str) -> None:
    assert is_inbox(reply, "acme")


@pytest.mark.parametrize(
    "reply",
    [
        *("", "_INBOX", "_INBOX.", "_INBOX.a.", "_INBOX..a", "_INBOX.>", "_INBOX.a.*"),
        *("_INBOX.a b", "_INBOX.a\n", "_INBOX_other.abc", "hr.usage.receipt.p"),
        "_INBOX." + "a" * 300,
    ],
)
def test_anything_else(reply: str) -> None:
    assert not is_inbox(reply, "acme")
