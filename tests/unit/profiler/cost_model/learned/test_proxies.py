"""Which of the ways to follow other devices the measurements bear out."""

from __future__ import annotations

import numpy as np
import pytest

from modelless.profiler.cost_model.learned.gaussian_process import GaussianProcess
from modelless.profiler.cost_model.learned.prior import shipped_prior
from modelless.profiler.cost_model.learned.proxies import ProxyMixture, contrasts_of

from .worlds import BLANK_SIZES, FloatArray, IntArray, drawn, encoded, multiples

MODELS, SHOTS = 80, 10


def mixture_of(truth_log: FloatArray, contrasts: FloatArray, shots: IntArray) -> ProxyMixture:
    """That has seen these shots, and nothing else."""
    points = encoded(multiples({"new": 1.0}, MODELS, **BLANK_SIZES))
    nothing = points.select(np.arange(0))
    process = GaussianProcess(shipped_prior().kernel, nothing, np.empty(0))
    return ProxyMixture(process, process.posterior_at(points), contrasts, shots, truth_log[shots])


def predicted(
    truth_log: FloatArray, contrasts: FloatArray, seed: int = 0
) -> tuple[FloatArray, FloatArray]:
    """(errors, predicted standard deviations), NaN at the shots, of which nothing else is known.

    Args:
        truth_log: what each row departs from the roofline, shape (n,).
        contrasts: of the other devices, shape (p, n).
        seed: of the draw of the shots.
    """
    shots, rest = drawn(SHOTS, MODELS, seed)
    mean, variance = mixture_of(truth_log, contrasts, shots).predict(rest)
    errors, deviations = np.full((2, MODELS), np.nan)
    errors[rest], deviations[rest] = np.abs(mean - truth_log[rest]), np.sqrt(variance)
    return errors, deviations


def devices(seed: int) -> tuple[FloatArray, FloatArray]:
    """(how a device differs from the roofline, contrasts of five others, of which one is alike)."""
    rng = np.random.default_rng(seed)
    contrasts = rng.normal(0.0, 0.5, (5, MODELS))
    return 0.7 + contrasts[2] + rng.normal(0.0, 0.05, MODELS), contrasts


@pytest.mark.parametrize("seed", range(3))
def test_a_sister_is_followed_to_the_letter(seed: int) -> None:
    errors, deviations = predicted(*devices(seed), seed)
    assert np.nanmean(errors) < 0.06  # of deviations of 0.05 the mean distance is 0.04
    assert np.nanmean(deviations) < 0.15


@pytest.mark.parametrize("seed", range(3))
def test_a_device_that_is_alike_but_for_some_models_is_no_sister(seed: int) -> None:
    """Else what tells that it is none would be taken for faults."""
    truth_log, contrasts = devices(seed)
    truth_log[np.random.default_rng(100 + seed).permutation(MODELS)[: MODELS // 3]] += np.log(3.0)
    errors, deviations = predicted(truth_log, contrasts, seed)
    assert np.nanquantile(errors / deviations, 0.8) < 2.0


def test_what_is_not_known_together_is_what_is_not_known_of_each() -> None:
    truth_log, contrasts = devices(1)
    shots, rest = drawn(SHOTS, MODELS)
    mixture = mixture_of(truth_log, contrasts, shots)
    covariance, noise_variance = mixture.covariance(rest)
    _, variance = mixture.predict(rest)
    np.testing.assert_allclose(np.diag(covariance) + noise_variance, variance, rtol=1e-9)
    np.testing.assert_allclose(covariance, covariance.T, atol=1e-12)
    assert np.linalg.eigvalsh(covariance).min() > -1e-9


def test_ways_that_disagree_make_rows_unsure_together() -> None:
    """Before a measurement tells which of two devices is followed, all rows wait for that."""
    shape = np.random.default_rng(0).normal(0.0, 0.5, MODELS)
    nothing = np.arange(0)
    one, other = (
        mixture_of(np.zeros(MODELS), np.stack([shape, sign * shape]), nothing).covariance(
            np.arange(MODELS)
        )[0]
        for sign in (1.0, -1.0)
    )
    apart = np.outer(shape, shape)
    share = float(np.trace(other - one) / np.trace(apart))
    assert share > 0.05
    np.testing.assert_allclose(other - one, share * apart, atol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_a_shot_that_is_left_out_has_no_say_in_what_is_followed(seed: int) -> None:
    """Else ways that are right by chance make bands too narrow."""
    rng = np.random.default_rng(seed)
    truth_log, contrasts = rng.normal(0.0, 0.5, MODELS), rng.normal(0.0, 0.5, (12, MODELS))
    shots, _ = drawn(SHOTS, MODELS, seed)
    error, variance = mixture_of(truth_log, contrasts, shots).leave_one_out()
    for number, shot in enumerate(shots):
        others = mixture_of(truth_log, contrasts, np.delete(shots, number))
        (mean,), (own_variance,) = others.predict(shots[[number]])
        assert error[number] == pytest.approx(truth_log[shot] - mean, abs=0.03)
        assert variance[number] == pytest.approx(own_variance, rel=0.15)


def test_items_that_the_sister_does_not_have_are_as_unsure_as_ever() -> None:
    truth_log, contrasts = devices(0)
    is_lacking = np.arange(MODELS) % 2 == 1
    contrasts[2, is_lacking] = np.nan
    _, deviations = predicted(truth_log, contrasts)
    assert np.nanmean(deviations[is_lacking]) > 1.5 * np.nanmean(deviations[~is_lacking])


def test_an_item_that_the_sister_has_in_the_middle_is_no_item_that_it_lacks() -> None:
    proxies_log, expected_log = np.array([[0.5, np.nan, 0.9, 0.7]]), np.zeros(4)
    (contrast,) = contrasts_of(proxies_log, expected_log)
    assert np.isnan(contrast).tolist() == [False, True, False, False]
    assert contrast[3] == 0.0
