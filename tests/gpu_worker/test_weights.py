"""Damaged or incomplete weights are named, not loaded."""

from dataclasses import replace
from pathlib import Path

import pytest

from gpu_worker.model.reader import WeightError, WeightReader
from stages.runtime.models.spec import ModelSpec

NORM = "model.norm.weight"


def test_missing_misshapen_and_cut_weights(tiny: ModelSpec, tmp_path: Path) -> None:
    with pytest.raises(WeightError, match="nothing is missing"):
        WeightReader(tiny).read("nothing", 4)
    with pytest.raises(WeightError, match=r"shape \(64,\), not \(65,\)"):
        WeightReader(tiny).read(NORM, 65)
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(b"\0" * 100)
    entry = replace(tiny.tensors[NORM], file=cut, offset=0)
    broken = replace(tiny, tensors={NORM: entry})
    with pytest.raises(WeightError, match="cut short"):
        WeightReader(broken).read(NORM, 64)
    unknown = replace(tiny, tensors={NORM: replace(entry, encoding="Q2_K")})
    with pytest.raises(WeightError, match="Q2_K is not supported"):
        WeightReader(unknown).read(NORM, 64)
