"""Any row of the schema becomes finite numbers, whatever its names and sizes."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from modelless.profiler.cost_model.unmeasured.features import (
    LEVELS,
    NameCodes,
    Points,
    normalise_precision,
)
from modelless.profiler.measure.table import TableRow

from .worlds import BLANK_SIZES, encoded, row, varied

HOSTILE_NAMES = [
    "",
    " ",
    "[red]bold[/red]",
    "[/]",
    "ネット١٢٣-४५६-²",
    "\u202egpj.exe",
    "name\nwith\tspace",
    "{device}=%s",
    "x" * 100_000,
    "-".join(str(number) for number in range(1000)),
    pytest.param(
        "net-" + "9" * 400,
        id="400-digits",
    ),
]


def assert_finite(points: Points) -> None:
    for one in fields(points):
        assert np.isfinite(getattr(points, one.name)).all(), one.name


@pytest.mark.parametrize("name", HOSTILE_NAMES)
@pytest.mark.parametrize("columns", [("model",), ("model", "family", "device", "engine", "source")])
def test_names_are_only_names(columns: tuple[str, ...], name: str) -> None:
    assert_finite(encoded([row(), row(**dict.fromkeys(columns, name))]))


@pytest.mark.parametrize(
    "sizes",
    [
        BLANK_SIZES,
        dict.fromkeys(("params_m", "gmacs", "mactivations_m", "layers"), 0),
        {"gmacs": 0.0},
        {"gmacs": 1e-12},
        {"gmacs": 1e12, "params_m": 1e9},
        {"batch": 10**6, "latency_ms": 1e-3},
        {"device_kind": ""},
        {"device_kind": "quantum"},
        {"concurrency": 10**5},
        {"resolution_px": 1},
    ],
)
def test_sizes_missing_or_strange_are_finite_too(sizes: dict[str, Any]) -> None:
    points = encoded([row(**sizes)])
    assert_finite(points)
    assert points.shares.min() >= 0.0
    assert points.shares.sum() <= 1.0 + 1e-9


def test_sizes_near_the_largest_number_are_finite() -> None:
    assert_finite(encoded([row(params_m=1.7e308, mactivations_m=1.7e308)]))


def test_blank_is_the_middle_of_each_feature() -> None:
    (features,) = encoded([row(**BLANK_SIZES)]).features
    assert features.tolist() == [0.0] * 8


def test_latencies_are_not_looked_at() -> None:
    rows = varied()
    changed = [
        replace(one, latency_ms=1.0, latency_p99_ms=7.0, throughput_per_s=3.0) for one in rows
    ]
    before, after = encoded(rows), encoded(changed)
    for one in fields(before):
        np.testing.assert_array_equal(getattr(before, one.name), getattr(after, one.name))


def test_features_do_not_depend_on_the_rows_beside() -> None:
    rows = varied()
    together = encoded(rows)
    for number, one in enumerate(rows):
        alone = encoded([one])
        for name in ("features", "shares", "roofline_log", "name_numbers"):
            np.testing.assert_array_equal(getattr(alone, name)[0], getattr(together, name)[number])


def test_no_rows_are_no_points() -> None:
    points = encoded([])
    assert len(points) == 0
    assert points.features.shape == (0, 8)
    assert points.levels.shape == (0, len(LEVELS))


def same(left: TableRow, right: TableRow, *names: str) -> list[bool]:
    points = encoded([left, right])
    return [bool(np.equal(*points.level(name))) for name in names]


def test_a_device_of_another_source_is_another() -> None:
    levels = ("source", "device", "setting", "engine", "kind", "all")
    assert same(row(), row(source="other"), *levels) == [False] * 4 + [True] * 2


def test_precisions_of_several_names_are_one() -> None:
    assert same(row(precision="amp"), row(precision="FP16"), "precision") == [True]
    assert same(row(precision="fp16"), row(precision="int8"), "precision") == [False]
    assert [normalise_precision(name) for name in ("Float", "half", "w8a8", "INT8", "")] == [
        "fp32", "fp16", "int8", "int8", "",
    ]  # fmt: skip


def test_names_that_look_like_parts_of_others_stay_apart() -> None:
    """A device called like an engine, a family called like a model: codes are of whole keys."""
    points = encoded([row(device="x", engine="y"), row(device="y", engine="x")])
    assert points.level("setting")[0] != points.level("setting")[1]
    vocabulary = NameCodes()
    assert vocabulary.code(("device", "a")) != vocabulary.code(("engine", "a"))
    assert vocabulary.code(("device", "a")) == 0


@pytest.mark.parametrize("rows", [[], [2], [5, 1, 1]])
def test_some_points_are_taken_whole(rows: list[int]) -> None:
    points = encoded(varied(), item_effect_seed=1)
    some = points.select(rows)
    for one in fields(points):
        np.testing.assert_array_equal(getattr(some, one.name), getattr(points, one.name)[rows])
