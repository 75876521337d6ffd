"""``modelless profile report``: what it writes, what it prints, and how it ends badly."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from modelless.profiler.measure.records import Records
from modelless.variants.registry.registry import open_registry

from .conftest import Run
from .tiny import measurement


def test_a_page_its_data_and_its_pictures_are_written(
    run: Run, profiled: Path, tmp_path: Path
) -> None:
    ran = run("profile", "report")
    assert (ran.code, ran.out) == (0, "")
    folder = tmp_path / "profile-report"
    assert "report: profile-report/report.html" in ran.err
    assert "drawing, pictures 6/6" in ran.err
    assert "pixels" in (folder / "report.html").read_text(encoding="utf-8")
    assert {path.name for path in folder.iterdir()} == {
        *("report.html", "report.json", "predicted-measured.png", "prediction-errors.png"),
        *("throughput-pixels-cpu-1.png", "latency-pixels-cpu-1.png"),
        *("frontier-latency-pixels.png", "frontier-cost-pixels.png"),
    }
    document = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert document == run("profile", "report", "--json").document


def test_writing_that_fails_leaves_the_report_that_was_there(
    run: Run, profiled: Path, tmp_path: Path, full_disk: Callable[[], None]
) -> None:
    data = tmp_path / "profile-report" / "report.json"
    data.parent.mkdir()
    data.write_text("before", encoding="utf-8")
    full_disk()
    ran = run("profile", "report")
    assert ran.code == 2
    assert "No space left" in ran.err
    assert data.read_text(encoding="utf-8") == "before"
    assert list(data.parent.iterdir()) == [data]


def test_json_alone_writes_nothing(run: Run, profiled: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*.html"))
    found = run("profile", "report", "pixels/mean/small", "--json").document
    assert sorted(tmp_path.rglob("*.html")) == before == []
    assert found["schema"] == "modelless-profile-report/1"
    assert found["points"] == 4
    (task,) = found["tasks"]
    (curve,) = task["throughput"][0]["curves"]
    assert (curve["variant"], curve["dominated_by"]) == ("pixels/mean/small@1", None)
    assert [point["latency_ms"] for point in curve["points"]] == [5.0, 10.0, 20.0, 40.0]


def test_device_classes_can_be_picked(run: Run, profiled: Path) -> None:
    with closing(open_registry(profiled)) as registry:
        elsewhere = measurement("pixels/mean/small@1", 1, 1.0, device_class="gpu", fingerprint="x")
        Records(registry.store).add(elsewhere)
    every = run("profile", "report", "--json").document
    assert [device["name"] for device in every["devices"]] == ["cpu-1", "gpu"]
    one = run("profile", "report", "--json", "--device-class", "gpu").document
    assert [device["name"] for device in one["devices"]] == ["gpu"]
    assert one["points"] == 1


def test_a_task_called_report_is_profiled_after_two_dashes(run: Run, profiled: Path) -> None:
    ran = run("profile", "--", "report")
    assert ran.code == 3
    assert "No task is called 'report'" in ran.err
    assert run("profile", "--json", "report").code == 3  # only right after 'profile' is it a word
    assert run("profile", "pixels", "--json").document["measured"] == 0  # and this is as ever


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["pixel"], 3, "Did you mean pixels"),
        (["pixels/mean/smal"], 3, "small"),
        (["--device-class", "cpu-11"], 3, "Did you mean cpu-1"),
        (["--device-class", ","], 2, "device-class: got"),
        (["--output", "file"], 2, "a folder that can be written"),
        (["--output", "file/below"], 2, "a folder that can be written"),
        (["--nonsense"], 2, "modelless profile report --help"),
    ],
)
def test_what_is_wrong_is_said(
    run: Run, profiled: Path, tmp_path: Path, words: list[str], code: int, said: str
) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    ran = run("profile", "report", *words)
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err
    assert ran.err.count("\n") == 1


def test_without_profiles_the_next_step_is_told(run: Run, registered: Path) -> None:
    ran = run("profile", "report", "--json")
    assert ran.code == 3
    assert "run 'modelless profile'" in ran.document["error"]


def test_with_nothing_registered_there_is_nothing_to_show(run: Run) -> None:
    assert run("profile", "report").code == 3


def test_without_matplotlib_the_data_can_be_had_still(
    run: Run, profiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ran = run("profile", "report")
    assert ran.code == 7
    assert not (tmp_path / "profile-report").exists()
    assert "pip install 'modelless[report]'" in ran.err
    assert run("profile", "report", "--json").code == 0
