"""The control loop's parts, without what goes on behind them, and homes with profiled variants."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelless.controller.config import Settings
from modelless.controller.live.control import control_loop
from modelless.controller.live.control.version_store import VersionStore
from modelless.controller.live.knowledge import Knowledge, read_knowledge
from tests.unit.cli.tiny import add_measurements, add_variants


@pytest.fixture(autouse=True)
def _nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a version changed is looked up when a test says so, and not every 0.2 s."""
    monkeypatch.setattr(VersionStore, "start", lambda store: None)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own for a control loop, which writes no log files there."""
    monkeypatch.setattr(control_loop, "log_to", lambda home, name: None)
    add_variants(tmp_path)
    add_measurements(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def knowledge(tmp_path_factory: pytest.TempPathFactory) -> Knowledge:
    """What a gateway knows of a home; the tests of a module only read it."""
    home = tmp_path_factory.mktemp("home")
    add_variants(home)
    add_measurements(home)
    return read_knowledge(home, Settings())
