"""Chat templates: messages → prompt ids, in a sandbox, with no way for a message to act as the template.

The rendered text is encoded as a whole, exactly as Hugging Face does it, so ids are equal at every seam
and filters in the template (`| trim`) just work. Before that, a second render finds out which control
tokens the template itself writes: in it, the punctuation of all messages is replaced by private-use
characters, so no message can spell a control token, whatever the template does with it. Only when the
two disagree (somebody typed `<|im_end|>`) is the prompt put together piece by piece: the template's own
control tokens by id, all else as plain text. docs: README.md of this folder.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count

from stages.runtime.models.sandbox import compile_template
from stages.runtime.models.tokenizer import Tokenizer

Message = tuple[str, str]  # role, content


class ChatTemplate:
    """A model's chat template, compiled once. Safe to share between threads."""

    def __init__(self, source: str, *, tokens: Mapping[str, str], name: str) -> None:
        """`tokens` are bos_token, eos_token and the like. Raises ModelError for a template that is too
        large or does not compile."""
        self._render = compile_template(source, name)
        self._tokens = dict(tokens)

    def render(self, messages: Sequence[Message], *, generation_prompt: bool = True) -> str:
        """The prompt as text. Raises ModelError when the template refuses the messages or runs away."""
        listed = [{"role": role, "content": content} for role, content in messages]
        return self._render(
            messages=listed, add_generation_prompt=generation_prompt, **self._tokens
        )

    def render_ids(
        self,
        messages: Sequence[Message],
        tokenizer: Tokenizer,
        *,
        generation_prompt: bool = True,
    ) -> list[int]:
        """The prompt as token ids; control tokens come from the template only. Raises as `render` does."""
        text = self.render(messages, generation_prompt=generation_prompt)
        mask = _Mask(messages, tokenizer.control)
        masked = text
        if mask.needed:
            masked = self.render(mask.messages, generation_prompt=generation_prompt)
        pieces = tokenizer.split_control(masked)
        ids = tokenizer.encode(text, special=True)
        genuine = [piece for piece in pieces if isinstance(piece, int)]
        if [index for index in ids if tokenizer.is_control(index)] == genuine:
            return ids
        return _assemble(pieces, mask, tokenizer)


def _assemble(pieces: Sequence[str | int], mask: "_Mask", tokenizer: Tokenizer) -> list[int]:
    ids: list[int] = []
    for piece in pieces:
        ids += [piece] if isinstance(piece, int) else tokenizer.encode(mask.restore(piece))
    return ids


class _Mask:
    """Messages whose punctuation is replaced by private-use characters that occur in none of them.

    Every control token holds at least one masked character; so a masked message, however the template cuts
    and joins it, never contains one.
    """

    def __init__(self, messages: Sequence[Message], control: Mapping[str, int]) -> None:
        everything = "".join(role + content for role, content in messages)
        marks = {character for name in control for character in _marks(name)}
        alphabet = sorted(marks & set(everything))
        self.needed = bool(alphabet)
        fresh = _private_characters(set(everything))
        forth = {ord(character): next(fresh) for character in alphabet}
        self._back = {ord(stand_in): chr(character) for character, stand_in in forth.items()}
        self.messages = [(r.translate(forth), c.translate(forth)) for r, c in messages]

    def restore(self, text: str) -> str:
        """`text` of the masked render as it was meant."""
        return text.translate(self._back)


def _marks(name: str) -> str:
    """The characters of a control token to mask. Letters are left alone where possible: templates test them."""
    return "".join(c for c in name if not c.isalnum() and not c.isspace()) or name[:1]


def _private_characters(used: set[str]) -> Iterator[str]:
    return (character for character in map(chr, count(0x10_0000)) if character not in used)
