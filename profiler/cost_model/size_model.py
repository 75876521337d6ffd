"""What an item's size does to latency: measurements, interpolated over size and batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from modelless.profiler.cost_model.serving_model import BatchCurves, best_points
from modelless.profiler.measure.measurement import Measurement
from modelless.variants.estimates import FloatArray
from modelless.variants.vocabulary import Placement

_BATCHES_KEPT = 1024


@dataclass(frozen=True, slots=True)
class SizeEstimate:
    """The latency of a batch of items of one size, seconds.

    Attributes:
        p50_s: the median, interpolated.
        low_s, high_s: the band in which the median lies as far as is known: what was measured at
            the next smaller and the next larger size, or nearer to ``p50_s`` where the measured
            sizes predict each other well.
        p90_s, p99_s: quantiles that hold at the band's upper end.
        is_extrapolated: whether the size is beyond those measured.
    """

    p50_s: float
    low_s: float
    high_s: float
    p90_s: float
    p99_s: float
    is_extrapolated: bool


class SizeModel:
    """Latencies by size, of the placements that were measured at one size or more.

    Latency never falls as items grow: a measurement below one of a smaller size is raised to it.
    Between two measured sizes it is linear. Beyond the largest it goes on with the steeper of the
    last slope and the slope from first to last, below the smallest with the first slope, and the
    band is that of growth between none and the square of the size, which is the most that attention
    takes. Inside, the band is what the measured sizes say of each other: each interior one is
    predicted from its neighbours, and the largest relative error is the band's width midway between
    two sizes; there is none at a measured size. It never goes beyond the two neighbours.

    Args:
        measurements: rows with a ``shape``; others are ignored.
    """

    def __init__(self, measurements: Iterable[Measurement]) -> None:
        by_placement: dict[Placement, dict[int, list[Measurement]]] = {}
        for row in measurements:
            if row.elements > 0:
                sizes = by_placement.setdefault(row.placement, {})
                sizes.setdefault(row.elements, []).append(row)
        self._curves = {placement: _SizeCurves(sizes) for placement, sizes in by_placement.items()}

    def sizes(self, placement: Placement) -> tuple[int, ...]:
        """The sizes at which a placement was measured, ascending; elements of an item."""
        curves = self._curves.get(placement)
        return () if curves is None else curves.sizes

    def estimate(self, placement: Placement, batch: int, size: int) -> SizeEstimate | None:
        """The latency of a batch; None if the placement was measured at no known size.

        Args:
            placement: which.
            batch: items, 1 or more.
            size: elements of one item's inputs together, 1 or more.
        """
        curves = self._curves.get(placement)
        return None if curves is None else curves.at(batch, size)


class _SizeCurves:
    """The curves of one placement: of each size over batches."""

    def __init__(self, by_size: dict[int, list[Measurement]]) -> None:
        self.sizes = tuple(sorted(by_size))
        self._at = np.array(self.sizes, dtype=np.float64)
        self._curves = [_batch_curves(by_size[size]) for size in self.sizes]
        self._by_batch: dict[int, FloatArray] = {}

    def at(self, batch: int, size: int) -> SizeEstimate:
        """The estimate, see ``SizeModel.estimate``."""
        quantiles = self._quantiles(batch)
        medians, at = quantiles[:, 0], self._at
        last = len(at) - 1
        right = int(np.searchsorted(at, size))
        if right <= last and at[right] == size:
            p50, p90, p99 = quantiles[right].tolist()
            return SizeEstimate(p50, p50, p50, p90, p99, is_extrapolated=False)
        if right == 0:
            share = size / at[0]
            low, high = medians[0] * share**2, medians[0]
            slope = 0.0 if last == 0 else (medians[1] - medians[0]) / (at[1] - at[0])
            value = medians[0] * share if last == 0 else medians[0] - slope * (at[0] - size)
            tails = quantiles[0]
        elif right > last:
            share = size / at[-1]
            low, high = medians[-1], medians[-1] * share**2
            slope = medians[-1] / at[-1]
            if last > 0:
                whole = (medians[-1] - medians[0]) / (at[-1] - at[0])
                slope = max(whole, (medians[-1] - medians[-2]) / (at[-1] - at[-2]))
            value = medians[-1] + slope * (size - at[-1])
            tails = quantiles[-1]
        else:
            share = (size - at[right - 1]) / (at[right] - at[right - 1])
            tails = quantiles[right - 1] + share * (quantiles[right] - quantiles[right - 1])
            value = tails[0]
            width = 4.0 * share * (1.0 - share) * self._error * value
            low, high = medians[right - 1], medians[right]
            if np.isfinite(width):
                low, high = max(low, value - width), min(high, value + width)
        value = min(max(value, low), high)
        p90, p99 = (high * tails[1:] / tails[0]).tolist()
        return SizeEstimate(
            float(value), float(low), float(high), p90, p99, is_extrapolated=not 0 < right <= last
        )

    def _quantiles(self, batch: int) -> FloatArray:
        """The quantiles at each measured size, shape (sizes, 3)."""
        known = self._by_batch.get(batch)
        if known is None:
            at_sizes = [curve.at(batch)[:, 0] for curve in self._curves]
            known = np.maximum.accumulate(at_sizes, axis=0)
            if len(self._by_batch) < _BATCHES_KEPT:
                self._by_batch[batch] = known
        return known

    @cached_property
    def _error(self) -> float:
        """The largest relative error of an interior size, from its neighbours, at one item."""
        if len(self.sizes) < 3:
            return float("inf")
        medians = self._quantiles(1)[:, 0]
        inner = slice(1, -1)
        share = (self._at[inner] - self._at[:-2]) / (self._at[2:] - self._at[:-2])
        predicted = medians[:-2] + share * (medians[2:] - medians[:-2])
        return float(np.max(np.abs(predicted / medians[inner] - 1.0)))


def _batch_curves(rows: Sequence[Measurement]) -> BatchCurves:
    (points,) = best_points(rows).values()
    figures: FloatArray = np.array(
        [[[row.p50_s], [row.p90_s], [row.p99_s]] for row in points], dtype=np.float64
    )
    return BatchCurves([row.batch for row in points], figures, ascending=True)
