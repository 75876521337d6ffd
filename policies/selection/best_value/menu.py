"""A worker's menu for one scope: its variants as arrays over batch sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from modelless.policies.views import FloatArray, ResidentView
from modelless.variants.estimates import p95_of

_LATER_SIZES = 5
"""Batch sizes that are considered for a query that is left for later."""


@dataclass(frozen=True, slots=True, eq=False)
class Menu:
    """Variants by rows, the most accurate first; batches of 1 to K items by columns.

    Attributes:
        variant_ids: n of them.
        accuracy_percent: shape (n,), descending.
        typical_s, sure_s: p50 and p95 of a batch's latency, shape (n, K); inf where unknown.
        busy_s: for how long a batch occupies the worker, shape (n, K); inf where unknown.
        most: items of the largest batch: K.
        cells: p95, the least device time for the items in any batch, and the time beyond that, of
            each variant and batch; NaN where unknown.
    """

    variant_ids: tuple[str, ...]
    accuracy_percent: FloatArray
    typical_s: FloatArray
    sure_s: FloatArray
    busy_s: FloatArray
    most: int
    cells: list[list[list[float]]]


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
    sure_s = p95_of(typical_s, upper_s)
    kept: list[int] = []
    for row in range(len(known)):
        if not (sure_s[kept] <= sure_s[row]).all(axis=1).any():
            kept.append(row)
    # A worker has two batches at most, so each occupies it for half of its latency or longer.
    typical_s, sure_s = typical_s[kept], sure_s[kept]
    busy_s = np.maximum(typical_s - lead_s, typical_s / 2.0)
    items = np.arange(1.0, most + 1.0)
    share_s = (busy_s / items).min(axis=1, initial=np.inf)[:, None] * items
    known_s = np.where(np.isfinite(busy_s), sure_s, np.nan)
    cells = np.stack([known_s, share_s, np.maximum(busy_s - share_s, 0.0)], axis=-1)
    return Menu(
        tuple([known[row].variant_id for row in kept]),
        np.array([known[row].accuracy_percent for row in kept], np.float64),
        typical_s,
        sure_s,
        busy_s,
        most,
        cells.tolist(),
    )


class Suited:
    """The variants of a menu that may serve queries of the same limits and number of items.

    Attributes:
        may: whether each variant may, n of them.
        places: of the rows that may.
        least_s: the least median latency of such a query anywhere, seconds.
        sure_s: the least p95 here, seconds; inf if none may.
    """

    __slots__ = ("_items", "_later", "_menu", "least_s", "may", "places", "sure_s")

    def __init__(self, menu: Menu, may: Sequence[bool], items: int, least_s: float) -> None:
        self._menu, self.may, self._items, self.least_s = menu, may, items, least_s
        self.places = tuple([row for row, each in enumerate(may) if each])
        column = menu.sure_s[self.places, items - 1] if self.places else np.empty(0)
        self.sure_s = float(column.min(initial=math.inf))
        self._later: tuple[float, list[float], list[float]] | None = None

    def later(self, price: float, miss_points: float) -> tuple[list[float], list[float]]:
        """Returns what such a query is worth to a later batch, as a function of its slack then.

        It will be in a batch of the best size for the price, and pay for its share of that.

        Args:
            price: points a second.
            miss_points: accuracy points that a query not served costs, besides its own.

        Returns:
            Slacks, ascending, m of them, and points from each of them on, m + 1 figures; the first
            are those below all slacks: 0.
        """
        if self._later is None or self._later[0] != price:
            menu, rows, items = self._menu, list(self.places), self._items
            sizes = _later_sizes(items, menu.most)
            sure_s, busy_s = menu.sure_s[rows][:, sizes - 1], menu.busy_s[rows][:, sizes - 1]
            share_s = np.where(np.isfinite(busy_s), busy_s * (items / sizes), 0.0)
            points = (menu.accuracy_percent[rows, None] + miss_points - price * share_s).ravel()
            order = np.argsort(sure_s, axis=None)
            best = np.maximum.accumulate(np.maximum(points[order], 0.0))
            self._later = price, sure_s.ravel()[order].tolist(), [0.0, *best.tolist()]
        return self._later[1:]


@lru_cache(maxsize=1024)
def _later_sizes(least: int, most: int) -> NDArray[np.intp]:
    return np.unique(np.geomspace(least, most, _LATER_SIZES).round().astype(np.intp))
