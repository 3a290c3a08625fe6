"""Unknown options: which known one was meant, its unit, and the value in that unit."""

from difflib import get_close_matches
from typing import Any, Final

from stages.runtime.topology_file.finding import Path, dotted
from stages.runtime.topology_file.options import Option, root
from stages.runtime.topology_file.values import factors

# Names that other servers use for what we call differently.
_OTHER_NAMES: Final = {
    "gpu_memory": "kv_tokens",
    "gpu_memory_utilization": "kv_tokens",
    "kv_cache": "kv_tokens",
    "kv_cache_bytes": "kv_tokens",
    "memory": "kv_tokens",
    "batch_size": "slots",
    "max_batch": "slots",
    "max_batch_size": "slots",
    "max_num_seqs": "slots",
    "max_num_batched_tokens": "step_tokens",
    "chunked_prefill_size": "step_tokens",
    "replicas": "executors",
    "workers": "executors",
    "cpus": "threads",
    "cores": "threads",
    "max_model_len": "context",
    "context_length": "context",
    "path": "source",
    "repo": "source",
    "dtype": "weights",
    "quantization": "weights",
    "cost": "price",
    "hourly": "accelerator_hour",
    "per_hour": "accelerator_hour",
    "bind": "grpc",
    "listen": "grpc",
    "address": "grpc",
    "api_keys": "keys",
    "key": "keys",
    "model_name": "model",
    "default_max_tokens": "max_tokens",
    "max_new_tokens": "max_tokens",
    "ttl": "timeout_ms",
    "deadline": "timeout_ms",
}
_UNITS: Final = (
    *("ms", "s", "sec", "secs", "seconds", "min", "minutes", "h", "hours"),
    *("bytes", "kb", "mb", "gb", "mib", "gib", "tokens"),
)


def meant(parent: Option, key: str) -> str | None:
    """The option of `parent` that `key` most likely stands for."""
    known = list(parent.options)
    plain = key.lower().replace("-", "_").replace(" ", "_")
    if plain in known:
        return plain
    other = _OTHER_NAMES.get(plain)
    if other in known:
        return other
    stem, _ = _split(plain)
    for option in known:
        if stem and stem == _split(option)[0]:
            return option
    close = get_close_matches(plain, known, n=1, cutoff=0.7)
    return close[0] if close else None


def hint(parent: Option, key: str, value: Any, place: Path) -> str:
    """What to do about an unknown option, in words."""
    option = meant(parent, key)
    if option is None:
        return _elsewhere(parent, key, place)
    target = parent.options[option]
    unit = f" ({target.unit})" if target.unit else ""
    converted = _convert(key, value, option, target)
    advice = f"; write {option}: {converted}" if converted is not None else ""
    return f"did you mean {option!r}{unit}?{advice}"


def _elsewhere(parent: Option, key: str, place: Path) -> str:
    found = [path for path in _places(root(), key, ()) if path[:-1] != place]
    known = ", ".join(parent.options) or "none"
    if found:
        return f"it is an option of {dotted(found[0][:-1]) or 'the file itself'}; move it there"
    return f"known here: {known}"


def _places(option: Option, key: str, path: Path) -> list[Path]:
    found: list[Path] = []
    for name, child in option.options.items():
        if name == key:
            found.append((*path, name))
        found += _places(child, key, (*path, name))
    if option.each is not None:
        found += _places(option.each, key, (*path, "NAME") if option.kind == "object" else path)
    return found


def _split(key: str) -> tuple[str, str | None]:
    """`timeout_s` → (`timeout`, `s`)."""
    stem, _, last = key.rpartition("_")
    return (stem, last) if stem and last in _UNITS else (key, None)


def _convert(key: str, value: Any, option: str, target: Option) -> str | None:
    """The value in the unit of the option that was meant, when both are of one kind."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    said, unit = _split(key.lower())[1], _split(option)[1]
    known = factors(target.unit)
    if said is None or unit is None or said not in known:
        return None
    converted = value * known[said]
    return f"{converted:.0f}" if target.allows(converted) else None
