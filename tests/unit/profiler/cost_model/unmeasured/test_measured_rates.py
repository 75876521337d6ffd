"""A device class that was itself measured: rates tell how fast it is, until its profile does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from modelless.common.errors import NotFoundError
from modelless.profiler.cost_model.model_inputs import find_gaps
from modelless.profiler.cost_model.placement_facts import describe_placements
from modelless.profiler.cost_model.unmeasured.features import LEVELS
from modelless.profiler.cost_model.unmeasured.figures import predict_unmeasured
from modelless.profiler.cost_model.unmeasured.kernel import TERMS, Kernel
from modelless.profiler.cost_model.unmeasured.machine_predictor import (
    LEAST_OWN,
    ExpectedLatency,
    MachinePredictor,
)
from modelless.profiler.cost_model.unmeasured.prior import shipped_prior
from modelless.profiler.cost_model.unmeasured.roofline import measured_unit_ms
from modelless.profiler.devices.microbenchmark import DeviceRates
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.table import PlacementFacts
from modelless.variants.graphs.graph_facts import GraphFacts
from modelless.variants.vocabulary import DeviceClass, Placement, Variant

from .worlds import encoded, varied

ENGINE = "onnxruntime-cpu-1.20.1"
ONE = DeviceClass("cpu-1", "cpu", 1, 1 << 30, 0.05, 8.0)
TWO = DeviceClass("cpu-2", "cpu", 2, 1 << 31, 0.10, 16.0)
BATCHES = (1, 2, 4, 8)


def rates_of(speed: float = 1.0, **changes: Any) -> DeviceRates:
    values: dict[str, Any] = {
        "threads": 1,
        "engine": ENGINE,
        "copy_bytes_per_s": {"memory": 1e10 * speed},
        "product_multiply_adds_per_s": {"fp32": 5e10 * speed, "int8": 2e11 * speed},
        "depthwise_multiply_adds_per_s": {"fp32": 1e10 * speed, "int8": 1e10 * speed},
        "run_s": 5e-6 / speed,
    }
    return DeviceRates(**(values | changes))


def subjects(
    make: Any, device: DeviceClass, rates: DeviceRates | None, count: int = 6
) -> dict[Placement, PlacementFacts]:
    found = {}
    for number in range(count):
        variant = replace(
            make.variant(f"v{number}"),
            multiply_adds=10**8 * (number + 1),
            parameter_count=10**6 * (number + 1),
        )
        subject = PlacementFacts(variant, device, "processor", ENGINE, rates=rates)
        found[Placement(variant.id, device.name)] = subject
    return found


def measured(
    make: Any, some: dict[Placement, PlacementFacts], scale_s: float = 1e-3
) -> list[Measurement]:
    return [
        make.measurement(
            variant_id=placement.variant_id,
            device_class=placement.device_class,
            batch=batch,
            p50_s=scale_s * batch * (row + 1),
            p90_s=1.1 * scale_s * batch * (row + 1),
            p99_s=1.3 * scale_s * batch * (row + 1),
            mean_s=scale_s * batch * (row + 1),
        )
        for row, placement in enumerate(some)
        for batch in BATCHES
    ]


def expected(
    some: dict[Placement, PlacementFacts],
    known: Sequence[Measurement] = (),
    wanted: Sequence[Placement] = (),
) -> ExpectedLatency:
    model = MachinePredictor(shipped_prior(), some, BATCHES)
    return model.fit(known).predict(
        model.rows((placement, b) for placement in wanted or some for b in BATCHES)
    )


def test_units_are_milliseconds_of_the_probe_most_alike() -> None:
    usual = measured_unit_ms(rates_of(), "fp32")
    assert usual is not None
    assert usual.shape == (4,)
    # 10^9 multiply-adds at 5 * 10^10 a second take 20 ms, by the factor of multiply-adds.
    assert usual[0] == pytest.approx(0.67 * 20.0)
    assert usual[3] == pytest.approx(2.1 * 0.005)
    half = measured_unit_ms(rates_of(0.5), "fp32")
    assert half is not None
    np.testing.assert_allclose(half, 2.0 * usual)


def test_precisions_have_rates_of_their_own_and_fp32_stands_in() -> None:
    fp32, int8, fp16 = (measured_unit_ms(rates_of(), name) for name in ("fp32", "int8", "fp16"))
    assert fp32 is not None
    assert int8 is not None
    assert int8[0] == pytest.approx(fp32[0] / 4.0)
    np.testing.assert_array_equal(fp16, fp32)


@pytest.mark.parametrize(
    "changes",
    [
        {"copy_bytes_per_s": {"L2": 1e10}},
        {"product_multiply_adds_per_s": {}},
        {"depthwise_multiply_adds_per_s": {}},
        {"run_s": None},
    ],
)
def test_where_a_rate_is_absent_rates_tell_nothing(make: Any, changes: dict[str, Any]) -> None:
    rates = rates_of(**changes)
    assert measured_unit_ms(rates, "fp32") is None
    found, plain = (expected(subjects(make, ONE, each)) for each in (rates, None))
    np.testing.assert_array_equal(found.median_s, plain.median_s)
    np.testing.assert_array_equal(found.band_log, plain.band_log)


def test_before_any_measurement_rates_say_how_fast_and_how_surely(make: Any) -> None:
    plain, usual, twice = (
        expected(subjects(make, ONE, rates)) for rates in (None, rates_of(), rates_of(2.0))
    )
    np.testing.assert_allclose(usual.median_s, 2.0 * twice.median_s)
    # From a hundred times to a few times as long.
    assert plain.p90_log.min() > math.log(1e2)
    assert usual.p90_log.max() < math.log(8.0)
    assert usual.p90_log.min() > math.log(1.5)


def test_enough_measurements_of_a_class_put_its_rates_aside(make: Any) -> None:
    rated, plain = (subjects(make, ONE, rates) for rates in (rates_of(30.0), None))
    known = measured(make, plain)[:LEAST_OWN]
    np.testing.assert_array_equal(expected(rated, known).median_s, expected(plain, known).median_s)
    few = known[:-1]
    assert not np.array_equal(expected(rated, few).median_s, expected(plain, few).median_s)


def test_a_class_without_a_profile_is_told_from_its_sibling_by_their_rates(make: Any) -> None:
    def of_both(*rates: DeviceRates | None) -> dict[Placement, PlacementFacts]:
        return subjects(make, ONE, rates[0]) | subjects(make, TWO, rates[1])

    known = measured(make, subjects(make, ONE, None))
    two = list(subjects(make, TWO, None))
    rated = expected(of_both(rates_of(), rates_of(2.0)), known, two)
    plain = expected(of_both(None, None), known, two)
    truth_s = np.array([row.p50_s for row in known]) / 2.0
    rated_error, plain_error = (
        float(np.median(np.abs(np.log(each.median_s / truth_s)))) for each in (rated, plain)
    )
    assert rated_error < 0.75 * plain_error


def test_a_rated_class_takes_memory_and_load_time_from_its_kind(make: Any) -> None:
    one, two = subjects(make, ONE, rates_of()), subjects(make, TWO, rates_of(2.0))
    known = measured(make, one)
    found = predict_unmeasured(shipped_prior(), one | two, known, BATCHES)
    assert {row.placement for row in found} == set(two)
    load_s = [row.load_s for row in found]
    assert load_s == pytest.approx([known[0].load_s] * len(load_s), rel=0.01)
    unrated = subjects(make, TWO, None)
    assert predict_unmeasured(shipped_prior(), one | unrated, known, BATCHES) == []
    assert predict_unmeasured(shipped_prior(), two, [], BATCHES) == []


def test_gaps_take_in_rated_classes_where_the_unmeasured_count(make: Any) -> None:
    variant = make.variant("v0")
    known = measured(make, subjects(make, ONE, None, count=1))
    arguments = known, [variant], [ONE, TWO]
    rated = {"cpu-2": rates_of()}
    placement = Placement(variant.id, "cpu-2")
    assert placement in find_gaps(*arguments, unmeasured=True, predictable=rated)
    assert placement not in find_gaps(*arguments, unmeasured=True)
    assert placement not in find_gaps(*arguments, unmeasured=False, predictable=rated)


def unreadable(variant: Variant) -> GraphFacts:
    raise NotFoundError(f"no file of {variant.id}")


def test_rates_tell_of_the_engine_that_they_were_measured_with(make: Any) -> None:
    facts = replace(make.facts, engines={"onnxruntime-cpu": "1.20.1"})
    newer = replace(make.facts, engines={"onnxruntime-cpu": "1.21.0"})
    rates = {"cpu-1": rates_of()}
    for each, told in ((facts, rates["cpu-1"]), (newer, None)):
        (subject,) = describe_placements(
            [make.variant("v0")], [ONE], each, [], unreadable, rates
        ).values()
        assert subject.rates is told


def test_the_covariance_of_rated_and_unrated_points_is_one() -> None:
    points = encoded(varied(), item_effect_seed=1)
    rated = (points.level("device") % 2).astype(np.float64)
    assert 0.0 < rated.mean() < 1.0
    mixed = replace(points, is_benchmarked=rated)
    for kernel in (
        shipped_prior().kernel,
        Kernel(np.full((len(LEVELS), len(TERMS)), 0.3), 0.01),
    ):
        covariance = kernel.covariance(mixed, mixed)
        scale = np.abs(covariance).max()
        np.testing.assert_allclose(covariance, covariance.T, atol=1e-12 * scale)
        assert np.linalg.eigvalsh(covariance).min() >= -1e-9 * scale
        np.testing.assert_allclose(kernel.variance(mixed), np.diag(covariance), rtol=1e-9)
        usual = kernel.variance(points)
        assert (kernel.variance(mixed) < usual)[rated > 0.0].all()
        np.testing.assert_array_equal(kernel.variance(mixed)[rated == 0.0], usual[rated == 0.0])
