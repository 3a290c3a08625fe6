"""From the vocabulary inside a GGUF file to a `tokenizers` tokenizer, as JSON text."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from stages.runtime.models.errors import ModelError
from stages.runtime.models.gguf import GgufFile

VERSION = 1  # part of the cached file's name: raise it when the built tokenizer changes
_CONTROL, _USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type


def _byte_level() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


# tokenizer.ggml.pre names the splitting rule that the vocabulary was trained with
_PRE = {
    "smollm": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), _byte_level()]
    ),
    "gpt-2": _byte_level,
}


def build_tokenizer_json(file: GgufFile) -> str:
    """The tokenizer of `file` in the format of tokenizer.json (about 0.3 s for 49k tokens).

    Raises ModelError for tokenizer kinds we cannot reproduce exactly, and for unsound vocabularies.
    """
    model, pre = file.metadata.get("tokenizer.ggml.model"), file.metadata.get("tokenizer.ggml.pre")
    if model != "gpt2" or pre not in _PRE:
        raise ModelError(
            f"{file.path}: tokenizer {model!r} with pre-tokenizer {pre!r} is not supported; supported: "
            f"'gpt2' with {', '.join(map(repr, _PRE))}. Use the model's folder with tokenizer.json"
        )
    tokens = file.strings("tokenizer.ggml.tokens")
    tokenizer = Tokenizer(_bpe(file, tokens))
    tokenizer.pre_tokenizer = _PRE[str(pre)]()
    tokenizer.decoder = decoders.ByteLevel()
    _add_special(tokenizer, tokens, file.numbers("tokenizer.ggml.token_type"))
    if file.metadata.get("tokenizer.ggml.add_bos_token") is True:
        _prepend_bos(tokenizer, tokens, file)
    return str(tokenizer.to_str())


def _bpe(file: GgufFile, tokens: list[str]) -> models.BPE:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise ModelError(f"{file.path}: the vocabulary lists a token twice")
    merges: list[tuple[str, str]] = []
    for merge in file.strings("tokenizer.ggml.merges"):
        left, _, right = merge.partition(" ")
        # the library would panic on a merge whose parts or result it does not know
        if not {left, right, left + right} <= vocabulary.keys():
            raise ModelError(f"{file.path}: the merge {merge[:80]!r} is not in the vocabulary")
        merges.append((left, right))
    # no unknown token: it would turn a byte outside the vocabulary into a control token
    return models.BPE(vocab=vocabulary, merges=merges, unk_token=None, fuse_unk=False)


def _add_special(tokenizer: Tokenizer, tokens: list[str], kinds: list[float]) -> None:
    if len(kinds) != len(tokens):
        raise ModelError(
            f"the GGUF vocabulary has {len(tokens)} tokens but {len(kinds)} token types"
        )
    pairs = list(zip(tokens, kinds, strict=True))
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in pairs
            if kind == _CONTROL
        ]
    )
    tokenizer.add_tokens(
        [AddedToken(token, normalized=False) for token, kind in pairs if kind == _USER_DEFINED]
    )


def _prepend_bos(tokenizer: Tokenizer, tokens: list[str], file: GgufFile) -> None:
    bos = file.metadata.get("tokenizer.ggml.bos_token_id")
    if not isinstance(bos, int) or not 0 <= bos < len(tokens):
        raise ModelError(
            f"{file.path}: tokenizer.ggml.bos_token_id is {bos!r}; a token is expected"
        )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[f"{tokens[bos]}:0", "$A:0"], special_tokens=[(tokens[bos], bos)]
    )
