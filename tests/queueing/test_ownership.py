"""One owner at a time, whatever is slow, lost or stands still: the policy without a bus."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from contracts.internal import OwnerRecord
from stages.queueing.ownership import Standing, Timing

ALWAYS = float("inf")
REPLICAS = st.integers(0, 2)


def taken(me: str = "a", at_s: float = 100.0) -> Standing:
    standing = Standing("p", me, Timing())
    standing.saw(None, 0, at_s)
    record = standing.wants(at_s, ALWAYS)
    assert record is not None
    assert standing.wrote(record, 1, at_s)
    return standing


def test_what_nobody_owns_is_taken_at_once() -> None:
    standing = taken()
    assert standing.epoch == 1
    assert standing.holds(1, 100.5)
    assert not standing.holds(2, 100.5)


def test_the_validity_counts_from_before_the_write_was_sent() -> None:
    standing = taken()
    assert standing.holds(1, 100.59)
    renewal = standing.wants(100.55, ALWAYS)
    assert renewal is not None
    assert (renewal.epoch, renewal.beat) == (1, 2)
    assert not standing.wrote(renewal, 2, 100.55)  # its answer came at 101.0, say
    assert standing.holds(1, 101.1)
    assert not standing.holds(1, 101.2)


def test_an_epoch_in_which_an_act_was_refused_is_over() -> None:
    standing = taken()
    assert not standing.holds(1, 100.7)
    renewal = standing.wants(100.7, ALWAYS)
    assert renewal is not None
    standing.wrote(renewal, 2, 100.7)
    assert not standing.holds(1, 100.75)


def test_a_standby_takes_what_has_not_changed_for_a_second() -> None:
    standby = Standing("p", "b", Timing())
    record = OwnerRecord(pool="p", owner="a", epoch=7, beat=3, ended={"finished": 5})
    standby.saw(record, 10, 50.0)
    assert standby.wants(50.99, ALWAYS) is None
    standby.saw(record.model_copy(update={"beat": 4}), 11, 50.9)
    standby.saw(record.model_copy(update={"beat": 4}), 11, 51.5)
    assert standby.wants(51.8, ALWAYS) is None
    assert standby.wants(51.95, 1.9) is None  # the bus has just come back: its owner comes first
    made = standby.wants(51.95, 2.0)
    assert made is not None
    assert (made.owner, made.epoch, made.ended) == ("b", 8, {"finished": 5})


def test_what_was_given_up_or_was_ours_is_taken_at_once() -> None:
    for owner in ("", "b"):
        standby = Standing("p", "b", Timing())
        standby.saw(OwnerRecord(pool="p", owner=owner, epoch=7, beat=3), 10, 50.0)
        made = standby.wants(50.0, 0.0)
        assert made is not None
        assert made.epoch == 8


def test_an_owner_that_was_replaced_is_a_standby() -> None:
    standing = taken()
    standing.saw(OwnerRecord(pool="p", owner="b", epoch=2, beat=1), 5, 100.1)
    assert standing.epoch == 0
    assert not standing.holds(1, 100.1)


def test_epochs_grow_even_if_the_record_is_gone() -> None:
    standing = taken()
    standing.saw(None, 0, 100.1)
    assert standing.epoch == 0
    made = standing.wants(100.1, ALWAYS)
    assert made is not None
    assert made.epoch == 2


def test_the_farewell_ends_it_before_it_is_sent() -> None:
    standing = taken()
    record = standing.farewell()
    assert record is not None
    assert (record.owner, record.epoch) == ("", 1)
    assert not standing.holds(1, 100.0)
    assert standing.farewell() is None


@dataclass
class Replica:
    """A standing with a write that is on its way, and one whose answer is."""

    standing: Standing
    sent: tuple[OwnerRecord, int, float] | None = None
    answer: tuple[OwnerRecord, int | None, float] | None = None
    acted: set[int] = field(default_factory=set)


class Election(RuleBasedStateMachine):
    """Three replicas, a store that compares and sets, and a bus that delays and loses words."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 100.0
        self.record: OwnerRecord | None = None
        self.revision = 0
        self.replicas = [Replica(Standing("p", name, Timing())) for name in "abc"]

    @rule(seconds=st.floats(0.01, 0.9))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(which=REPLICAS)
    def look(self, which: int) -> None:
        replica = self.replicas[which]
        if replica.sent is None and replica.answer is None:
            replica.standing.saw(self.record, self.revision, self.now_s)

    @rule(which=REPLICAS)
    def send(self, which: int) -> None:
        replica = self.replicas[which]
        if replica.sent is None and replica.answer is None:
            record = replica.standing.wants(self.now_s, ALWAYS)
            if record is not None:
                replica.sent = (record, replica.standing.revision, self.now_s)

    @rule(which=REPLICAS, lost=st.booleans())
    def arrive(self, which: int, lost: bool) -> None:
        replica = self.replicas[which]
        if replica.sent is None:
            return
        record, revision, sent_s = replica.sent
        replica.sent = None
        stored = revision == self.revision
        if stored:
            assert self.record is None or record.epoch >= self.record.epoch
            self.record, self.revision = record, self.revision + 1
        if not lost:
            replica.answer = (record, self.revision if stored else None, sent_s)

    @rule(which=REPLICAS)
    def hear(self, which: int) -> None:
        replica = self.replicas[which]
        if replica.answer is None:
            return
        record, revision, sent_s = replica.answer
        replica.answer = None
        if revision is not None:
            replica.standing.wrote(record, revision, sent_s)
        else:
            replica.standing.saw(self.record, self.revision, self.now_s)

    @rule(which=REPLICAS)
    def give_up(self, which: int) -> None:
        replica = self.replicas[which]
        if replica.sent is None and replica.answer is None:
            revision = replica.standing.revision
            record = replica.standing.farewell()
            if record is not None:
                replica.sent = (record, revision, self.now_s)

    @invariant()
    def one_owner_at_a_time(self) -> None:
        holding = [
            each.standing
            for each in self.replicas
            if each.standing.holds(each.standing.epoch, self.now_s)
        ]
        assert len(holding) <= 1
        for standing in holding:
            assert self.record is not None
            assert standing.epoch == self.record.epoch  # nobody later has come


TestElection = Election.TestCase
TestElection.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
