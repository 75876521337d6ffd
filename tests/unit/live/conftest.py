"""The control loop's parts, without what goes on behind them."""

from __future__ import annotations

import pytest

from modelless.controller.live.control.version_keeper import VersionKeeper


@pytest.fixture(autouse=True)
def _nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a version changed is looked up when a test says so, and not every 0.2 s."""
    monkeypatch.setattr(VersionKeeper, "start", lambda keeper: None)
