"""``modelless upgrade`` without a cluster: a fake in place of what joins it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modelless.common.errors import EnvironmentUnfitError
from modelless.controller.live.cluster.upgrade import Upgraded, upgrade

from .conftest import Run
from .test_cluster_commands import is_up

NEW, OLD = "0.2.0+aa.bb", "0.1.0+cc.bb"


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """How the upgrade ends: with ``replaced`` processes, or with ``error``."""
    how: dict[str, Any] = {"replaced": 3, "error": None}

    def fake(
        home: Path, asked: Any, on_stage: Callable[[str], None], *, restart: bool = False
    ) -> Upgraded:
        how.update(asked=asked, restart=restart)
        if how["replaced"]:
            on_stage("replacing the control loop")
        if how["error"]:
            raise how["error"]
        return Upgraded("http://127.0.0.1:1", NEW, (OLD, NEW), how["replaced"], 12.5)

    monkeypatch.setattr("modelless.controller.live.cluster.upgrade.upgrade", fake)
    return how


def entries(run: Run) -> list[str]:
    told = run("history", "--kind", "upgrade", "--json").document["entries"]
    return [f"{entry['subject']} {entry['reason']}" for entry in told]


def test_it_says_what_runs_and_what_ran(run: Run, ends: dict[str, Any]) -> None:
    done = run("upgrade")
    assert done.code == 0
    assert "replacing the control loop ..." in done.err
    assert f"runs {NEW}, before {OLD}: 3 gateways and workers replaced" in done.out
    assert (ends["asked"], ends["restart"]) == (None, False)
    assert entries(run) == ["modelless began", f"{NEW} done"]


def test_what_runs_it_already_is_left_alone(run: Run, ends: dict[str, Any]) -> None:
    ends["replaced"] = 0
    done = run("upgrade")
    assert done.code == 0
    assert done.out.strip() == f"http://127.0.0.1:1 runs {NEW} already"
    assert entries(run) == []


def test_programs_get_json(run: Run, ends: dict[str, Any]) -> None:
    document = run("upgrade", "--restart", "--json").document
    assert (document["release"], document["before"], document["replaced"]) == (NEW, [OLD, NEW], 3)
    assert ends["restart"]


def test_a_failure_has_its_code_and_its_entry(run: Run, ends: dict[str, Any]) -> None:
    ends["error"] = EnvironmentUnfitError("new processes do not start")
    done = run("upgrade")
    assert done.code == 7
    assert entries(run) == ["modelless began", "modelless failed"]


def test_an_interruption_says_that_it_goes_on(run: Run, ends: dict[str, Any]) -> None:
    ends["error"] = KeyboardInterrupt()
    done = run("upgrade")
    assert done.code == 130
    assert "'modelless upgrade' sees the rest through" in done.err


def test_nothing_is_up(run: Run) -> None:
    done = run("upgrade")
    assert done.code == 1
    assert "modelless up" in done.err


def test_a_cluster_of_a_release_before_upgrades_is_refused(home: Path) -> None:
    is_up(home, "http://127.0.0.1:1")
    with pytest.raises(EnvironmentUnfitError, match="'modelless down' and 'modelless up'"):
        upgrade(home, None, print)


def test_another_environment_is_refused(home: Path) -> None:
    is_up(home, "http://127.0.0.1:1")
    note = {"address": "127.0.0.1:1", "is_own": True, "settings": {}, "python": "/elsewhere"}
    (home / "run" / "deployed.json").write_text(json.dumps(note))
    with pytest.raises(EnvironmentUnfitError, match="/elsewhere/bin/modelless upgrade"):
        upgrade(home, None, print)
