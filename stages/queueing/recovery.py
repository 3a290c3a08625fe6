"""What becomes of a request whose executor, or whose queueing process, was lost. Pure decisions."""

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final

from contracts.internal import Work
from contracts.sessions import Progress
from stages.queueing.ledger import Entry, State

MAX_TRIES: Final = 3
ATTEMPTS_AN_EPOCH: Final = 10  # more than one owner gives a request
ASKED_AT_ONCE: Final = 64
UNKNOWN_TIMES: Final = 3  # answers in a row, half a second apart
TOKENS_AT_ONCE: Final = 500_000  # 7 bytes each as JSON; a message holds 8 MB


class Verdict(Enum):
    """What to do with a lost request."""

    LEASE_AGAIN = "lease again"
    GIVE_UP = "give up"  # three attempts were lost: it ends as an error
    ENDED = "ended"  # its egress has ended it and stored the receipt, which we have missed
    ENDING = "ending"  # its egress has ended it: the receipt is on the way
    UNKNOWN = "unknown"  # its egress does not know the session: nobody writes a receipt


def restored(raw: bytes, stream_seq: int, arrival: int) -> Entry:
    """An entry for a stored request that we did not admit ourselves. Raises ValidationError.

    It may have been leased by an owner before us: inventory and progress tell its attempts.
    """
    work = Work.model_validate_json(raw)
    stamps = work.stamps
    if stamps.stored is None:
        since = stamps.routing or stamps.ingress or stamps.received
        stamps = stamps.model_copy(update={"stored": since})
    return Entry(
        work=work.model_copy(update={"prompt_ids": [], "stamps": stamps}),
        raw=raw,
        prompt_tokens=len(work.prompt_ids),
        stream_seq=stream_seq,
        arrival=arrival,
        state=State.LOST,
        floor=work.attempt,
    )


def raise_floors(entries: Iterable[Entry], epoch: int) -> None:
    """Not every executor has told what it runs: requests that may run there go on with attempts above
    any that the owners before us can have given."""
    for entry in entries:
        if entry.state is State.LOST:
            entry.floor = max(entry.floor, (epoch - 1) * ATTEMPTS_AN_EPOCH)


def questions(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Lost requests in groups whose progress fits one message: 64, or fewer with long answers."""
    group: list[Entry] = []
    tokens = 0
    for entry in entries:
        tokens += entry.work.max_tokens
        if group and (len(group) >= ASKED_AT_ONCE or tokens > TOKENS_AT_ONCE):
            yield group
            group, tokens = [], entry.work.max_tokens
        group.append(entry)
    if group:
        yield group


def judge(entry: Entry, progress: Progress | None) -> Verdict:
    """Decide on a lost request by what its egress answered; takes over attempt and tokens."""
    if progress is None:
        return Verdict.UNKNOWN
    if not progress.open:
        return Verdict.ENDING if progress.finish_reason is None else Verdict.ENDED
    entry.attempt = max(entry.attempt, progress.attempt)
    entry.resume_ids = progress.ids
    return Verdict.GIVE_UP if entry.tries >= MAX_TRIES else Verdict.LEASE_AGAIN
