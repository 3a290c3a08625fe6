"""What an executor can take; it is never promised more than it has."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from contracts.frames import Credit
from stages.queueing.credit import Executors, capacity, reserved


def credit(seq: int, slots: int = 2, kv: int = 1024, name: str = "x", **more: object) -> Credit:
    return Credit(name, "p", seq, slots, kv, more.pop("running", []), **more)  # type: ignore[arg-type]


def test_leases_under_way_are_subtracted_until_the_credit_knows_them() -> None:
    executors = Executors()
    executors.hear(credit(1), 0.0)
    executors.lease("x", "a", 1, 100)
    assert executors.known["x"].free() == (1, 896)
    executors.hear(credit(2, slots=1, kv=896, running=[("a", 1)]), 0.0)
    assert executors.known["x"].free() == (1, 896)  # not twice
    executors.answered("x", "a")
    assert executors.known["x"].free() == (1, 896)


def test_most_free_slots_is_chosen_among_those_that_fit() -> None:
    executors = Executors()
    executors.hear(credit(1, slots=1, name="small"), 0.0)
    executors.hear(credit(1, slots=9, kv=64, name="full"), 0.0)
    executors.hear(credit(1, slots=5, name="best"), 0.0)
    executors.hear(credit(1, slots=9, name="leaving", draining=True), 0.0)
    assert executors.choose(100) == "best"
    assert executors.choose(64) == "full"
    assert executors.choose(5000) is None


def test_older_word_is_ignored_and_a_blocked_executor_waits_for_the_next() -> None:
    executors = Executors()
    executors.hear(credit(5), 0.0)
    assert not executors.hear(credit(4, slots=9), 0.0)
    executors.block("x")
    assert executors.choose(1) is None
    executors.hear(credit(6), 0.0)
    assert executors.choose(1) == "x"


def test_silent_for_three_seconds_is_forgotten() -> None:
    executors = Executors()
    executors.hear(credit(1), 0.0)
    assert executors.forget_silent(3.0) == []
    assert executors.forget_silent(3.1) == ["x"]
    assert executors.choose(1) is None


def test_rounding_agrees_with_the_largest_request() -> None:
    assert reserved(1) == 64
    assert reserved(capacity(1000)) <= 1000


@dataclass
class Model:
    """An executor that checks what it is given."""

    slots: int
    kv_tokens: int
    seq: int = 0
    running: dict[str, int] = field(default_factory=dict)

    def word(self) -> Credit:
        self.seq += 1
        free = self.kv_tokens - sum(self.running.values())
        names = [(name, 1) for name in self.running]
        return Credit("x", "p", self.seq, self.slots - len(self.running), free, names)


moves = st.lists(
    st.tuples(st.sampled_from(["lease", "arrive", "answer", "speak", "hear", "finish"]),
              st.integers(1, 300)),
    max_size=120,
)  # fmt: skip


@given(moves, st.integers(1, 4), st.integers(2, 12))
def test_credit_is_never_over_committed(
    script: list[tuple[str, int]], slots: int, blocks: int
) -> None:
    """Leases, answers and credits cross each other in any order; the executor always has room."""
    executor, executors = Model(slots, blocks * 64), Executors()
    sent: list[tuple[str, int]] = []  # leases on their way
    answers: list[tuple[str, Credit]] = []
    words = [executor.word()]
    for number, (move, tokens) in enumerate(script):
        if move == "lease" and executors.choose(tokens) == "x":
            executors.lease("x", str(number), 1, tokens)
            sent.append((str(number), reserved(tokens)))
        elif move == "arrive" and sent:
            name, need = sent.pop(tokens % len(sent))
            executor.running[name] = need
            assert len(executor.running) <= executor.slots
            assert sum(executor.running.values()) <= executor.kv_tokens
            answers.append((name, executor.word()))
        elif move == "answer" and answers:
            name, word = answers.pop(tokens % len(answers))
            executors.hear(word, 0.0)
            executors.answered("x", name)
        elif move == "speak":
            words.append(executor.word())
        elif move == "hear" and words:
            executors.hear(words.pop(0), 0.0)
        elif move == "finish" and executor.running:
            executor.running.pop(next(iter(executor.running)))
