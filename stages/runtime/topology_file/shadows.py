"""Routes that no request can reach, because an earlier one takes them all."""

from collections.abc import Iterator

from contracts.topology import RouteMatch, Topology
from stages.runtime.topology_file.finding import Finding
from stages.runtime.topology_file.tree import Tree


def shadowed(topology: Topology, tree: Tree) -> Iterator[Finding]:
    """A warning for each route behind one that matches whatever it matches."""
    for index, route in enumerate(topology.routes):
        for before, earlier in enumerate(topology.routes[:index]):
            if _covers(earlier.match, route.match):
                path = ("routes", index)
                yield Finding(
                    path,
                    tree.line(path),
                    f"no request comes here: route {topology.route_name(before)!r} "
                    f"(routes[{before}]) takes them all; move this one before it",
                    level="warning",
                )
                break


def _covers(earlier: RouteMatch, later: RouteMatch) -> bool:
    wanted = later.model_dump()
    return all(
        value is None or wanted[name] == value for name, value in earlier.model_dump().items()
    )
