"""The baselines are what they are called, are at their best, and learn what modelless learns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from modelless.profiler.cost_model.evaluation.baselines import BASELINES, Baselines
from modelless.profiler.cost_model.unmeasured.prior import shipped_prior
from modelless.profiler.measure.table import TableRow

from .worlds import (
    BLANK_SIZES,
    FloatArray,
    drawn,
    latencies_ms,
    multiples,
    parted,
    row,
    varied,
)

ALL = sorted(BASELINES)


def asked(
    name: str,
    training: Sequence[TableRow],
    wanted: Sequence[TableRow],
    shots: int,
    seed: int = 0,
) -> tuple[FloatArray, FloatArray]:
    """(predicted milliseconds, true ones) of the rows that were not given."""
    given, rest = drawn(shots, len(wanted), seed)
    true_ms = latencies_ms(wanted)
    methods = Baselines(training, wanted, shipped_prior().roofline)
    return methods.predict(name, given, true_ms[given], rest), true_ms[rest]


def mape_percent(predicted_ms: FloatArray, true_ms: FloatArray) -> float:
    return float(100.0 * np.abs(predicted_ms / true_ms - 1.0).mean())


def test_the_six_are_there() -> None:
    assert ALL == [
        "boosted-trees",
        "constant-factor",
        "log-linear",
        "log-linear-alone",
        "proxy-neighbours",
        "proxy-ridge",
    ]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("shots", [0, 1, 10])
def test_only_shots_are_looked_at(name: str, shots: int) -> None:
    training, wanted = parted(varied(devices=4, models=30), "d1")
    given, rest = drawn(shots, len(wanted))
    changed = list(wanted)
    for number in rest.tolist():
        changed[number] = replace(wanted[number], latency_ms=1.0 + number, accuracy=2.0)
    seen_ms = latencies_ms(wanted)[given]
    first, second = (
        Baselines(training, rows, shipped_prior().roofline).predict(name, given, seen_ms, rest)
        for rows in (wanted, changed)
    )
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("sizes", [(0, 1), (0, 2), (1, 1), (1, 2), (2, 2), (30, 1), (0, 30)])
def test_small_tables_are_no_trouble(name: str, sizes: tuple[int, int]) -> None:
    many, few = sizes
    training, wanted = multiples({"a": 1.0}, 30)[:many], multiples({"b": 2.0}, 30)[:few]
    for shots in range(min(few, 3)):
        predicted_ms, _ = asked(name, training, wanted, shots)
        assert predicted_ms.shape == (few - shots,)
        assert np.isfinite(predicted_ms).all()
        assert (predicted_ms > 0.0).all()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("changes", [BLANK_SIZES, {"gmacs": 1.0}, {"latency_ms": 5.0}])
def test_constant_and_blank_columns_are_no_trouble(name: str, changes: dict[str, float]) -> None:
    training, wanted = parted(multiples({"a": 1.0, "b": 2.0, "c": 0.1}, **changes), "b")
    assert np.isfinite(asked(name, training, wanted, 5)[0]).all()


@pytest.mark.parametrize(
    "name",
    ALL,
)
def test_huge_ranges_stay_finite(name: str) -> None:
    training = [
        row(model="x", gmacs=0.5, latency_ms=1e-3),
        row(model="y", gmacs=0.6, latency_ms=1e7),
    ]
    wanted = [row(device="b", model="z", gmacs=1e6, latency_ms=1e6)]
    with np.errstate(all="ignore"):
        assert np.isfinite(asked(name, training, wanted, 0)[0]).all()


@pytest.mark.parametrize("shots", [5, 10])
def test_a_constant_factor_is_exact_on_multiples(shots: int) -> None:
    training, wanted = parted(multiples({"a": 1.0, "b": 2.0, "c": 0.1}), "b")
    assert mape_percent(*asked("constant-factor", training, wanted, shots)) < 1e-6


def test_the_best_proxy_is_taken() -> None:
    near = multiples({"near": 1.0, "me": 3.0})
    rng = np.random.default_rng(0)
    far = [
        replace(one, device="far", latency_ms=one.latency_ms * float(np.exp(rng.normal())))
        for one in near
        if one.device == "near"
    ]
    training, wanted = parted([*far, *near], "me")
    assert mape_percent(*asked("constant-factor", training, wanted, 6)) < 1e-6


def settings(factors: dict[str, float]) -> list[TableRow]:
    """Devices that are exact multiples; engines and precisions differ from model to model."""
    rng = np.random.default_rng(0)
    usual = {
        (engine, precision, number): float(np.exp(rng.normal(2.0, 1.0)))
        for engine in ("x", "y", "z")
        for precision in ("fp32", "int8")
        for number in range(12)
    }
    return [
        row(
            device=device,
            engine=engine,
            precision=precision,
            model=f"net{number}",
            latency_ms=factor * latency_ms,
        )
        for device, factor in factors.items()
        for (engine, precision, number), latency_ms in usual.items()
    ]


def test_a_proxy_is_a_device_with_all_its_engines_and_precisions() -> None:
    training, wanted = parted(settings({"a": 1.0, "b": 2.0, "c": 5.0}), "b")
    assert mape_percent(*asked("constant-factor", training, wanted, 10)) < 1.0


def test_log_linear_is_exact_where_that_is_true() -> None:
    rng = np.random.default_rng(0)
    rows = [
        row(
            device=device,
            model=f"net{number}",
            gmacs=(gmacs := float(np.exp(rng.normal()))),
            params_m=4.0 * gmacs,
            mactivations_m=9.0 * gmacs,
            latency_ms=factor * gmacs**0.8,
        )
        for device, factor in (("a", 1.0), ("b", 7.0))
        for number in range(100)
    ]
    training, wanted = parted(rows, "b")
    assert mape_percent(*asked("log-linear", training, wanted, 10)) < 1.0


def test_log_linear_levels_a_device_as_a_whole() -> None:
    """Ten shots of one engine tell how much slower the device is with its other engine too."""
    rows = [
        replace(one, engine=engine, latency_ms=one.latency_ms * quickness)
        for one in multiples({"a": 1.0, "b": 50.0}, models=40)
        for engine, quickness in (("x", 1.0), ("y", 0.5))
    ]
    training, wanted = parted(rows, "b")
    given = np.array([number for number, one in enumerate(wanted) if one.engine == "x"][:10])
    rest = np.array([number for number, one in enumerate(wanted) if one.engine == "y"])
    true_ms = latencies_ms(wanted)
    methods = Baselines(training, wanted, shipped_prior().roofline)
    found_ms = methods.predict("log-linear", given, true_ms[given], rest)
    assert mape_percent(found_ms, true_ms[rest]) < 60.0


def test_trees_and_neighbours_learn_a_curve() -> None:
    training, wanted = parted(multiples({"a": 1.0, "b": 3.0}, models=300), "b")
    for name in ("boosted-trees", "proxy-neighbours"):
        assert mape_percent(*asked(name, training, wanted, 10)) < 30.0


def test_a_ridge_on_proxies_is_exact_where_that_is_true() -> None:
    training, wanted = parted(multiples({"a": 1.0, "b": 3.0, "c": 0.1}, models=60), "b")
    assert mape_percent(*asked("proxy-ridge", training, wanted, 30)) < 3.0


def test_alone_is_as_good_without_other_devices() -> None:
    training, wanted = parted(multiples({"a": 1.0, "b": 3.0}, models=60), "b")
    first, _ = asked("log-linear-alone", training, wanted, 10)
    second, _ = asked("log-linear-alone", [], wanted, 10)
    np.testing.assert_allclose(first, second)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("shots", [0, 10])
def test_the_order_of_rows_does_not_matter(name: str, shots: int) -> None:
    training, wanted = parted(multiples({"a": 1.0, "b": 2.0, "c": 0.1, "d": 9.0}), "b")
    backwards, _ = asked(name, training[::-1], wanted, shots)
    np.testing.assert_allclose(asked(name, training, wanted, shots)[0], backwards, rtol=1e-6)


@pytest.mark.parametrize(
    "name",
    [
        "proxy-neighbours",
        "boosted-trees",
    ],
)
def test_nor_does_it_among_kinds_and_precisions(name: str) -> None:
    """Kinds and precisions have no order, and no distance that depends on who came first."""
    training, wanted = parted(varied(devices=6, models=40, seed=3), "d1")
    order = np.random.default_rng(0).permutation(len(training))
    shuffled = [training[number] for number in order]
    np.testing.assert_allclose(
        asked(name, training, wanted, 5)[0], asked(name, shuffled, wanted, 5)[0], rtol=1e-6
    )


def test_trees_tell_models_apart_by_name_where_no_sizes_are_published() -> None:
    rows = [
        row(device=device, model=f"net-w{width}", latency_ms=0.1 * width, **BLANK_SIZES)
        for device in ("known", "new")
        for width in range(10, 210)
    ]
    training, wanted = parted(rows, "new")
    predicted_ms, truth_ms = asked("boosted-trees", training, wanted, 10)
    assert np.median(np.abs(predicted_ms / truth_ms - 1.0)) < 0.2
