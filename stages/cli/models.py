"""`headrace models`: fetch, list and look at models."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from stages.cli.common import FAILED, JsonOption, fail, print_json
from stages.cli.rows import print_table
from stages.runtime.models.errors import ModelError
from stages.runtime.models.gguf import read_gguf
from stages.runtime.models.spec import ModelSpec
from stages.runtime.models.store import BUILT_IN, list_models, open_model

app = typer.Typer(
    name="models",
    help="Fetch, list and inspect models. MODEL is the built-in smollm2-135m-instruct, "
    "hf:OWNER/NAME[@REVISION][#FILE.gguf], a folder, or a .gguf file.",
    no_args_is_help=True,
    add_completion=False,
)
Model = Annotated[str, typer.Argument(metavar="MODEL", help="Which model.")]


@app.command("pull")
def pull_command(model: Model = BUILT_IN, as_json: JsonOption = False) -> None:
    """Download MODEL into the cache. Resumes; does nothing when it is there.

    The cache is $HEADRACE_CACHE, else the user's cache folder. Exit code 1 when it cannot be had.
    """
    # here, not above: the hub's library takes 0.35 s to import, which only this command should pay
    from stages.runtime.models.pull import pull

    with _one_line_errors(as_json), _bar() as bar:
        task = bar.add_task("starting", total=None)
        spec = pull(
            model,
            lambda what, done, total: bar.update(
                task, description=what, completed=done, total=total or None
            ),
        )
    _print(spec, as_json, short=True)


@app.command("list")
def list_command(as_json: JsonOption = False) -> None:
    """List the models in the cache."""
    with _one_line_errors(as_json):
        stored = list_models()
    if as_json:
        print_json([{"model": m.source, "path": str(m.path), "bytes": m.size} for m in stored])
        return
    if not stored:
        typer.echo("No models yet. Fetch the built-in one: headrace models pull")
        return
    rows = [(one.source, _megabytes(one.size), str(one.path)) for one in stored]
    print_table(("model", "size", "path"), rows)


@app.command("show")
def show_command(model: Model = BUILT_IN, as_json: JsonOption = False) -> None:
    """Show dimensions, encodings, size and identity of MODEL, without network."""
    with _one_line_errors(as_json):
        spec = open_model(model)
    _print(spec, as_json, short=False)


def describe(spec: ModelSpec) -> dict[str, object]:
    """What `show --json` prints. Sizes in bytes; KV bytes per token for fp32 keys and values."""
    config = spec.config
    encodings = Counter(entry.encoding for entry in spec.tensors.values())
    return {
        "model": spec.name,
        "source": str(spec.source),
        "architecture": config.architecture,
        "parameters": config.parameters,
        "layers": config.layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "context": config.context,
        "tied_embeddings": config.tied_embeddings,
        "eos_ids": list(config.eos_ids),
        "encodings": dict(encodings.most_common()),
        "weight_bytes": sum(entry.nbytes for entry in spec.tensors.values()),
        "kv_bytes_per_token": 2 * config.layers * config.kv_heads * config.head_dim * 4,
        "license": _license(spec),
        "digest": spec.digest,
    }


def _license(spec: ModelSpec) -> str | None:
    if spec.source.is_dir():
        return None
    value = read_gguf(spec.source).metadata.get("general.license")
    return str(value) if value is not None else None


def _print(spec: ModelSpec, as_json: bool, *, short: bool) -> None:
    facts = describe(spec)
    if as_json:
        print_json(facts)
    elif short:
        size = _megabytes(int(str(facts["weight_bytes"])))
        typer.echo(f"{spec.name}: ready, {size}, digest {spec.digest[:12]}, {spec.source}")
    else:
        rows = [(key.replace("_", " "), _shown(key, value)) for key, value in facts.items()]
        print_table(("fact", "value"), rows)


def _shown(key: str, value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{count} {name}" for name, count in value.items())
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,} ({_megabytes(value)})" if key == "weight_bytes" else f"{value:,}"
    return "not stated" if value is None else str(value)


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def _bar() -> Progress:
    """On stderr, so that stdout stays fit for programs; nothing is drawn when it is no terminal."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


@contextmanager
def _one_line_errors(as_json: bool) -> Iterator[None]:
    try:
        yield
    except ModelError as error:
        raise fail(str(error), as_json, FAILED) from error
