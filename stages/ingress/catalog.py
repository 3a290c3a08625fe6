"""The models that pools serve, as ingress needs them: tokenizer, template, context."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from contracts.topology import ModelSection, Topology
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


@dataclass(frozen=True)
class Source:
    """What a stored model gives, loaded once however many topology names it has."""

    context: int
    quick: ModelEncoder
    patient: LazyEncoder


class Catalog:
    """The sources in memory. A new topology loads what it needs beyond the present one."""

    def __init__(self) -> None:
        self._sources: dict[str, Source] = {}

    async def prepare(self, topology: Topology) -> None:
        """Load what is missing, beside the event loop. Raises ModelError for a model not in the store."""
        for reference in sorted(_references(topology) - self._sources.keys()):
            self._sources[reference] = await asyncio.to_thread(_load, reference)

    async def models(self, topology: Topology) -> dict[str, PromptMaker]:
        """Every model that a pool serves, by topology name; others are forgotten. Raises ModelError."""
        await self.prepare(topology)
        wanted = _references(topology)
        self._sources = {name: each for name, each in self._sources.items() if name in wanted}
        return {
            name: _maker(name, topology.models[name], self._sources) for name in _served(topology)
        }


def _served(topology: Topology) -> list[str]:
    return sorted({pool.model for pool in topology.pools.values()})


def _references(topology: Topology) -> set[str]:
    return {topology.models[name].source for name in _served(topology)}


def _maker(name: str, section: ModelSection, sources: dict[str, Source]) -> PromptMaker:
    source = sources[section.source]
    context = min(section.context or source.context, source.context)
    return PromptMaker(name, context, source.quick, source.patient)


def _load(reference: str) -> Source:
    spec = open_model(reference)
    template = _template(spec)
    quick = ModelEncoder(spec, template)
    return Source(spec.config.context, quick, LazyEncoder(spec, template))


def _template(spec: ModelSpec) -> ChatTemplate | None:
    try:
        return load_template(spec)
    except ModelError as error:
        log.warning("%s", error)
        return None
