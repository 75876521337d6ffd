"""The store of a running cluster: backed up under load, on PostgreSQL, and for it alone.

The cluster on PostgreSQL has advisory policies as well.
"""

from __future__ import annotations

import json
import shutil
import urllib.request
from pathlib import Path

import pytest

from .clients import Clients, ask, wait_until
from .running import Running, cluster, modelless

TIGHT = ("--task", "fashion-mnist", "--latency-ms", "50")
NAME = "fashion-mnist/cnn-s/fp32-28"


def variants(home: Path) -> list[dict[str, object]]:
    """All of the registry, less what a running cluster has observed itself (its feedback)."""
    told = json.loads(modelless(home, "variants", "--all-versions", "--json").stdout)
    return [{**row, "feedback": None} for row in told["variants"]]


def test_a_backup_under_load_restores_to_an_identical_registry(
    shared: Running, tmp_path: Path
) -> None:
    file = tmp_path / "backup.zip"
    with Clients(shared) as clients:
        made = modelless(shared.home, "store", "backup", str(file))
    assert made.returncode == 0, made.stderr
    assert set(clients.outcomes) == {"200"}
    home = tmp_path / "restored"
    restored = modelless(home, "store", "restore", str(file))
    assert restored.returncode == 0, restored.stderr
    assert variants(home) == variants(shared.home)
    answers = [modelless(each, "select", *TIGHT, "--json") for each in (home, shared.home)]
    assert [each.returncode for each in answers] == [0, 0], answers[0].stderr
    assert answers[0].stdout == answers[1].stdout


def test_a_second_control_plane_hears_who_has_the_store(shared: Running, tmp_path: Path) -> None:
    home = tmp_path / "second"
    second = modelless(home, "--store", f"sqlite:///{shared.home}/store.db", "up")
    assert second.returncode == 7
    assert f"has a control plane already: home {shared.home}, user " in second.stderr
    assert ", since 20" in second.stderr


def test_a_cluster_on_postgresql(
    live_home: Path, tmp_path: Path, postgresql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = shutil.copytree(live_home, tmp_path / "home", ignore=shutil.ignore_patterns("run"))
    moved = modelless(home, "store", "migrate", f"sqlite:///{home}/store.db", postgresql)
    assert moved.returncode == 0, moved.stderr
    before = variants(home)
    (home / "store.db").unlink()
    monkeypatch.setenv("MODELLESS_STORE_URL", postgresql)
    assert variants(home) == before
    beside = "{selection: most-accurate-feasible, scaling: fixed}"
    config = f"policies: {{scaling: on-demand, advisory: {beside}}}\n"
    with cluster(home, config=config, marker="postgresql") as up:
        ask(up, NAME)

        def is_noted() -> bool:
            told = modelless(home, "history", "--kind", "loaded", "--json").stdout
            return f"{NAME}@1" in told

        wait_until(is_noted, 60.0)

        def is_advised() -> bool:
            told = {each["seam"]: each["asked"] for each in up.get("/modelless/status")["advice"]}
            return set(told) == {"selection", "scaling"}

        wait_until(is_advised, 30.0)
        with urllib.request.urlopen(f"{up.url}/metrics", timeout=10) as reply:
            assert b'modelless_advice_total{agrees="no",seam="selection"}' in reply.read()
        made = modelless(home, "store", "backup", str(tmp_path / "backup.zip"))
        assert made.returncode == 0, made.stderr
    restored = tmp_path / "restored"
    monkeypatch.delenv("MODELLESS_STORE_URL")
    assert modelless(restored, "store", "restore", str(tmp_path / "backup.zip")).returncode == 0
    assert variants(restored) == before
