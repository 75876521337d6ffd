"""A worker's menu for one scope: its variants as arrays over batch sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from modelless.policies.views import FloatArray, ResidentView

_Z99 = 2.326  # standard normal's 99 % quantile
_LEAST_SPREAD = 0.01  # of log latency; a profile without any spread is too good to be true


class Menu(NamedTuple):
    """Variants by rows, most accurate first; batches of 1 to K items by columns.

    Attributes:
        variant_ids: n of them.
        accuracy_percent: shape (n,), descending.
        typical_s: p50 latency, shape (n, K); inf where unknown.
        spread: standard deviation of log latency, shape (n, K): latency is taken as lognormal
            through p50 and p99.
        item_s: least device time an item takes in any batch, shape (n,).
    """

    variant_ids: tuple[str, ...]
    accuracy_percent: FloatArray
    typical_s: FloatArray
    spread: FloatArray
    item_s: FloatArray

    def serves(self, min_accuracy_percent: float, items: int) -> bool:
        """Whether a variant of that accuracy is known to take that many items."""
        if items > self.typical_s.shape[1]:
            return False
        usable = self.accuracy_percent >= min_accuracy_percent
        return bool(np.isfinite(self.typical_s[usable, items - 1]).any())

    def item_within_s(self, latency_s: float) -> FloatArray:
        """Least device time an item takes in batches that run no longer than ``latency_s``.

        Shape (n,); inf where even a batch of one takes longer.
        """
        per_item = self.typical_s / np.arange(1, self.typical_s.shape[1] + 1)
        within = np.where(self.typical_s <= latency_s, per_item, np.inf)
        return np.asarray(within.min(axis=1, initial=np.inf))


def make_menu(residents: Iterable[ResidentView], max_batch: int) -> Menu:
    """The menu of these variants; those of unknown latency are left out."""
    known = [
        resident
        for resident in residents
        if len(resident.p50_s) > 1 and 0.0 < resident.p50_s[1] < math.inf
    ]
    known.sort(key=lambda r: (-r.accuracy_percent, r.p50_s[1], r.variant_id))
    columns = min([max_batch, *(len(resident.p50_s) - 1 for resident in known)])
    shape = (len(known), columns)
    typical_s = np.array([r.p50_s[1 : columns + 1] for r in known], dtype=np.float64).reshape(shape)
    upper_s = np.array([r.p99_s[1 : columns + 1] for r in known], dtype=np.float64).reshape(shape)
    typical_s = np.where(typical_s > 0.0, typical_s, np.inf)  # NaN and nonsense are unknown
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        spread = np.log(upper_s / typical_s) / _Z99
    spread = np.clip(np.nan_to_num(spread, nan=_LEAST_SPREAD), _LEAST_SPREAD, 2.0)
    per_item = typical_s / np.arange(1, columns + 1)
    return Menu(
        tuple(resident.variant_id for resident in known),
        np.array([resident.accuracy_percent for resident in known], dtype=np.float64),
        typical_s,
        spread,
        per_item.min(axis=1, initial=np.inf),
    )
