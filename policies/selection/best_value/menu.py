"""A worker's menu for one scope: its variants as arrays over batch sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from modelless.policies.views import FloatArray, ResidentView

_SURE = 1.645 / 2.326
"""Latency is taken as lognormal: log p95 is so far from log p50 on the way to log p99."""


@dataclass(frozen=True, slots=True, eq=False)
class Menu:
    """Variants by rows, the most accurate first; batches of 1 to K items by columns.

    Attributes:
        variant_ids: n of them.
        accuracy_percent: shape (n,), descending.
        typical_s, sure_s: p50 and p95 of a batch's latency, shape (n, K); inf where unknown.
        busy_s: for how long a batch occupies the worker, shape (n, K); inf where unknown.
        item_s: least device time for an item in any batch, shape (n, 1).
    """

    variant_ids: tuple[str, ...]
    accuracy_percent: FloatArray
    typical_s: FloatArray
    sure_s: FloatArray
    busy_s: FloatArray
    item_s: FloatArray

    @property
    def most(self) -> int:
        """Items of the largest batch: K."""
        return int(self.busy_s.shape[1])

    def rows_of(self, mask: int) -> list[int]:
        """Returns the rows that are given as the bits of a whole number."""
        return [row for row in range(len(self.variant_ids)) if mask >> row & 1]


def make_menu(residents: Iterable[ResidentView], max_batch: int, lead_s: float = 0.0) -> Menu:
    """Returns the menu of the variants whose latency is known.

    A variant is left out if another is at least as accurate and at least as quick in every batch.

    Args:
        residents: variants of one scope.
        max_batch, lead_s: see ``WorkerView``.
    """
    known = [each for each in residents if len(each.p50_s) > 1 and 0.0 < each.p50_s[1] < math.inf]
    known.sort(key=lambda each: (-each.accuracy_percent, each.p50_s[1], each.variant_id))
    most = min([max_batch, *(len(each.p50_s) - 1 for each in known)])
    shape = (len(known), most)
    typical_s = np.array([each.p50_s[1 : most + 1] for each in known], np.float64).reshape(shape)
    upper_s = np.array([each.p99_s[1 : most + 1] for each in known], np.float64).reshape(shape)
    typical_s = np.where(typical_s > 0.0, typical_s, np.inf)  # NaN is unknown
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        sure_s = typical_s * np.fmax(upper_s / typical_s, 1.0) ** _SURE
    sure_s = np.where(np.isfinite(sure_s), sure_s, np.inf)
    kept: list[int] = []
    for row in range(len(known)):
        if not (sure_s[kept] <= sure_s[row]).all(axis=1).any():
            kept.append(row)
    # A worker has two batches at most, so each occupies it for half of its latency or longer.
    busy_s = np.maximum(typical_s - lead_s, typical_s / 2.0)[kept]
    return Menu(
        tuple([known[row].variant_id for row in kept]),
        np.array([known[row].accuracy_percent for row in kept], np.float64),
        typical_s[kept],
        sure_s[kept],
        busy_s,
        (busy_s / np.arange(1.0, most + 1.0)).min(axis=1, initial=np.inf)[:, None],
    )
