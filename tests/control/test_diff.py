"""The difference between two topologies: nothing is left out, and each has the right effect."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from contracts.lifecycle import Actuals, Change
from contracts.topology import Topology
from stages.control.diff import diff
from stages.control.flow import flow
from stages.control.order import plan, reconcile
from tests.support.stages import key_hash, topology

KEYS = [key_hash(f"key {number}") for number in range(4)]


def edited(*path: str | int, value: Any, base: Topology | None = None) -> Topology:
    """The small topology with one option set; `value=...` (Ellipsis) removes the entry."""
    document = (base or topology()).model_dump(mode="json")
    part: Any = document
    for each in path[:-1]:
        part = part[each]
    if value is ...:
        del part[path[-1]]
    else:
        part[path[-1]] = value
    return Topology.model_validate_json(json.dumps(document))


def only(after: Topology, before: Topology | None = None) -> Change:
    [change] = diff(before or topology(), after)
    return change


@pytest.mark.parametrize(
    ("path", "value", "effect"),
    [
        (("currency",), "EUR", "live"),
        (("bus", "port"), 4333, "restart"),
        (("bus", "store_bytes"), 1 << 25, "live"),
        (("models", "m", "source"), "hf:a/b", "restart"),
        (("models", "m", "context"), 1024, "replace"),
        (("models", "m", "context"), None, "replace"),
        (("models", "m", "context"), 256, "restart"),
        (("models", "big", "context"), 4096, "restart"),
        (("models", "m", "weights"), "fp32", "replace"),
        (("pools", "p", "model"), "big", "restart"),
        (("pools", "p", "executors", "max"), 2, "live"),
        (("pools", "p", "device"), "cpu", "replace"),
        (("pools", "p", "threads"), 1, "replace"),
        (("pools", "p", "slots"), 3, "replace"),
        (("pools", "p", "kv_tokens"), 8192, "replace"),
        (("pools", "p", "step_tokens"), 512, "replace"),
        (("pools", "p", "zone"), "z", "replace"),
        (("pools", "p", "fraction"), 0.5, "replace"),
        (("pools", "p", "price", "accelerator_hour"), 2.0, "live"),
        (("pools", "p", "buckets"), [32], "live"),
        (("pools", "p", "queue", "requests"), 7, "live"),
        (("routes", 0, "max_tokens"), 9, "live"),
        (("routes", 0, "match", "tenant"), "acme", "live"),
        (("tenants", "acme", "keys"), [KEYS[0]], "live"),
        (("stages", "egress", "grpc"), "127.0.0.1:9", "restart"),
        (("stages", "egress", "http"), "127.0.0.1:9", "restart"),
        (("stages", "egress", "buffer_chunks"), 99, "live"),
        (("stages", "ingress", "replicas"), 2, "start"),
        (("stages", "egress", "replicas"), 2, "start"),
        (("stages", "queueing", "replicas"), 1, "stop"),
    ],
)
def test_the_effect_of_each_option(path: tuple[str | int, ...], value: Any, effect: str) -> None:
    changes = diff(topology(), edited(*path, value=value))
    assert {one.effect for one in changes} == {effect}
    dotted = ".".join(str(part) for part in path if not isinstance(part, int))
    assert all(one.path.startswith(dotted.split(".")[0]) for one in changes)


def test_replace_is_what_starts_executors_anew_and_nothing_else_does() -> None:
    """The effect that is shown is the one that `reconcile` brings about."""
    for option, value in (("threads", 1), ("zone", "z"), ("buckets", [9]), ("fraction", 0.1)):
        after = edited("pools", "p", option, value=value)
        steps = reconcile(plan(after), plan(topology()))
        assert bool(steps.start) == (only(after).effect == "replace")


def test_executors_count_from_what_was_decided_while_running() -> None:
    wide = edited("pools", "p", "executors", value={"min": 1, "max": 4})
    narrow = edited("pools", "p", "executors", value={"min": 1, "max": 2})
    assert [one.effect for one in diff(wide, narrow)] == ["live"]
    assert [one.effect for one in diff(wide, narrow, Actuals(executors={"p": 3}))] == ["stop"]
    assert [one.effect for one in diff(narrow, wide, Actuals(executors={"p": 3}))] == ["start"]


def test_a_new_pool_and_its_model_are_shown_whole() -> None:
    after = edited("models", "new", value={"source": "x", "context": 64})
    after = edited("pools", "n", value={"model": "new", "threads": 1}, base=after)
    model, pool = diff(topology(), after)
    assert (model.kind, model.path, model.after) == (
        "add",
        "models.new",
        "{source: x, context: 64}",
    )
    assert (pool.kind, pool.effect, pool.path) == ("add", "start", "pools.n")
    assert pool.after == "{model: new, threads: 1}"
    gone = diff(after, topology())
    assert [(one.kind, one.effect) for one in gone] == [("remove", "live"), ("remove", "stop")]
    assert gone[1].before == pool.after


def test_a_model_that_no_pool_goes_on_with_may_change() -> None:
    unused = edited("models", "new", value={"source": "x"})
    after = edited("models", "new", "source", value="y", base=unused)
    assert only(after, unused).effect == "live"


def test_routes_are_told_by_name_and_their_order_counts() -> None:
    extra = {"name": "extra", "pool": "q"}
    default = topology().routes[0].model_dump(mode="json")
    first = edited("routes", value=[extra, default])
    last = edited("routes", value=[default, extra])
    added = only(first)
    assert (added.kind, added.path, added.after) == (
        "add",
        "routes.extra",
        "{name: extra, pool: q}",
    )
    order = only(last, first)
    assert (order.path, order.before, order.after) == (
        "routes",
        "[extra, default]",
        "[default, extra]",
    )


def test_keys_are_shown_by_their_id_only() -> None:
    long = {"hash": KEYS[1], "name": "ci", "scopes": ["chat"], "expires": None}
    after = edited("tenants", "acme", "keys", value=[KEYS[0], long])
    after = edited("tenants", "new", value={"keys": [KEYS[2]]}, base=after)
    changes = diff(topology(), after)
    assert [one.kind for one in changes] == ["add", "add", "add", "remove"]
    text = "".join(one.model_dump_json() for one in changes)
    for key in (*KEYS[:3], topology().tenants["acme"].api_keys()[0].hash):
        assert key.removeprefix("sha256:") not in text
        assert key.removeprefix("sha256:")[:12] in text
    changed = edited("tenants", "acme", "keys", value=[KEYS[0], long | {"scopes": ["generate"]}])
    before = edited("tenants", "acme", "keys", value=[KEYS[0], long])
    assert only(changed, before).path.endswith(".scopes")


def test_both_spellings_of_a_key_are_the_same_key() -> None:
    long = {"hash": topology().tenants["acme"].api_keys()[0].hash}
    assert diff(topology(), edited("tenants", "acme", "keys", value=[long])) == []


# Properties: topologies drawn at random, every leaf that differs is named.


def hash_of(key: str | dict[str, Any]) -> str:
    return key if isinstance(key, str) else key["hash"]


names = st.sampled_from(["a", "b", "c"])
pools = st.fixed_dictionaries(
    {"model": names},
    optional={
        "threads": st.integers(1, 4),
        "slots": st.integers(1, 4),
        "zone": names,
        "fraction": st.none() | st.sampled_from([0.25, 0.5]),
        "buckets": st.lists(st.integers(1, 99), min_size=1, max_size=3),
        "executors": st.fixed_dictionaries({"min": st.integers(1, 3), "max": st.integers(3, 5)}),
        "price": st.fixed_dictionaries({"accelerator_hour": st.floats(0, 2)}),
        "queue": st.fixed_dictionaries({"requests": st.integers(1, 9)}),
    },
)
keys = st.sampled_from(KEYS) | st.fixed_dictionaries(
    {"hash": st.sampled_from(KEYS)}, optional={"name": names, "scopes": st.just(["chat"])}
)
models = st.fixed_dictionaries(
    {"source": names}, optional={"context": st.none() | st.integers(16, 18)}
)
routes = st.fixed_dictionaries(
    {"name": names, "pool": names}, optional={"max_tokens": st.integers(1, 3)}
)
documents = st.fixed_dictionaries(
    {
        "version": st.just(1),
        "models": st.dictionaries(names, models, min_size=1),
        "pools": st.dictionaries(names, pools, min_size=1),
        "routes": st.lists(routes, min_size=1, max_size=3, unique_by=lambda one: one["name"]),
        "tenants": st.dictionaries(
            names,
            st.fixed_dictionaries({"keys": st.lists(keys, max_size=3, unique_by=hash_of)}),
            min_size=1,
        ),
    },
    optional={
        "currency": st.sampled_from(["USD", "EUR"]),
        "stages": st.fixed_dictionaries(
            {"egress": st.fixed_dictionaries({"replicas": st.integers(1, 3)})}
        ),
    },
)
topologies = documents.map(Topology.model_validate)


def leaves(document: Topology) -> dict[str, Any]:
    """Path → value, named as in changes."""
    parts = document.model_dump(mode="json")
    parts["routes"] = {route["name"]: route for route in parts["routes"]}
    for name, tenant in document.tenants.items():
        parts["tenants"][name]["there"] = True  # also without a key
        parts["tenants"][name]["keys"] = {
            key.id: key.model_dump(mode="json") for key in tenant.api_keys()
        }
    return dict(_flatten("", parts))


def _flatten(path: str, value: Any) -> Any:
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _flatten(f"{path}.{name}" if path else name, one)
    else:
        yield path, value


@given(topologies)
@settings(max_examples=20, deadline=None)
def test_nothing_differs_from_itself(one: Topology) -> None:
    assert diff(one, Topology.model_validate_json(one.model_dump_json())) == []


@given(topologies, topologies)
@settings(max_examples=60, deadline=None)
def test_every_leaf_that_differs_is_named_and_no_other(before: Topology, after: Topology) -> None:
    old, new = leaves(before), leaves(after)
    differ = {path for path in {*old, *new} if old.get(path, _NONE) != new.get(path, _NONE)}
    changes = diff(before, after)
    for path in differ:
        assert any(path == one.path or path.startswith(f"{one.path}.") for one in changes), path
    for change in changes:
        if change.path == "routes":
            continue
        assert any(path == change.path or path.startswith(f"{change.path}.") for path in differ), (
            change
        )
    assert len({one.path for one in changes}) == len(changes)


_NONE = object()


@given(topologies, topologies)
@settings(max_examples=25, deadline=None)
def test_the_way_back_names_the_same_places(before: Topology, after: Topology) -> None:
    there, back = diff(before, after), diff(after, before)
    assert {one.path for one in there} == {one.path for one in back}


texts = st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), max_size=6)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(values)
@settings(max_examples=60, deadline=None)
def test_a_value_is_shown_as_yaml_that_reads_back(value: Any) -> None:
    assert YAML(typ="safe", pure=True).load(flow(value)) == value
