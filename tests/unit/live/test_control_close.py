"""A control loop that is ended in good order leaves a whole recording."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from modelless.controller.config import parse_settings
from modelless.controller.control.messages import MemberReport
from modelless.controller.control.pools import GATEWAYS
from modelless.controller.live.control import control_loop as control
from modelless.controller.live.control.control_loop import ControlLoop
from modelless.controller.replay.tape import SUFFIX, TapeReader
from modelless.policies.views import WorkerState
from tests.unit.cli.tiny import add_measurements, add_variants


def test_what_is_recorded_is_written_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "log_to", lambda home, name: None)
    add_variants(tmp_path)
    add_measurements(tmp_path)
    folder = tmp_path / "recording"
    settings = parse_settings({"record": {"folder": str(folder)}})
    gateway = WorkerState("g", "cpu-1", 1 << 30, ())

    async def run() -> None:
        loop = ControlLoop(tmp_path, settings, None)
        await loop.close()  # nobody has reported yet: there is nothing to write
        await loop.exchange(MemberReport("g", True, gateway, pool=GATEWAYS))
        await loop.close()
        await loop.exchange(MemberReport("h", True, None))  # too late for the tape

    asyncio.run(run())
    (path,) = folder.glob(f"control-*{SUFFIX}")
    reader = TapeReader(path)
    names = [event[0] for _, event, _ in reader.items()]
    assert names == ["FactsChanged", "VersionsChanged", "MemberReported", "Tick"]
    assert reader.ending == "end"
