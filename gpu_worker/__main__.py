"""The executor's command line: `python -m gpu_worker --launch FILE` (control does), or `bench …`."""

import argparse
import gc
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import gpu_worker.postponed  # noqa: F401 - before what takes long to import
from gpu_worker.bench import measure, read_requests, serve
from gpu_worker.config import EngineConfig
from gpu_worker.engine import Engine
from gpu_worker.service import ExecutorService
from stages.runtime.models.store import open_model
from stages.runtime.stage import main as serve_stage


def parser() -> argparse.ArgumentParser:
    """All subcommands and their options."""
    root = argparse.ArgumentParser(prog="python -m gpu_worker", description=__doc__)
    root.add_argument("--launch", type=Path, help="serve the bus as this launch file says")
    commands = root.add_subparsers(dest="command")
    bench = commands.add_parser(
        "bench",
        help="run requests in process and print their figures as one JSON line",
        description="Runs a file of requests in process. Without --requests, reads commands from "
        'stdin, one JSON object a line ({"requests": FILE, "concurrency": N}), after a first '
        "line that says the engine is ready.",
    )
    bench.add_argument("--source", default="smollm2-135m-instruct", help="model to load")
    bench.add_argument("--requests", type=Path, help='JSON: [{"prompt_ids": [], "max_tokens": n}]')
    bench.add_argument("--concurrency", type=int, default=16, help="requests in flight")
    bench.add_argument("--threads", type=int, default=2, help="torch threads")
    bench.add_argument("--kv-tokens", type=int, default=65536, help="KV cache, tokens")
    bench.add_argument("--max-batch", type=int, default=16, help="requests in one batch")
    bench.add_argument("--weights", choices=("auto", "fp32", "fp16"), default="auto")
    bench.add_argument("--stop-at-eos", action="store_true", help="end at end tokens")
    return root


def bench(options: argparse.Namespace) -> None:
    """Load, warm up, then run one file or answer commands from stdin."""
    begin = time.perf_counter()
    config = EngineConfig(
        threads=options.threads,
        kv_tokens=options.kv_tokens,
        max_batch=options.max_batch,
        weights=options.weights,
    )
    imported_cpu_s = time.process_time()
    engine = Engine(open_model(options.source), config)
    loaded_cpu_s = time.process_time()
    engine.warm_up()
    warm_cpu_s = time.process_time()
    gc.enable()
    ready = {
        "ready": True,
        "load_s": round(time.perf_counter() - begin, 3),
        "cpu_s": {
            "imports": round(imported_cpu_s, 3),
            "load": round(loaded_cpu_s - imported_cpu_s, 3),
            "warm_up": round(warm_cpu_s - loaded_cpu_s, 3),
        },
        "fingerprint": str(engine.fingerprint),
        "memory": engine.memory.lines(),
    }
    ignore_eos = not options.stop_at_eos
    if options.requests is not None:
        requests = read_requests(options.requests, ignore_eos=ignore_eos)
        summary = measure(engine, requests, options.concurrency).summary()
        print(json.dumps(summary | {"load_s": ready["load_s"], "scheme": engine.scheme}))
        return
    print(json.dumps(ready), flush=True)
    defaults = {"concurrency": options.concurrency, "ignore_eos": ignore_eos}
    for answer in serve(engine, defaults):
        print(answer, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; errors of the user's making are one line on stderr and exit code 2."""
    root = parser()
    options = root.parse_args(arguments)
    if options.launch is not None:
        serve_stage("gpu_worker", ExecutorService)
        return 0
    if options.command is None:
        root.error("give --launch FILE or the command bench")
    try:
        bench(options)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
