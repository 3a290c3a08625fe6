"""What becomes of a request whose executor, or whose queueing process, was lost. Pure decisions."""

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final

from contracts.internal import Inventory, Progress, Work
from stages.queueing.ledger import Entry, State

MAX_TRIES: Final = 3
ASKED_AT_ONCE: Final = 64
TOKENS_AT_ONCE: Final = 500_000  # 7 bytes each as JSON; a message holds 8 MB


class Verdict(Enum):
    """What to do with a lost request."""

    LEASE_AGAIN = "lease again"
    GIVE_UP = "give up"  # three attempts were lost: it ends as an error
    ENDED = "ended"  # its egress has ended it and stored the receipt, which we have missed
    ENDING = "ending"  # its egress has ended it: the receipt is on the way
    UNKNOWN = "unknown"  # its egress does not know the session: nobody writes a receipt


def restored(raw: bytes, stream_seq: int, arrival: int) -> Entry:
    """An entry for a stored request, found at the start. Raises ValidationError.

    It may have been leased by the process before: attempt 1 counts as given.
    """
    work = Work.model_validate_json(raw)
    return Entry(
        work=work.model_copy(update={"prompt_ids": []}),
        raw=raw,
        prompt_tokens=len(work.prompt_ids),
        stream_seq=stream_seq,
        arrival=arrival,
        state=State.LOST,
        attempt=1,
    )


def adopt(entries: Iterable[Entry], inventories: Iterable[Inventory]) -> int:
    """Mark what executors already run as running (the highest attempt counts); how many."""
    running: dict[str, tuple[int, str]] = {}
    for inventory in inventories:
        for request_id, attempt in inventory.running:
            running[request_id] = max(
                running.get(request_id, (0, "")), (attempt, inventory.executor)
            )
    adopted = 0
    for entry in entries:
        if entry.request_id in running:
            entry.attempt, entry.executor = running[entry.request_id]
            entry.state = State.RUNNING
            entry.tries = max(entry.tries, 1)
            adopted += 1
    return adopted


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
