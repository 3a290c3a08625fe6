"""Which route takes a request, and which model its prompt is for."""

from dataclasses import dataclass

from contracts.client import CallOptions, ModelCard, ModelList
from contracts.errors import ErrorCode, HeadraceError
from contracts.internal import Verb
from contracts.topology import RouteSection, Topology


@dataclass(frozen=True)
class Match:
    """A route and the model it leads to."""

    name: str
    route: RouteSection
    model: str
    model_named: bool
    pool: str  # as this topology has it; routing decides, by its own where it has another one


class Routes:
    """The topology's routes; the first match decides."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._pools: dict[str, list[str]] = {}
        for name, pool in topology.pools.items():
            self._pools.setdefault(pool.model, []).append(name)

    def match(self, tenant: str, verb: Verb, options: CallOptions) -> Match:
        """Raises not_found: the named model is not served, or no route takes the request."""
        if options.model is not None and options.model not in self._pools:
            known = ", ".join(sorted(self._pools))
            raise HeadraceError(
                ErrorCode.NOT_FOUND,
                f"unknown model {options.model[:64]!r}; this tenant may name: {known}",
                field="model",
            )
        for index, route in enumerate(self._topology.routes):
            if _takes(route, tenant, verb, options):
                model = options.model or self._topology.pools[route.pool].model
                name = self._topology.route_name(index)
                serving = self._pools[model]
                pool = route.pool if route.pool in serving else serving[0]
                return Match(name, route, model, options.model is not None, pool)
        raise HeadraceError(
            ErrorCode.NOT_FOUND,
            f"no route of the topology takes a {verb} call of tenant {tenant!r} "
            f"with priority {options.priority.value}",
        )

    def models(self, contexts: dict[str, int]) -> ModelList:
        """What a tenant may name: every model that a pool serves."""
        return ModelList(
            models=[
                ModelCard(id=name, context=contexts[name], pools=pools)
                for name, pools in sorted(self._pools.items())
            ]
        )


def _takes(route: RouteSection, tenant: str, verb: Verb, options: CallOptions) -> bool:
    wanted = route.match
    pairs = (
        (wanted.tenant, tenant),
        (wanted.verb, verb),
        (wanted.model, options.model),
        (wanted.priority, options.priority),
    )
    return all(want is None or want == has for want, has in pairs)
