"""topology.yaml: every mistake is named at once, with its line, key and what to write."""

import os
from pathlib import Path

import pytest

from stages.runtime.topology_file import Report, load_topology, parse_topology
from stages.runtime.topology_file.keys import hint
from stages.runtime.topology_file.options import option_at
from stages.runtime.topology_file.values import quantity

ROOT = Path(__file__).parents[2]
KEY = "sha256:" + "a" * 64

GOOD = f"""\
version: 1
models:
  smollm: {{source: smollm2-135m-instruct, context: 8192}}
pools:
  small: {{model: smollm}}
routes:
  - {{pool: small}}
tenants:
  demo: {{keys: ["{KEY}"]}}
"""

# Every line of `MISTAKES` names what must be reported: line, key, a word of the message.
BAD = f"""\
version: 2
currency: dollars
bus: {{embedded: yes, port: 7070, ports: 1}}
models:
  smollm: {{source: smollm2-135m-instruct, context: 8k, weight: auto}}
  smollm: {{source: other}}
  big: {{source: other, context: 100000}}
pools:
  small:
    model: smolm
    executors: {{min: 0, max: "2"}}
    device: cudaa
    threads: 0
    kv_tokens: 64k
    price: {{accelerator_hour: "0.08 USD"}}
    buckets: [512, 512, 128]
    gpu_memory: 4GB
  dear: {{model: big, price: {{accelerator_hour: -1}}, kv_tokens: 4096, buckets: 512}}
  upside: {{model: big, kv_tokens: 131072, executors: {{min: 3, max: 1}}}}
  empty:
  "my pool": {{model: big}}
  ingress: {{model: big, kv_tokens: 131072}}
routes:
  - {{name: default, match: {{tenant: acme, verb: gen}}, pool: smal, max_tokens: 0, timeout_s: 120}}
  - {{name: default, match: {{priority: urgent}}, pool: my pool, timeout_ms: 120s, slots: 1}}
  - text
tenants:
  demo: {{keys: [my-secret-key, "{KEY}"]}}
  other: {{keys: [{{name: ci, scope: [chat]}}]}}
  third: {{}}
  fourth: {{keys: ["{KEY}"]}}
stages:
  ingress: {{replicas: 100}}
  egress: {{replicas: 1, grpc: "127.0.0.1:7070"}}
  egres: {{}}
"""
MISTAKES = [
    (1, "version", "write 1"),
    (2, "currency", "[A-Z]"),
    (3, "bus.embedded", "write true"),
    (3, "bus.ports", "did you mean 'port'"),
    (5, "models.smollm.context", "write 8192"),
    (5, "models.smollm.weight", "did you mean 'weights'"),
    (6, "models.smollm", "already set on line 5"),
    (10, "pools.small.model", "did you mean 'smollm'"),
    (11, "pools.small.executors.min", "expected a whole number from 1 to 64"),
    (11, "pools.small.executors.max", "write 2"),
    (12, "pools.small.device", "auto or cpu"),
    (13, "pools.small.threads", "from 1 to 256"),
    (14, "pools.small.kv_tokens", "write 65536"),
    (15, "pools.small.price.accelerator_hour", "write 0.08"),
    (16, "pools.small.buckets", "rising order"),
    (17, "pools.small.gpu_memory", "did you mean 'kv_tokens' (tokens)"),
    (18, "pools.dear.price.accelerator_hour", "too small"),
    (18, "pools.dear.kv_tokens", "cannot hold"),
    (18, "pools.dear.buckets", "write [512]"),
    (19, "pools.upside.executors.max", "below min (3)"),
    (20, "pools.empty", "empty"),
    (21, "pools.my pool", "a name starts with"),
    (22, "pools.ingress", "name of a stage"),
    (24, "routes[0].match.tenant", "unknown tenant 'acme'"),
    (24, "routes[0].match.verb", "generate or chat"),
    (24, "routes[0].pool", "did you mean 'small'"),
    (24, "routes[0].max_tokens", "at least 1"),
    (24, "routes[0].timeout_s", "write timeout_ms: 120000"),
    (25, "routes[1].name", "already routes[0]"),
    (25, "routes[1].match.priority", "high or normal or low"),
    (25, "routes[1].timeout_ms", "write 120000"),
    (25, "routes[1].slots", "option of pools.NAME"),
    (26, "routes[2]", "is text; expected a section"),
    (28, "tenants.demo.keys[0]", "write its hash, sha256:"),
    (29, "tenants.other.keys[0].hash", "is missing"),
    (29, "tenants.other.keys[0].scope", "did you mean 'scopes'"),
    (30, "tenants.third.keys", "is missing"),
    (31, "tenants.fourth.keys[0]", "already belongs to tenant 'demo'"),
    (33, "stages.ingress.replicas", "from 1 to 16"),
    (34, "stages.egress.grpc", "already bus.port"),
    (35, "stages.egres", "did you mean 'egress'"),
]


