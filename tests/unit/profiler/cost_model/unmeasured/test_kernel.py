"""The covariance is one: symmetric, positive semidefinite, the same by block and by point."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from modelless.profiler.cost_model.unmeasured.features import LEVELS, Points
from modelless.profiler.cost_model.unmeasured.kernel import TERMS, Kernel
from modelless.profiler.cost_model.unmeasured.prior import shipped_prior

from .worlds import BLANK_SIZES, encoded, row, varied

KERNEL = shipped_prior().kernel
ALL_TERMS = Kernel(np.full((len(LEVELS), len(TERMS)), 0.3), 0.01)


def single_terms() -> list[Kernel]:
    kernels = []
    for number in range(len(TERMS)):
        variances = np.zeros((len(LEVELS), len(TERMS)))
        variances[:, number] = 0.5
        kernels.append(Kernel(variances, 0.01))
    return kernels


def worlds() -> list[Points]:
    strange = [
        row(**BLANK_SIZES),
        row(gmacs=1e12, params_m=1e-9),
        row(gmacs=1e-12, batch=4096),
        row(source="elsewhere"),
    ]
    return [
        encoded(varied(), item_effect_seed=1),
        encoded(varied(devices=7, models=20, seed=2), item_effect_seed=3),
        encoded([*strange, *strange, *varied(devices=1)], item_effect_seed=4),
        encoded([row()] * 5),
    ]


@pytest.mark.parametrize("kernel", [KERNEL, ALL_TERMS, *single_terms()])
@pytest.mark.parametrize("points", worlds())
def test_covariance_is_symmetric_and_positive_semidefinite(kernel: Kernel, points: Points) -> None:
    covariance = kernel.covariance(points, points)
    scale = np.abs(covariance).max()
    np.testing.assert_allclose(covariance, covariance.T, atol=1e-12 * scale)
    assert np.linalg.eigvalsh(covariance).min() >= -1e-9 * scale


@pytest.mark.parametrize("kernel", [KERNEL, ALL_TERMS, *single_terms()])
@pytest.mark.parametrize("points", worlds())
def test_variance_is_the_diagonal_of_covariance(kernel: Kernel, points: Points) -> None:
    diagonal = np.diag(kernel.covariance(points, points))
    np.testing.assert_allclose(kernel.variance(points), diagonal, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kernel", [KERNEL, ALL_TERMS])
def test_between_two_sets_it_is_the_transpose_and_a_part_of_the_whole(kernel: Kernel) -> None:
    points = encoded(varied(), item_effect_seed=5)
    whole = kernel.covariance(points, points)
    left, right = np.array([3, 40, 11, 11]), np.array([0, 47, 5])
    part = kernel.covariance(points.select(left), points.select(right))
    np.testing.assert_allclose(part, whole[np.ix_(left, right)], rtol=1e-9)
    back = kernel.covariance(points.select(right), points.select(left))
    np.testing.assert_allclose(part, back.T, rtol=1e-9)


def test_a_level_counts_only_among_points_that_share_it() -> None:
    points = encoded([row(device="a"), row(device="a", model="other"), row(device="b")])
    for level in LEVELS:
        variances = np.zeros((len(LEVELS), len(TERMS)))
        variances[LEVELS.index(level), TERMS.index("constant")] = 1.0
        codes = points.level(level)
        expected = (codes[:, None] == codes).astype(np.float64)
        np.testing.assert_array_equal(Kernel(variances, 0.1).covariance(points, points), expected)


def test_nothing_is_compared_with_nothing() -> None:
    some, none = encoded(varied()), encoded([])
    assert KERNEL.covariance(none, some).shape == (0, len(some))
    assert KERNEL.covariance(some, none).shape == (len(some), 0)
    assert KERNEL.variance(none).shape == (0,)


def test_what_is_not_known_elsewhere_tells_nothing_of_what_is() -> None:
    points = encoded([row(device="a"), row(device="b")])
    points = replace(points, item_effect=np.array([0.0, 0.0]), has_item_effect=np.array([0.0, 1.0]))
    variances = np.zeros((len(LEVELS), len(TERMS)))
    variances[:, [TERMS.index("elsewhere_smooth"), TERMS.index("elsewhere_linear")]] = 1.0
    assert Kernel(variances, 0.1).covariance(points, points)[0, 1] == 0.0


def test_variances_below_notice_are_left_out() -> None:
    table = {level: dict.fromkeys(TERMS, 1e-5) for level in LEVELS}
    table["kind"]["smooth"] = 0.25
    kernel = Kernel.of(table, 0.01)
    assert kernel.variances.sum() == 0.25
    assert kernel.variances[LEVELS.index("kind"), TERMS.index("smooth")] == 0.25
