"""Waiting for downloads ends when nothing arrives any more, and only then."""

import fcntl
import os
import sys
from pathlib import Path

import pytest

from stages.runtime.models import builtin
from stages.runtime.models.errors import ModelError
from stages.runtime.models.patience import STALL_S, Patience
from stages.runtime.models.pull import _locked


def test_patience_lasts_while_bytes_arrive(tmp_path: Path) -> None:
    now = [0.0]
    patience = Patience(tmp_path, clock=lambda: now[0])
    for number in range(5):
        now[0] += STALL_S
        (tmp_path / f"{number}").write_bytes(b"x")
        assert not patience.is_over()
    now[0] += STALL_S
    assert not patience.is_over()
    now[0] += 1
    assert patience.is_over()


def test_a_pip_that_hangs_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtin, "_LOOK_S", 0.05)
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(ModelError, match="pip has received nothing for 10 minutes"):
        builtin._run(command, dict(os.environ), Patience(tmp_path, limit_s=0))


def test_a_pull_that_hangs_elsewhere_is_not_waited_for_without_end(tmp_path: Path) -> None:
    lock = tmp_path / "model.lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with (
            pytest.raises(ModelError, match=r"fetched nothing for 10 minutes; .*model\.lock"),
            _locked(lock, Patience(tmp_path, limit_s=0)),
        ):
            pass
    with _locked(lock, Patience(tmp_path)):
        pass