def test_all_mistakes_of_one_file_are_named_at_once() -> None:
    report = parse_topology(BAD, "topology.yaml")
    found = {(one.line, one.key): one.message for one in report.findings}
    for line, key, words in MISTAKES:
        assert words in found.get((line, key), "not reported"), (line, key)
    assert len(MISTAKES) >= 20
    assert len(report.findings) == len(MISTAKES), "a mistake was reported that is not one"
    assert report.topology is None


def test_findings_come_in_the_order_of_the_file_and_jump_to_the_line() -> None:
    report = parse_topology(BAD, "topology.yaml")
    lines = [one.line or 0 for one in report.findings]
    assert lines == sorted(lines)
    assert report.lines()[0].startswith("topology.yaml:1: version: ")


def test_a_key_in_clear_is_never_printed() -> None:
    assert "my-secret-key" not in "\n".join(parse_topology(BAD, "t").lines())
    whole = GOOD.replace(f'{{keys: ["{KEY}"]}}', "hr-clear-secret")
    assert "hr-clear-secret" not in "\n".join(parse_topology(whole, "t").lines())


def test_the_repository_s_own_file_and_the_smallest_file_are_right() -> None:
    assert load_topology(ROOT / "topology.yaml").findings == []
    report = parse_topology(GOOD, "t")
    assert report.findings == []
    assert report.topology is not None


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", None, "empty"),
        ("# only a comment\n", None, "empty"),
        ("- 1\n", 1, "not a mapping"),
        ("just text\n", 1, "not a mapping"),
        ("a: 1\nb: c: d\n", 2, "not YAML"),
        ("a:\n\t- b\n", 2, "a tab"),
        ("a: 1\n---\nb: 2\n", 2, "second document"),
        ("a: 1\nb: \x01\n", 2, "control character"),
        ("a: *nowhere\n", 1, "undefined alias"),
        ('a: "open\n', 2, "not YAML"),
        ("a: " + "[" * 200, 1, "deeper than 32"),
        ("a: " + "{b: " * 3000, 1, "deeper than 32"),
        ("a: &a [*a]\n", None, "values"),
        ("a: " + "x" * 300_000, None, "larger than 256 KiB"),
    ],
)
def test_what_cannot_be_read_is_one_finding(text: str, line: int | None, words: str) -> None:
    (finding,) = parse_topology(text, "t").findings
    assert finding.line == line
    assert words in finding.message


