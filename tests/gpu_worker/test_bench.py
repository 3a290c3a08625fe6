"""The in-process baseline: one JSON line a run, several runs without loading again."""

import json
import subprocess
import sys
from pathlib import Path

from gpu_worker.bench import measure, read_requests
from gpu_worker.engine import Engine
from stages.runtime.models.spec import ModelSpec


def write(path: Path, count: int) -> Path:
    path.write_text(
        json.dumps([{"prompt_ids": list(range(5 + i)), "max_tokens": 4} for i in range(count)])
    )
    return path


def test_figures_of_a_run(engine: Engine, tmp_path: Path) -> None:
    requests = read_requests(write(tmp_path / "r.json", 7))
    summary = measure(engine, requests, concurrency=3).summary()
    assert (summary["requests"], summary["output_tokens"]) == (7, 28)
    assert len(summary["ttft_ms"]) == 7
    assert summary["output_tok_s"] > 0
    assert engine.idle


def test_commands_on_stdin_share_one_engine(tiny: ModelSpec, tmp_path: Path) -> None:
    requests = str(write(tmp_path / "r.json", 4))
    commands = [{"requests": requests, "concurrency": 2}, {"requests": requests, "limit": 1}, {}]
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "gpu_worker",
            "bench",
            "--source",
            str(tiny.source),
            "--kv-tokens",
            "2048",
        ],
        input="".join(json.dumps(command) + "\n" for command in commands),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    ready, first, second, third = map(json.loads, result.stdout.splitlines())
    assert ready["ready"] is True
    assert (first["requests"], second["requests"]) == (4, 1)
    assert "error" in third


def test_a_missing_model_is_one_line_and_exit_code_2() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "gpu_worker", "bench", "--source", "nowhere"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
