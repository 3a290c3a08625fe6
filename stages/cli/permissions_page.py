"""docs/permissions.md: the table of the bus's users, from the data that the config is made of."""

from collections.abc import Iterable
from typing import Final

from stages.control.permissions import TABLE, hidden, user_of

_INTRO: Final = """\
# Users of the bus

Generated from `stages/control/permissions.py` by `make docs`; do not edit. What it means:
[security](security.md).

Tenants have no line here: nats-server asks ingress, which signs a user with `headrace.v1.<tenant>.>` to publish
and `_INBOX_<tenant>.>` to hear. A user may also answer, once and within 5 minutes, whoever asked it
something. `hr.ingress` and `hr.egress` answer tenants: they may publish everything but what is listed under
"never", for NATS cannot allow `_INBOX_*.>`.
"""


def permissions_page() -> str:
    """The page's text."""
    parts = [_INTRO]
    for stage, one in TABLE.items():
        parts.append(f"\n## `{user_of(stage)}`\n")
        parts.append(f"\n- publishes {_listed(one.publish)}\n- hears {_listed(one.subscribe)}\n")
        if one.clients:
            rest = (one for one in hidden(stage) if not one.startswith("$JS."))
            parts.append(f"- never publishes {_listed(rest)}, nor to JetStream but as above\n")
    return "".join(parts)


def _listed(patterns: Iterable[str]) -> str:
    """Without what another of them covers."""
    every = sorted(set(patterns))
    kept = [one for one in every if not any(_covers(other, one) for other in every if other != one)]
    return ", ".join(f"`{one}`" for one in kept)


def _covers(wide: str, narrow: str) -> bool:
    return wide.endswith(">") and narrow.startswith(wide[:-1])
