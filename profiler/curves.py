"""Placements' figures over batch size: through the measured points, never decreasing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class BatchCurves:
    """Figures of placements measured at the same batches, as functions of the batch.

    Between measured batches they are linear. Beyond the last they go on with the steeper of the
    last segment's slope and the slope from first to last point, so that one point that came out
    flat by chance does not promise free batches; from a single point they grow in proportion to
    the batch.
    Before the first they keep its value: a smaller batch takes at most as long. A point below an
    earlier one is lifted to it: more items never take less.

    Args:
        batches: the m measured batches, ascending, distinct, 1 or more.
        figures: shape (m, k, n): k figures of n placements; finite, 0 or more.
        ascending: the k figures of a placement ascend (p50, p90, p99): keep them so where
            extrapolation would cross them.
    """

    def __init__(
        self, batches: Sequence[int], figures: FloatArray, *, ascending: bool = False
    ) -> None:
        self._batches = np.asarray(batches, dtype=np.float64)
        self._figures = np.maximum.accumulate(np.asarray(figures, dtype=np.float64), axis=0)
        self._ascending = ascending
        first, last = self._figures[0], self._figures[-1]
        if len(self._batches) == 1:
            self._slope = last / self._batches[0]
        else:
            ending = (last - self._figures[-2]) / (self._batches[-1] - self._batches[-2])
            whole = (last - first) / (self._batches[-1] - self._batches[0])
            self._slope = np.maximum(ending, whole)

    def at(self, batch: int) -> FloatArray:
        """The figures at ``batch`` items, shape (k, n)."""
        batches, figures = self._batches, self._figures
        if batch <= batches[0]:
            values = figures[0]
        elif batch >= batches[-1]:
            values = figures[-1] + self._slope * (batch - batches[-1])
        else:
            right = int(np.searchsorted(batches, batch, side="left"))
            share = (batch - batches[right - 1]) / (batches[right] - batches[right - 1])
            values = figures[right - 1] + share * (figures[right] - figures[right - 1])
        return np.maximum.accumulate(values, axis=0) if self._ascending else values.copy()
