"""The control loop's parts, without what goes on behind them."""

from __future__ import annotations

import pytest

from modelless.controller.live.control.version_store import VersionStore


@pytest.fixture(autouse=True)
def _nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a version changed is looked up when a test says so, and not every 0.2 s."""
    monkeypatch.setattr(VersionStore, "start", lambda store: None)