def test_aliases_may_be_used_but_not_multiply() -> None:
    shared = GOOD.replace("small: {model: smollm}", "a: &p {model: smollm}\n  small: *p")
    assert parse_topology(shared, "t").findings == []
    rows = ["a0: &a0 [x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    (finding,) = parse_topology("\n".join(rows), "t").findings
    assert "more than 20000 values" in finding.message


def test_tags_and_merge_keys_are_refused_by_line() -> None:
    text = GOOD + "stages: !!python/object:os.system {}\nbus:\n  <<: {port: 1}\n"
    found = {(one.line, one.key): one.problem for one in parse_topology(text, "t").findings}
    assert found == {
        (10, "stages"): "tags are not read",
        (12, "bus.<<"): "merge keys are not read",
    }


def test_missing_sections_are_all_named() -> None:
    found = {one.key for one in parse_topology("currency: EUR\n", "t").findings}
    assert found == {"version", "models", "pools", "routes", "tenants"}


def test_sections_of_a_wrong_type_hide_nothing_else() -> None:
    text = "version: 1\nmodels: 5\npools: {p: {model: x, slot: 1}}\nroutes: {}\ntenants: []\n"
    found = {one.key for one in parse_topology(text, "t").findings}
    assert found == {"models", "pools.p.slot", "routes", "tenants"}


def test_a_missing_or_unreadable_file_is_a_finding(tmp_path: Path) -> None:
    def only(report: Report) -> str:
        (finding,) = report.findings
        return finding.text(report.file)

    assert "no such file" in only(load_topology(tmp_path / "none.yaml"))
    assert "cannot be read" in only(load_topology(tmp_path))
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"version: 1\nname: caf\xe9\n")
    assert f"{latin}:2: byte 0xe9 is not UTF-8" in only(load_topology(latin))


def test_a_byte_order_mark_is_not_a_mistake(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert load_topology(path).findings == []


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("64k", "tokens", 65536),
        ("64 KiB", "bytes", 65536),
        ("2GB", "bytes", 2 << 30),
        ("120s", "ms", 120_000),
        ("2 minutes", "ms", 120_000),
        ("1.5s", "ms", 1500),
        ("0.08 USD", "currency per hour", 0.08),
        ("$0.08", "currency per hour", 0.08),
        ("1_000", None, 1000),
        ("4k", "requests", 4000),
        ("fast", "ms", None),
        ("10 apples", "tokens", None),
    ],
)
def test_quantities_with_units_are_understood(
    text: str, unit: str | None, value: float | None
) -> None:
    assert quantity(text, unit) == value


@pytest.mark.parametrize(
    ("place", "key", "value", "words"),
    [
        (("routes", 0), "timeout_s", 30, "write timeout_ms: 30000"),
        (("routes", 0), "timeout_minutes", 2, "write timeout_ms: 120000"),
        (("routes", 0), "timeout_s", 10_000, "'timeout_ms' (ms)?"),
        (("bus",), "store_gb", 2, "write store_bytes: 2147483648"),
        (("pools", "p"), "KV-Tokens", 1, "'kv_tokens'"),
        (("pools", "p"), "max_num_seqs", 1, "'slots'"),
        (("pools", "p"), "replicas", 2, "'executors'"),
        (("pools", "p"), "tenants", 2, "option of the file itself"),
        ((), "port", 2, "option of bus"),
        ((), "colour", 2, "known here: version, currency"),
    ],
)
def test_unknown_options_are_told_what_was_meant(
    place: tuple[str | int, ...], key: str, value: int, words: str
) -> None:
    parent = option_at(place)
    assert parent is not None
    assert words in hint(parent, key, value, place)


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ("{}", "{tenant: demo}", True),
        ("{tenant: demo}", "{tenant: demo}", True),
        ("{verb: chat}", "{verb: chat, tenant: demo}", True),
        ("{verb: chat, tenant: demo}", "{verb: chat}", False),
        ("{verb: chat}", "{verb: generate}", False),
        ("{tenant: demo}", "{}", False),
    ],
)
def test_a_route_behind_one_that_takes_all_is_a_warning(
    first: str, second: str, found: bool
) -> None:
    routes = f"  - {{match: {first}, pool: small}}\n  - {{match: {second}, pool: small}}"
    report = parse_topology(GOOD.replace("  - {pool: small}", routes), "f.yaml")
    assert report.topology is not None
    lines = [one.text("f.yaml") for one in report.findings]
    assert ["f.yaml:8: warning: routes[1]: no request comes here" in "".join(lines)] == [found]


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    [finding] = load_topology(tmp_path / "pipe").findings
    assert "a pipe or a device" in finding.message
    [finding] = load_topology(Path("/dev/null")).findings
    assert "a pipe or a device" in finding.message
    [finding] = load_topology(tmp_path).findings
    assert finding.level == "error"
