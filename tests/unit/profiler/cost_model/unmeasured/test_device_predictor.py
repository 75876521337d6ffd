"""Properties that predictions must have, whatever the figures of the prior."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from modelless.profiler.cost_model.unmeasured import device_predictor as predictor_module
from modelless.profiler.cost_model.unmeasured.device_predictor import DevicePredictor, Prediction
from modelless.profiler.cost_model.unmeasured.prior import shipped_prior
from modelless.profiler.measure.table import TableRow

from .worlds import (
    BLANK_SIZES,
    FloatArray,
    IntArray,
    band_width,
    drawn,
    errors_percent,
    latencies_ms,
    multiples,
    parted,
    predict,
    row,
    varied,
)

FACTORS = {"a": 1.0, "b": 2.0, "c": 0.1}


def of(
    training: Sequence[TableRow], wanted: Sequence[TableRow], given: IntArray, rest: IntArray
) -> Prediction:
    seen_ms = latencies_ms(wanted)[given]
    return DevicePredictor(shipped_prior(), training, wanted).predict(given, seen_ms, rest)


def columns(prediction: Prediction) -> FloatArray:
    """Low, median and high, shape (3, n), logs."""
    return np.log([prediction.low_ms, prediction.median_ms, prediction.high_ms])


def shuffled(rows: Sequence[TableRow], seed: int = 0) -> list[TableRow]:
    return [rows[number] for number in np.random.default_rng(seed).permutation(len(rows))]


@pytest.mark.parametrize("shots", [0, 1, 10])
def test_the_median_lies_in_its_band(shots: int) -> None:
    rows = varied(devices=4, models=30)
    prediction, _ = predict(rows, "d1", shots)
    assert np.isfinite(columns(prediction)).all()
    assert (prediction.low_ms < prediction.median_ms).all()
    assert (prediction.median_ms < prediction.high_ms).all()


@pytest.mark.parametrize("shots", [0, 10])
def test_the_same_seed_gives_the_same(shots: int) -> None:
    rows = varied(devices=4, models=30)
    first, second = predict(rows, "d1", shots)[0], predict(rows, "d1", shots)[0]
    np.testing.assert_array_equal(columns(first), columns(second))


def test_asking_in_another_order_or_for_less_changes_nothing() -> None:
    training, wanted = parted(varied(devices=4, models=30), "d1")
    given, rest = drawn(8, len(wanted))
    asked = DevicePredictor(shipped_prior(), training, wanted)
    seen_ms = latencies_ms(wanted)[given]
    asked.predict(given[:2], seen_ms[:2], rest)  # what was asked before must not be remembered
    whole = columns(asked.predict(given, seen_ms, rest))
    backwards = columns(asked.predict(given[::-1], seen_ms[::-1], rest[::-1]))[:, ::-1]
    np.testing.assert_allclose(whole, backwards, atol=1e-9)
    np.testing.assert_allclose(whole[:, :3], columns(asked.predict(given, seen_ms, rest[:3])))


@pytest.mark.parametrize("shots", [0, 8])
def test_medians_do_not_depend_on_the_order_of_training_rows(shots: int) -> None:
    training, wanted = parted(varied(devices=4, models=30), "d1")
    given, rest = drawn(shots, len(wanted))
    first = of(training, wanted, given, rest)
    second = of(shuffled(training), wanted, given, rest)
    np.testing.assert_allclose(first.median_ms, second.median_ms, rtol=1e-8)


def test_bands_do_not_depend_on_the_order_of_training_rows() -> None:
    training, wanted = parted(varied(devices=4, models=30), "d1")
    given, rest = drawn(8, len(wanted))
    first = of(training, wanted, given, rest)
    second = of(shuffled(training), wanted, given, rest)
    np.testing.assert_allclose(columns(first), columns(second), atol=1e-8)


def test_thinning_out_does_not_depend_on_the_order_of_training_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(predictor_module, "MOST_TRAINING_POINTS", 40)
    training, wanted = parted(varied(devices=4, models=30), "d1")
    given, rest = drawn(8, len(wanted))
    first = of(training, wanted, given, rest)
    second = of(shuffled(training), wanted, given, rest)
    np.testing.assert_allclose(first.median_ms, second.median_ms, rtol=1e-8)


def test_the_order_of_wanted_rows_does_not_matter() -> None:
    training, wanted = parted(varied(devices=4, models=30), "d1")
    given, rest = drawn(8, len(wanted))
    order = np.random.default_rng(3).permutation(len(wanted))
    place = np.argsort(order)
    first = of(training, wanted, given, rest)
    second = of(training, [wanted[number] for number in order], place[given], place[rest])
    np.testing.assert_allclose(columns(first), columns(second), atol=1e-8)


@pytest.mark.parametrize("most", [10_000, 40])
@pytest.mark.parametrize("shots", [0, 1, 10])
def test_what_was_not_given_cannot_be_known(
    most: int, shots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predictor_module, "MOST_TRAINING_POINTS", most)
    training, wanted = parted(varied(devices=4, models=30), "d1")
    given, rest = drawn(shots, len(wanted))
    changed = list(wanted)
    for number in rest.tolist():
        changed[number] = replace(
            wanted[number],
            latency_ms=7.0 * wanted[number].latency_ms + number,
            latency_p99_ms=1e5,
            throughput_per_s=3.0,
            memory_mib=9.0,
            accuracy=1.0,
        )
    first = of(training, wanted, given, rest)
    second = of(training, changed, given, rest)
    np.testing.assert_array_equal(columns(first), columns(second))


@pytest.mark.parametrize("factor", [0.01, 10.0, 1000.0])
def test_predictions_scale_with_the_device(factor: float) -> None:
    rows = multiples(FACTORS, models=40)
    scaled = [
        replace(one, latency_ms=factor * one.latency_ms) if one.device == "b" else one
        for one in rows
    ]
    first, second = predict(rows, "b", 10)[0], predict(scaled, "b", 10)[0]
    apart = np.abs(np.log(second.median_ms / factor / first.median_ms))
    assert apart.mean() < 0.08
    assert apart.max() < 0.25


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("device", FACTORS)
def test_exact_multiples_are_found_from_ten_shots(device: str, seed: int) -> None:
    errors = errors_percent(*predict(multiples(FACTORS, models=40, seed=seed), device, 10, seed))
    assert errors.mean() < 3.0


@pytest.mark.parametrize(
    "factor",
    [
        2.0,
        1000.0,
    ],
)
def test_one_other_device_is_enough_to_find_a_multiple(factor: float) -> None:
    rows = [multiples({"a": 1.0, "b": factor}, models=40, seed=seed) for seed in range(4)]
    errors = [errors_percent(*predict(some, "a", 10, seed)) for seed, some in enumerate(rows)]
    assert np.median([each.mean() for each in errors]) < 5.0


@pytest.mark.parametrize("spoil", [20.0, 1 / 20.0])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("factors", [FACTORS, FACTORS | {"d": 5.0, "e": 0.7}])
def test_an_outlier_among_the_shots_does_not_spoil_the_rest(
    factors: dict[str, float], seed: int, spoil: float
) -> None:
    rows = multiples(factors, models=40, seed=seed)
    assert errors_percent(*predict(rows, "a", 10, seed, spoil)).mean() < 15.0


@pytest.mark.parametrize(
    "seed",
    [
        0,
        1,
        2,
    ],
)
def test_nor_where_there_is_one_other_device(seed: int) -> None:
    rows = multiples({"a": 1.0, "b": 2.0}, models=40, seed=seed)
    assert errors_percent(*predict(rows, "a", 10, seed, 20.0)).mean() < 15.0


@pytest.mark.parametrize("shots", [0, 1, 3])
def test_with_nothing_to_learn_from_bands_are_wide(shots: int) -> None:
    prediction, true_ms = predict(multiples({"a": 1.0}, models=30), "a", shots)
    assert band_width(prediction) > (100.0 if shots == 0 else 2.0)
    inside = (true_ms >= prediction.low_ms) & (true_ms <= prediction.high_ms)
    assert inside.mean() >= 0.8


@pytest.mark.parametrize(
    "changes",
    [
        {},
        BLANK_SIZES,
        {"gmacs": 0.0, "params_m": 0.0},
    ],
)
def test_a_device_never_seen_may_be_of_any_speed(changes: dict[str, Any]) -> None:
    """Devices a hundred times apart: without a shot nobody knows where the next one lies."""
    rows = multiples({"a": 1.0, "b": 10.0, "c": 0.1, "d": 3.0}, models=25, **changes)
    inside, widths = [], []
    for device in "abcd":
        prediction, true_ms = predict(rows, device, 0)
        widths.append(band_width(prediction))
        inside += ((true_ms >= prediction.low_ms) & (true_ms <= prediction.high_ms)).tolist()
    assert np.mean(inside) >= 0.7
    assert min(widths) > 3.0


def test_huge_ranges_are_survived() -> None:
    rng = np.random.default_rng(0)
    rows = [
        row(
            device=device,
            model=f"net{number}",
            gmacs=float(10.0 ** rng.uniform(-4, 4)),
            latency_ms=float(10.0 ** rng.uniform(-3, 7)),
        )
        for device in "abc"
        for number in range(25)
    ]
    for shots in (0, 1, 10):
        prediction, true_ms = predict(rows, "a", shots)
        assert np.isfinite(columns(prediction)).all()
        inside = (true_ms >= prediction.low_ms) & (true_ms <= prediction.high_ms)
        assert inside.mean() >= 0.7


@pytest.mark.parametrize("latency_ms", [1e-3, 5.0, 1e7])
def test_all_latencies_equal_are_predicted_so(latency_ms: float) -> None:
    rows = multiples({"a": 1.0, "b": 1.0, "c": 1.0}, latency_ms=latency_ms)
    errors = errors_percent(*predict(rows, "a", 5))
    assert errors.max() < 10.0


def test_a_column_that_is_constant_or_blank_is_no_trouble() -> None:
    for changes in (BLANK_SIZES, {"gmacs": 1.0, "params_m": 1.0, "layers": 7}):
        rows = multiples(FACTORS, models=30, **changes)
        assert errors_percent(*predict(rows, "a", 10)).mean() < 5.0


@pytest.mark.parametrize("sizes", [(1, 1), (1, 2), (2, 1), (0, 1), (0, 2), (3, 0)])
def test_one_row_here_and_two_there(sizes: tuple[int, int]) -> None:
    many, few = sizes
    training = multiples({"a": 1.0})[:many]
    wanted = multiples({"b": 2.0})[:few]
    asked = DevicePredictor(shipped_prior(), training, wanted)
    for shots in range(few + 1):
        given, rest = drawn(shots, few)
        prediction = asked.predict(given, latencies_ms(wanted)[given], rest)
        assert prediction.median_ms.shape == (few - shots,)
        assert np.isfinite(columns(prediction)).all()


def test_every_row_may_be_given() -> None:
    training, wanted = parted(multiples(FACTORS), "a")
    all_rows = np.arange(len(wanted))
    prediction = of(training, wanted, all_rows, all_rows)
    assert errors_percent(prediction, latencies_ms(wanted)).mean() < 3.0
