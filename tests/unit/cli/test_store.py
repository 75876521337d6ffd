"""``modelless store``: from one database into another, into a file and back."""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from modelless.controller.history.feedback import write_feedback
from modelless.controller.live.cluster.running import UpState
from modelless.controller.live.control.pins import read_pins, write_pins
from modelless.variants.registry.registry import open_registry
from modelless.variants.store import copying

from .conftest import Run


def variants(home: Path) -> set[str]:
    return set(open_registry(home).catalog().versions)


def test_a_backup_brings_everything_back(run: Run, profiled: Path, tmp_path: Path) -> None:
    made = run("store", "backup", "it.zip", "--json")
    assert made.code == 0, made.err
    rows = made.document["rows"]
    assert rows["variants"] == len(variants(profiled)) > 0
    assert rows["measurements"] > 0
    other = tmp_path / "other"
    assert run("--home", other, "store", "restore", "it.zip", "--json").document["rows"] == rows
    assert variants(other) == variants(profiled)
    selects = [
        run("--home", home, "select", "--task", "pixels", "--json") for home in (profiled, other)
    ]
    assert selects[0].out == selects[1].out
    assert json.loads((other / "audit.jsonl").read_text())["act"] == "store-restore"


def test_a_backup_has_the_state_of_operators(run: Run, profiled: Path, tmp_path: Path) -> None:
    assert run("key", "create", "--tenant", "ann", "--scope", "infer").code == 0
    write_pins(profiled, ["pixels"])
    write_feedback(profiled, {})
    (profiled / "config-of-mine.yaml").write_text("mine")
    run("store", "backup", "it.zip")
    other = tmp_path / "other"
    other.mkdir()
    assert run("--home", other, "store", "restore", "it.zip").code == 0
    for name in ("keys.json", "pins.json", "feedback.json"):
        assert (other / name).read_bytes() == (profiled / name).read_bytes()
        assert (other / name).stat().st_mode & 0o777 == 0o600
    assert not (other / "config-of-mine.yaml").exists()
    (profiled / "store.db").unlink()
    refused = run("store", "restore", "it.zip")
    assert refused.code == 2
    assert "keys.json" in refused.err
    assert not variants(profiled)
    write_pins(profiled, [])
    assert run("store", "restore", "it.zip", "--replace").code == 0
    assert read_pins(profiled) == ("pixels",)


def test_files_of_a_running_cluster_stay(run: Run, profiled: Path, tmp_path: Path) -> None:
    write_pins(profiled, ["pixels"])
    run("store", "backup", "it.zip")
    write_pins(profiled, [])
    state = UpState(os.getpid(), "http://127.0.0.1:1", 0.0)
    (profiled / "run").mkdir(exist_ok=True)
    (profiled / "run" / "up.json").write_text(json.dumps(asdict(state)))
    restored = run("store", "restore", "it.zip", "--replace")
    assert restored.code == 0
    assert "modelless down" in restored.err
    assert read_pins(profiled) == ()


def test_what_is_there_is_replaced_only_when_asked(run: Run, registered: Path) -> None:
    run("store", "backup", "it.zip")
    refused = run("store", "restore", "it.zip")
    assert refused.code == 2
    assert "--replace" in refused.err
    assert run("store", "restore", "it.zip", "--replace").code == 0
    assert len(variants(registered)) == 3


def test_it_says_whether_the_rows_are_back_where_something_cannot_be_written(
    run: Run, registered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pins(registered, [])
    run("store", "backup", "it.zip")
    other = tmp_path / "other"
    with monkeypatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(tmp_path / "none"))
        ran = run("--home", other, "store", "restore", "it.zip")
    assert ran.code == 6
    assert "Nothing was restored from" in ran.err
    assert not variants(other)

    def fail(path: Path, data: bytes, *, mode: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(copying, "write_whole", fail)
    ran = run("--home", other, "store", "restore", "it.zip")
    assert ran.code == 6
    assert f"The rows are back, but {other}/pins.json cannot be written" in ran.err
    assert len(variants(other)) == 3


def test_a_home_without_a_store_has_no_backup(
    run: Run, registered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = run("store", "backup", "it.zip", "--home", tmp_path / "nothere")
    assert refused.code == 2
    assert "home: got" in refused.err
    assert "a home with a store" in refused.err
    assert not (tmp_path / "nothere").exists()
    assert not (tmp_path / "it.zip").exists()
    monkeypatch.setenv("MODELLESS_STORE_URL", f"sqlite:///{registered}/store.db")
    (tmp_path / "other").mkdir()
    shutil.copytree(registered / "artifacts", tmp_path / "other" / "artifacts")
    made = run("store", "backup", "it.zip", "--home", tmp_path / "other", "--json")
    assert made.code == 0, made.err
    assert made.document["rows"]["variants"] == 3


def test_a_store_that_is_not_there_does_not_move(run: Run, tmp_path: Path) -> None:
    refused = run("store", "migrate", f"sqlite:///{tmp_path}/none.db", "sqlite:///new.db")
    assert refused.code == 2
    assert "SOURCE: got" in refused.err
    assert "a store that is there" in refused.err
    assert not list(tmp_path.glob("*.db"))


@pytest.mark.parametrize("command", ["backup", "restore"])
@pytest.mark.parametrize(
    "url",
    ["sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory&uri=true", "sqlite:///no.db"],
)
def test_a_store_that_does_not_stay_is_refused(
    run: Run, registered: Path, tmp_path: Path, command: str, url: str
) -> None:
    file = tmp_path / "it.zip"
    if command == "restore":
        run("store", "backup", file)
    ran = run("--store", url, "store", command, file)
    if (command, url) == ("restore", "sqlite:///no.db"):  # a new one
        assert ran.code == 0, ran.err
        return
    assert ran.code == 2
    assert f"store URL: got '{url}'; allowed: a store that " in ran.err
    assert file.exists() == (command == "restore")
    assert not list(tmp_path.glob("*.db"))


@pytest.mark.parametrize("place", [0, 1])
def test_a_store_does_not_move_from_or_into_memory(run: Run, registered: Path, place: int) -> None:
    urls = [f"sqlite:///{registered}/store.db"]
    urls.insert(place, "sqlite://")
    refused = run("store", "migrate", *urls)
    assert refused.code == 2
    assert f"{('SOURCE', 'TARGET')[place]}: got 'sqlite://'; allowed: a store that " in refused.err


def test_a_store_moves(run: Run, registered: Path, tmp_path: Path) -> None:
    source, target = f"sqlite:///{registered}/store.db", f"sqlite:///{tmp_path}/new.db"
    moved = run("store", "migrate", source, target)
    assert moved.code == 0, moved.err
    assert "compared" in moved.err
    shown = [run("--store", url, "variants", "--json").out for url in (source, target)]
    assert shown[0] == shown[1]
    again = run("store", "migrate", source, target)
    assert again.code == 2
    assert "has some; name another" in again.err
    assert "--replace" not in again.err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("migrate", "sqlite:///a.db", "sqlite:///a.db"), 2, "another store than SOURCE"),
        (("migrate", "mysql://h/d", "sqlite:///a.db"), 2, "store URL"),
        (("restore", "none.zip"), 2, "a file that is there"),
        (("backup", "no/such/folder.zip"), 6, "cannot be written"),
    ],
)
def test_refusals(run: Run, registered: Path, words: tuple[str, ...], code: int, says: str) -> None:
    refused = run("store", *words)
    assert says in refused.err
    assert refused.code == code
