"""Stop strings: the same result however the text is cut, and never too much held back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.egress.stop import StopMatcher

LETTERS = st.text(alphabet="ab\n", max_size=12)
STOPS = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=4)


def naive(text: str, stops: list[str]) -> tuple[str, bool]:
    """Look at every prefix of the whole text: the first that ends in a stop string decides."""
    for end in range(len(text) + 1):
        done = [stop for stop in stops if text[:end].endswith(stop)]
        if done:
            return text[: end - max(map(len, done))], True
    return text, False


def run(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    """What the matcher lets through, flushed at the end."""
    matcher, passed = StopMatcher(stops), ""
    for piece in pieces:
        text, hit = matcher.push(piece)
        passed += text
        if hit:
            return passed, True
    return passed + matcher.flush(), False


@given(st.lists(LETTERS, max_size=8), STOPS)
def test_any_chunking_equals_the_naive_search(pieces: list[str], stops: list[str]) -> None:
    assert run(pieces, stops) == naive("".join(pieces), stops)


@given(st.lists(LETTERS, max_size=6), STOPS)
def test_only_a_possible_beginning_is_held_back(pieces: list[str], stops: list[str]) -> None:
    matcher, passed, came = StopMatcher(stops), "", ""
    for piece in pieces:
        text, hit = matcher.push(piece)
        passed, came = passed + text, came + piece
        if hit:
            return
        held = came[len(passed) :]
        assert came.startswith(passed)
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


@pytest.mark.parametrize(
    ("pieces", "stops", "passed"),
    [
        (["one EN", "D two"], ["END"], "one "),
        (["aaab"], ["aab"], "a"),
        (["xabcd"], ["abcd", "bc"], "xa"),  # "bc" is complete first
        (["xabc"], ["bc", "abc"], "x"),  # complete together: the longest
        (["a\n", "\nb"], ["\n\n"], "a"),
    ],
)
def test_examples(pieces: list[str], stops: list[str], passed: str) -> None:
    assert run(pieces, stops) == (passed, True)
