"""The worth of a measurement is the reduction of the expected errors of all points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from modelless.profiler.cost_model.unmeasured.experiment_design import (
    LEAST_MEASURED,
    BayesianDesign,
    ErrorReduction,
    decision_losses,
)
from modelless.profiler.cost_model.unmeasured.prior import shipped_prior
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.table import PlacementFacts
from modelless.variants.vocabulary import Placement

from .worlds import FloatArray

POINTS, NOISE_VARIANCE = 12, 0.05


def covariance_of(seed: int) -> FloatArray:
    """Of some points that tell of one another; no two alike."""
    roots = np.random.default_rng(seed).normal(size=(POINTS, POINTS - 3))
    return np.asarray(roots @ roots.T)


def left_after(covariance: FloatArray, measured: list[int]) -> float:
    """The sum of all standard deviations once some points were measured, all at once."""
    seen = covariance[np.ix_(measured, measured)] + NOISE_VARIANCE * np.eye(len(measured))
    across = covariance[measured]
    left = np.diag(covariance - across.T @ np.linalg.solve(seen, across))
    return float(np.sqrt(left + NOISE_VARIANCE).sum())


@pytest.mark.parametrize("before", [[], [4], [7, 0, 3]])
def test_a_gain_is_what_measuring_takes_off(before: list[int]) -> None:
    covariance = covariance_of(len(before))
    gains = ErrorReduction(covariance, NOISE_VARIANCE)
    for row in before:
        gains.condition_on(row)
    expected = [
        left_after(covariance, before) - left_after(covariance, [*before, row])
        for row in range(POINTS)
        if row not in before
    ]
    others = np.setdiff1d(np.arange(POINTS), before)
    np.testing.assert_allclose(gains.by_point()[others], expected, rtol=1e-8)


def test_the_callers_covariance_stays_as_it_was() -> None:
    covariance = covariance_of(0)
    ErrorReduction(covariance, NOISE_VARIANCE).condition_on(2)
    np.testing.assert_array_equal(covariance, covariance_of(0))


def test_what_tells_of_many_is_worth_more_than_what_is_least_known() -> None:
    covariance = np.diag([1.5, *[1.0] * 9])
    covariance[1:, 1:] = 0.8 + 0.2 * np.eye(9)
    gains = ErrorReduction(covariance, NOISE_VARIANCE).by_point()
    assert gains[0] < 0.3 * gains[1:].min()


def test_errors_that_weigh_nothing_gain_nothing() -> None:
    covariance = np.diag(np.ones(4))
    weights = np.array([0.0, 1.0, 3.0, 1.0])
    gains = ErrorReduction(covariance, NOISE_VARIANCE, weights).by_point()
    np.testing.assert_allclose(gains / gains[1], weights)


def losses(deviations: list[float], medians_s: list[float], accuracy: list[float]) -> FloatArray:
    draws = np.random.default_rng(0).normal(size=(500, len(medians_s)))
    supposed_s = np.array(medians_s) * np.exp(1.28 * np.array(deviations))
    return decision_losses(medians_s * np.exp(draws * deviations), supposed_s, np.array(accuracy))


def test_known_latencies_spoil_no_decision() -> None:
    assert losses([0.0] * 3, [0.01, 0.02, 0.04], [70.0, 75.0, 80.0]).sum() == 0.0


def test_a_variant_that_is_never_the_best_choice_matters_less_than_one_that_may_be() -> None:
    """The first is slower and less accurate than a known one; the second more accurate."""
    slow, good, known = losses([0.5, 0.5, 0.0], [0.1, 0.03, 0.01], [60.0, 80.0, 75.0])
    assert known == 0.0
    assert slow < 0.05 * good


def test_the_less_is_known_the_more_is_lost() -> None:
    few, many = (losses([d, d], [0.01, 0.02], [70.0, 80.0]).sum() for d in (0.1, 0.8))
    assert 0.0 < few < 0.5 * many


def test_only_measurements_of_the_placements_themselves_are_enough(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    variants = [make.variant(f"v{number}") for number in range(12)]
    device, batches = make.device(), (1, 2)
    subjects = {
        Placement(variant.id, device.name): PlacementFacts(variant, device, "processor", "engine")
        for variant in variants
    }

    def rows(ids: Sequence[str]) -> list[Measurement]:
        return [make.measurement(variant_id=name) for name in ids]

    left = dict.fromkeys(subjects, batches)
    others = rows([f"imagenet/other/v{number}@1" for number in range(LEAST_MEASURED)])
    own = rows([variant.id for variant in variants[:LEAST_MEASURED]])
    design = BayesianDesign(shipped_prior(), subjects, batches, target_error=100.0)
    assert design.choose(left, own) is None
    assert design.choose(left, others) is not None

    weighed: list[int] = []

    def weights(_: BayesianDesign, points: Sequence[Any], *__: Any) -> FloatArray:
        weighed.append(len(points))
        return np.ones(len(points))

    monkeypatch.setattr(BayesianDesign, "_decision_weights", weights)
    design = BayesianDesign(shipped_prior(), subjects, batches)
    design.choose(left, others)
    assert not weighed
    design.choose(left, own)
    assert weighed == [24]
