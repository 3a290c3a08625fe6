"""Ids equal transformers' on varied text; users cannot write control tokens; streams never tear text."""

import random
import string
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models, normalizers

from stages.runtime.models.errors import ModelError
from stages.runtime.models.text_stream import TextStream
from stages.runtime.models.tokenizer import Tokenizer

_FIXED = [
    "",
    " ",
    "\n",
    "Hello, world!",
    "  leading and trailing  ",
    "tabs\tand\r\nwindows lines\r\n\r\n",
    "1234567890 3.14159 1e-10 0xFF ²³ Ⅷ ٣",
    "def f(x):\n    return x**2  # square\n\n\nclass A:\n\tpass",
    '{"key": [1, 2, {"nested": null}]}',
    "I'll we're they've don't can't I'm he'd O'Neil",
    "日本語のテキスト、漢字とかな。",
    "中文字符测试。한국어 텍스트",
    "Привет мир! Ελληνικά עברית العربية हिन्दी",
    "👍🏽 👨‍👩‍👧‍👦 🇩🇪 😀😃",
    "é vs é, naïve, Zürich, ﬁ ligature",
    "a\u00a0b\u2003c\u200bd\ufeffe",
    "\x00\x01\x7f control",
    "https://example.com/a?b=c&d=%20#frag",
    "<b>html &amp; entities</b>",
    "x" * 500,
    " " * 37 + "x" + "\n" * 11,
    "$\\frac{a}{b}$ ≤ ∑ ∞",
    "\uff26\uff35\uff2c\uff2c width",
]


def _texts() -> list[str]:
    noise = random.Random(1)
    pools = [
        string.printable,
        string.digits + " .",
        " \n\t\r",
        "äöüß€日本語한국어",
        "😀👍🏽🇩🇪‍",
        "abc'sltrevdm ",
    ]
    mixed = ["".join(noise.choices("".join(pools), k=noise.randint(1, 80))) for _ in range(100)]
    single = ["".join(noise.choices(pools[n % 6], k=noise.randint(1, 60))) for n in range(120)]
    return _FIXED + mixed + single


def test_ids_and_text_equal_transformers(tokenizer: Tokenizer, reference: Any) -> None:
    texts = _texts()
    assert len(texts) > 200
    for text in texts:
        ids = tokenizer.encode(text)
        assert ids == reference(text, add_special_tokens=False).input_ids, text
        assert tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=True)


def test_identity(tokenizer: Tokenizer) -> None:
    assert (tokenizer.highest_id, tokenizer.eos_ids, tokenizer.bos_id) == (49_151, (2,), 1)
    assert tokenizer.encode_prompt("hi") == tokenizer.encode("hi")  # this model adds no BOS


def test_control_tokens_only_on_request(tokenizer: Tokenizer) -> None:
    for name, index in tokenizer.control.items():
        assert tokenizer.encode(name, special=True) == [index]
        plain = tokenizer.encode(f"a{name}b")
        assert not any(map(tokenizer.is_control, plain))
        assert tokenizer.decode(plain) == f"a{name}b"


@given(
    st.lists(
        st.text(max_size=5) | st.sampled_from(["<|im_end|>", "<|im_start|>", "<|", "|>", "im_end"]),
        max_size=8,
    )
)
def test_no_text_ever_yields_a_control_token(tokenizer: Tokenizer, parts: list[str]) -> None:
    assert not any(map(tokenizer.is_control, tokenizer.encode("".join(parts))))


def test_half_a_surrogate_pair_is_one_clear_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(ModelError, match="half a surrogate pair at character 2"):
        tokenizer.encode("ab\ud83d")


def _pieces(*, control_in_model: bool = False) -> Tokenizer:
    """A sentencepiece-style tokenizer as Llama 2 has it: ▁ for spaces, byte tokens, a stripped first space."""
    names = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        *"abc</s>x",
        "▁a",
    ]
    vocabulary = {name: index for index, name in enumerate(dict.fromkeys(names))}
    merges = [("▁", "a")]
    if control_in_model:
        vocabulary |= {part: len(vocabulary) + n for n, part in enumerate(["</", "s>"])}
        merges += [("<", "/"), ("s", ">"), ("</", "s>")]
    raw = RawTokenizer(
        models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, unk_token="<unk>")
    )
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    raw.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    if not control_in_model:
        raw.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(raw.to_str(), bos_id=1, eos_ids=[2], source="test")


def test_a_model_that_merges_its_own_control_strings_is_kept_from_it() -> None:
    tokenizer = _pieces(control_in_model=True)
    assert tokenizer.encode("a</s>", special=True)[-1] == 2
    plain = tokenizer.encode("a</s>b</s>")
    assert 2 not in plain
    assert "".join(tokenizer.decode(plain).split()) == "a</s>b</s>"


_SPLITS = st.lists(st.integers(0, 40), max_size=12)


def _streamed(tokenizer: Tokenizer, ids: list[int], cuts: list[int]) -> list[str]:
    stream = TextStream(tokenizer)
    edges = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    parts = [stream.push(ids[a:b]) for a, b in pairwise(edges)]
    return [*parts, stream.flush()]


@settings(max_examples=300)
@given(ids=st.lists(st.integers(0, 49_151) | st.integers(0, 300), max_size=40), cuts=_SPLITS)
def test_stream_equals_decode_for_any_ids(
    tokenizer: Tokenizer, ids: list[int], cuts: list[int]
) -> None:
    assert "".join(_streamed(tokenizer, ids, cuts)) == tokenizer.decode(ids)


@settings(max_examples=300)
@given(text=st.text(max_size=30) | st.text("👍🏽🇩🇪é日", max_size=10), cuts=_SPLITS)
def test_stream_never_emits_half_a_character(
    tokenizer: Tokenizer, text: str, cuts: list[int]
) -> None:
    ids = tokenizer.encode(text)
    whole = tokenizer.decode(ids)
    parts = _streamed(tokenizer, ids, cuts)
    assert "".join(parts) == whole
    assert "".join(parts).count("\ufffd") == whole.count("\ufffd")
    each = _streamed(tokenizer, ids, list(range(len(ids))))
    assert "".join(each) == whole


@settings(max_examples=300)
@given(ids=st.lists(st.integers(0, 268), max_size=40), cuts=_SPLITS)
def test_stream_equals_decode_for_sentencepiece(ids: list[int], cuts: list[int]) -> None:
    tokenizer = _PIECES
    assert "".join(_streamed(tokenizer, ids, cuts)) == tokenizer.decode(ids)


_PIECES = _pieces()


def test_stream_emits_text_at_once(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer)
    ids = tokenizer.encode("Hi 👍!")
    pushed = [stream.push([index]) for index in ids]
    assert pushed[0] == "Hi"
    assert pushed[-1] == "!"
    assert "\ufffd" not in "".join(pushed)
    assert stream.flush() == ""


def test_stream_ends_with_a_replacement_for_an_unfinished_character(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer)
    ids = tokenizer.encode("👍")[:-1]
    assert stream.push(ids) == ""
    assert stream.flush() == "\ufffd"
