"""The rules for activation ranges, against what they mean."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from modelless.variants.graphs.canonical import read_model
from modelless.variants.making.activation_ranges import (
    BINS,
    ActivationRange,
    activations,
    entropy_bins,
    measure_ranges,
    percentile_bins,
)

from .networks import FASHION, pictures


def histogram(values: NDArray[np.float64]) -> NDArray[np.int64]:
    sizes = np.abs(values)
    return np.histogram(sizes, BINS, (0.0, sizes.max()))[0].astype(np.int64)


def divergence_in_words(counts: NDArray[np.int64], kept: int, levels: int) -> float:
    """Migacz's slides, step by step and slowly."""
    p = [float(count) for count in counts[:kept]]
    q = [0.0] * kept
    starts = [level * kept // levels for level in range(levels)] + [kept]
    for start, end in pairwise(starts):
        occupied = [index for index in range(start, end) if p[index] > 0]
        for index in occupied:
            q[index] = sum(p[start:end]) / len(occupied)
    p[-1] += float(counts[kept:].sum())
    q[-1] = max(q[-1], 0.5)
    total_p, total_q = sum(p), sum(q)
    return sum(
        a / total_p * np.log((a / total_p) / (b / total_q))
        for a, b in zip(p, q, strict=True)
        if a > 0
    )


class TestEntropy:
    def test_it_is_the_least_divergence(self) -> None:
        rng = np.random.default_rng(3)
        counts = histogram(rng.standard_t(3, 20_000))
        candidates = range(BINS, 127, -16)
        divergences = {kept: divergence_in_words(counts, kept, 128) for kept in candidates}
        assert entropy_bins(counts, 128) == min(divergences, key=lambda kept: divergences[kept])

    def test_an_outlier_is_let_go(self) -> None:
        values = np.append(np.random.default_rng(0).normal(size=50_000), 100.0)
        kept = entropy_bins(histogram(values), 128) / BINS * 100.0
        assert 2.5 < kept < 10.0  # the normal's tail and not much more, out of 100

    def test_an_even_spread_is_kept_whole(self) -> None:
        assert entropy_bins(np.full(BINS, 1000), 128) == BINS

    def test_nothing_seen_and_codes_enough_keep_all(self) -> None:
        assert entropy_bins(np.zeros(BINS, np.int64), 128) == BINS
        assert entropy_bins(np.ones(128, np.int64), 256) == 128


def test_percentile_keeps_that_share() -> None:
    counts = np.full(BINS, 10)
    assert percentile_bins(counts, 50.0) == BINS // 2
    assert percentile_bins(counts, 100.0) == BINS
    assert percentile_bins(np.zeros(BINS, np.int64), 99.0) == BINS


@pytest.mark.parametrize(
    ("low", "high", "codes"), [(0.0, 6.0, 256), (-1.0, 1.0, 128), (-1.0, 3.0, 192), (0.0, 0.0, 256)]
)
def test_codes_on_the_larger_side(low: float, high: float, codes: int) -> None:
    assert ActivationRange(low, high).codes == codes


class TestMeasuring:
    def test_extremes_are_those_of_the_values(self) -> None:
        model, data = read_model(FASHION), pictures()
        seen = np.concatenate([v.ravel() for _, v in activations(model, ["conv1"], data)])
        found = measure_ranges(model, ["conv1"], data, "min-max", 99.99)
        assert found["conv1"] == ActivationRange(float(seen.min()), float(seen.max()))

    def test_percentile_is_that_of_the_sizes(self) -> None:
        model, data = read_model(FASHION), pictures()
        seen = np.concatenate([v.ravel() for _, v in activations(model, ["conv1"], data)])
        found = measure_ranges(model, ["conv1"], data, "percentile", 99.0)["conv1"]
        sizes = np.abs(seen[seen != 0])
        assert found.size == pytest.approx(
            np.quantile(sizes, 0.99), abs=2 * float(sizes.max()) / BINS
        )

    def test_saturating_never_widens(self) -> None:
        model, data = read_model(FASHION), pictures()
        widest = measure_ranges(model, ["conv1", "relu2"], data, "min-max", 99.99)
        for name, found in measure_ranges(
            model, ["conv1", "relu2"], data, "entropy", 99.99
        ).items():
            assert widest[name].low <= found.low <= 0.0 <= found.high <= widest[name].high
            assert found.size < widest[name].size
