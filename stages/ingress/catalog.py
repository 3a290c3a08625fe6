"""The models that pools serve, as ingress needs them: tokenizer, template, context."""

import logging
from collections.abc import Sequence

from contracts.topology import Topology
from stages.ingress.prompt import PromptMaker, Turn
from stages.runtime.models.artifacts import load_template, load_tokenizer
from stages.runtime.models.errors import ModelError
from stages.runtime.models.spec import ModelSpec
from stages.runtime.models.store import open_model
from stages.runtime.models.template import ChatTemplate

log = logging.getLogger("headrace.ingress")


class ModelEncoder:
    """One tokenizer and the model's template."""

    def __init__(self, spec: ModelSpec, template: ChatTemplate | None) -> None:
        """Loads the tokenizer (0.1 to 0.2 s). Raises ModelError."""
        self._tokenizer = load_tokenizer(spec)
        self._template = template

    def prompt_ids(self, text: str) -> list[int]:
        """Ids of a bare prompt."""
        return self._tokenizer.encode_prompt(text)

    def chat_ids(self, turns: Sequence[Turn]) -> list[int]:
        """Ids of a conversation. Raises ModelError."""
        if self._template is None:
            raise ModelError("it has no chat template; call generate with a prompt instead")
        return self._template.render_ids(turns, self._tokenizer)


class LazyEncoder:
    """Loads its tokenizer when it is first used: for long prompts only, in their thread."""

    def __init__(self, spec: ModelSpec, template: ChatTemplate | None) -> None:
        self._spec = spec
        self._template = template
        self._loaded: ModelEncoder | None = None

    def prompt_ids(self, text: str) -> list[int]:
        """Ids of a bare prompt."""
        return self.load().prompt_ids(text)

    def chat_ids(self, turns: Sequence[Turn]) -> list[int]:
        """Ids of a conversation. Raises ModelError."""
        return self.load().chat_ids(turns)

    def load(self) -> ModelEncoder:
        """The encoder; two threads that race both load, and one result stays."""
        if self._loaded is None:
            self._loaded = ModelEncoder(self._spec, self._template)
        return self._loaded


def load_models(topology: Topology) -> dict[str, PromptMaker]:
    """Every model that a pool serves, by topology name. Raises ModelError for one not in the store."""
    served = {pool.model for pool in topology.pools.values()}
    return {name: _load(name, topology) for name in sorted(served)}


def _load(name: str, topology: Topology) -> PromptMaker:
    section = topology.models[name]
    spec = open_model(section.source)
    template = _template(name, spec)
    context = min(section.context or spec.config.context, spec.config.context)
    quick = ModelEncoder(spec, template)
    return PromptMaker(name, context, quick, LazyEncoder(spec, template))


def _template(name: str, spec: ModelSpec) -> ChatTemplate | None:
    try:
        return load_template(spec)
    except ModelError as error:
        log.warning("model %s: %s", name, error)
        return None
