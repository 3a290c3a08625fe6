"""Deadlines that a slow, loaded machine keeps too."""

import pytest

from stages.metering import service


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "SNAPSHOT_DEADLINE_S", 30.0)
    monkeypatch.setattr(service, "DRAIN_S", 30.0)
