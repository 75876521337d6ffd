"""What the last run served most lately, kept on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelless.controller.live.control.last_run import (
    HALF_LIFE_S,
    REGAINED_S,
    WRITE_EVERY_S,
    LastRun,
    read_last_run,
)


def test_the_most_served_comes_first(tmp_path: Path) -> None:
    LastRun(tmp_path).count({"t/a/x@1": 3, "t/b/x@1": 9}, 0.0)
    assert read_last_run(tmp_path) == ("t/b/x@1", "t/a/x@1")


def test_the_past_counts_for_less_and_less(tmp_path: Path) -> None:
    run = LastRun(tmp_path)
    run.count({"t/a/x@1": 10}, 0.0)
    run.count({"t/b/x@1": 6}, HALF_LIFE_S)
    assert read_last_run(tmp_path) == ("t/b/x@1", "t/a/x@1")


def test_it_is_written_now_and_then(tmp_path: Path) -> None:
    run = LastRun(tmp_path)
    run.count({"t/a/x@1": 1}, 0.0)
    run.count({"t/b/x@1": 5}, WRITE_EVERY_S / 2)
    assert read_last_run(tmp_path) == ("t/a/x@1",)
    run.count({}, WRITE_EVERY_S)
    assert read_last_run(tmp_path) == ("t/b/x@1", "t/a/x@1")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '{"served": []}', '{"served": {"a": "x", "b": NaN, "c": -1}}']
)
def test_a_file_that_says_nothing_preloads_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "last-run.json").write_text(text)
    assert read_last_run(tmp_path) == ()


def test_a_home_without_one_preloads_nothing(tmp_path: Path) -> None:
    assert read_last_run(tmp_path) == ()


def test_what_was_loaded_comes_back_the_most_served_first(tmp_path: Path) -> None:
    run = LastRun(tmp_path)
    run.hold({"t/a/x@1", "t/b/x@1", "t/c/x@1"}, 0.0)
    run.count({"t/b/x@1": 3, "t/gone/x@1": 9}, 0.0)
    assert read_last_run(tmp_path) == ("t/b/x@1", "t/a/x@1", "t/c/x@1")


def test_what_left_since_is_not_loaded_again(tmp_path: Path) -> None:
    run = LastRun(tmp_path)
    run.hold({"t/a/x@1", "t/b/x@1"}, 0.0)
    run.count({}, 0.0)
    run.hold({"t/b/x@1"}, 1.0)
    run.count({}, WRITE_EVERY_S)
    assert read_last_run(tmp_path) == ("t/b/x@1",)


def test_a_cluster_that_goes_down_does_not_forget(tmp_path: Path) -> None:
    run = LastRun(tmp_path)
    run.hold({"t/a/x@1"}, 0.0)
    run.count({}, 0.0)
    run.hold((), 1.0)
    run.count({"t/a/x@1": 1}, WRITE_EVERY_S)
    assert read_last_run(tmp_path) == ("t/a/x@1",)


def test_a_crash_in_the_midst_of_loading_again_loses_nothing(tmp_path: Path) -> None:
    first = LastRun(tmp_path)
    first.hold({"t/a/x@1", "t/b/x@1"}, 0.0)
    first.count({"t/a/x@1": 5}, 0.0)
    second = LastRun(tmp_path)
    second.hold({"t/b/x@1"}, 0.0)
    second.count({}, 0.0)
    assert read_last_run(tmp_path) == ("t/a/x@1", "t/b/x@1")
    second.hold({"t/b/x@1"}, REGAINED_S)
    second.count({}, REGAINED_S)
    assert read_last_run(tmp_path) == ("t/b/x@1",)
