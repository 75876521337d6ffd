"""``modelless doctor``: a fit home, and each thing that would go wrong."""

from __future__ import annotations

import resource
import shutil
import socket
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from modelless.controller.config import parse_settings
from modelless.controller.usecases import cluster, doctor

from .conftest import Run


def settings_file(folder: Path, text: str = "") -> Path:
    """Settings of a port that is free, and more lines."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = folder / "settings.yaml"
    path.write_text(f"http: {{port: {port}}}\n{text}")
    return path


def checks_of(run: Run, folder: Path, text: str = "") -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and the checks by name."""
    done = run("doctor", "--config", settings_file(folder, text), "--json")
    return done.code, {check["name"]: check for check in done.document["checks"]}


def mark_profiles(home: Path, *, trusted: bool) -> None:
    with closing(sqlite3.connect(home / "store.db")) as store:
        store.execute("UPDATE measurements SET trusted = ?", (trusted,))
        store.commit()


def test_a_profiled_home_is_fit(run: Run, profiled: Path, tmp_path: Path) -> None:
    mark_profiles(profiled, trusted=True)
    code, checks = checks_of(run, tmp_path)
    assert not {name: c["mend"] for name, c in checks.items() if c["mend"]}
    assert code == 0
    assert checks["variants"]["found"] == "pixels can be served"
    shown = run("doctor", "--config", settings_file(tmp_path))
    assert shown.code == 0
    assert "BAD" not in shown.out


def test_a_home_that_is_not_there_is_not_made(run: Run, home: Path, tmp_path: Path) -> None:
    code, _ = checks_of(run, tmp_path)
    assert code == 0
    assert not home.exists()


def test_what_is_not_profiled_is_told(run: Run, registered: Path, tmp_path: Path) -> None:
    code, checks = checks_of(run, tmp_path)
    assert code == 1
    assert "modelless profile" in checks["variants"]["mend"]


def test_a_profile_from_a_busy_machine_is_told(run: Run, profiled: Path, tmp_path: Path) -> None:
    mark_profiles(profiled, trusted=False)
    code, checks = checks_of(run, tmp_path)
    assert code == 1
    assert checks["profiles"]["found"].startswith("0 of ")
    assert "modelless profile pixels --device-class cpu-1" in checks["profiles"]["mend"]


def test_a_damaged_store_is_told(run: Run, profiled: Path, tmp_path: Path) -> None:
    for name in ("store.db-wal", "store.db-shm"):
        (profiled / name).unlink(missing_ok=True)
    store = profiled / "store.db"
    half = store.stat().st_size // 2
    with store.open("r+b") as file:
        file.seek(half)
        file.write(b"\xff" * half)
    code, checks = checks_of(run, tmp_path)
    assert code == 1
    assert checks["store"]["mend"]


def test_a_taken_port_is_told(run: Run, profiled: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        path = tmp_path / "taken.yaml"
        path.write_text(f"http: {{port: {taken.getsockname()[1]}}}")
        done = run("doctor", "--config", path)
    assert done.code == 1
    assert "cannot be listened on" in done.out


def test_bad_settings_are_told_beside_all_else(run: Run, profiled: Path, tmp_path: Path) -> None:
    code, checks = checks_of(run, tmp_path, "policies: {selection: no-such-policy}\n")
    assert code == 1
    assert "no-such-policy" in checks["settings"]["mend"]
    assert checks["store"]["is_well"]


def test_a_home_open_to_others_and_a_clock_behind_are_told(
    run: Run, profiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiled.chmod(0o755)
    now_s = time.time()
    monkeypatch.setattr(doctor.time, "time", lambda: now_s - 7200.0)
    _, checks = checks_of(run, tmp_path)
    assert "chmod 700" in checks["home"]["mend"]
    assert "in the future" in checks["clock"]["mend"]


def test_a_full_disk_is_told(
    run: Run, profiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil._ntuple_diskusage(100 << 30, 98 << 30, 2 << 30)  # type: ignore[attr-defined]
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: full)
    _, checks = checks_of(run, tmp_path)
    assert "make room" in checks["disk"]["mend"]


def test_a_low_limit_of_open_files_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    told = cluster.lacking_files(parse_settings({}))
    assert "ulimit -Hn 4608" in told
    assert "\n" not in told
    assert not cluster.lacking_files(parse_settings({"limits": {"max_connections": 1000}}))
