"""Where a text may be cut: what came before an offset and what comes after it are the whole text."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from stages.egress.delivery import Delivery
from stages.egress.output import ChunkOut
from tests.egress.builders import Letters

STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=3), max_size=2)
HALF = 300  # half of a character
TOKENS = st.lists(st.sampled_from([97, 98, 99, HALF]), max_size=14)


def delivered(delivery: Delivery, ids: list[int], cuts: list[int]) -> list[ChunkOut]:
    """The chunks of these tokens, cut there, and at the end."""
    chunks = []
    bounds = sorted({*(min(cut, len(ids)) for cut in cuts), len(ids)})
    for start, end in zip([0, *bounds], bounds, strict=False):
        delivery.push(ids[start:end])
        chunks.append(delivery.cut())
    delivery.flush()
    chunks.append(delivery.cut())
    return [chunk for chunk in chunks if chunk is not None]


@given(
    ids=TOKENS,
    stops=STOPS,
    before=st.lists(st.integers(0, 14)),
    after=st.lists(st.integers(0, 14)),
    received=st.integers(0, 15),
    with_ids=st.booleans(),
)
def test_a_client_that_resumes_gets_every_byte_once(
    ids: list[int],
    stops: list[str],
    before: list[int],
    after: list[int],
    received: int,
    with_ids: bool,
) -> None:
    """Any tokens (half characters and beginnings of stop strings among them), any chunks before and
    after, any number of chunks received: also the last one, that only the end made certain."""
    first = delivered(Delivery(Letters(), stops, with_ids=with_ids), ids, before)
    kept = first[:received]
    offset = kept[-1].next_offset if kept else 0
    again = Delivery(Letters(), stops, with_ids=with_ids, start=offset)
    rest = delivered(again, ids, after)
    assert text_of(kept) + text_of(rest) == text_of(first)
    assert ids_of(kept) + ids_of(rest) == ids_of(first)
    assert all(a.next_offset == b.offset for a, b in pairwise(rest))


@given(ids=TOKENS, stops=STOPS, offset=st.integers(0, 16))
def test_an_offset_amid_a_chunk_cuts_where_those_tokens_made_text_certain(
    ids: list[int], stops: list[str], offset: int
) -> None:
    whole = text_of(delivered(Delivery(Letters(), stops, with_ids=False), ids, []))
    known = Delivery(Letters(), stops, with_ids=False)
    known.push(ids[:offset])
    chunk = known.cut()
    certain = chunk.text if chunk is not None else ""
    rest = text_of(delivered(Delivery(Letters(), stops, with_ids=False, start=offset), ids, []))
    if offset <= known.tokens:
        assert certain + rest == whole
    else:  # more than there is, or after the end: nothing is said twice
        assert rest == ""


def text_of(chunks: list[ChunkOut]) -> str:
    """All text."""
    return "".join(chunk.text for chunk in chunks)


def ids_of(chunks: list[ChunkOut]) -> list[int]:
    """All tokens that were told."""
    return [index for chunk in chunks for index in chunk.token_ids or ()]
