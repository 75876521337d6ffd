"""The best batch from one queue: every variant and size at once, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from modelless.policies.selection.best_value.menu import Menu
from modelless.policies.selection.best_value.price import Higher
from modelless.policies.views import FloatArray, QueryView

_SIZES = 5
"""Batch sizes that are considered for a query that is left for later."""
_ALIKE_POINTS = 1.0
"""Batches whose gains differ by less are worth the same: the largest of them runs."""


class Later:
    """The value of a query that is left for a later batch, as a function of the slack it has then.

    It will be in a batch of the best size for the price, and pay for its share of that.

    Args:
        menu, rows: the variants that may serve it.
        items: of the query.
        price: points a second.
        miss_points: accuracy points that a query not served costs, besides its own.
    """

    def __init__(
        self, menu: Menu, rows: Sequence[int], items: int, price: float, miss_points: float
    ) -> None:
        sizes = np.unique(np.geomspace(items, menu.most, _SIZES).round().astype(np.intp))
        sure_s = menu.sure_s[rows][:, sizes - 1].ravel()
        share_s = (menu.busy_s[rows][:, sizes - 1] * (items / sizes)).ravel()
        share_s = np.where(np.isfinite(share_s), share_s, 0.0)  # sure_s is inf there
        points = np.repeat(menu.accuracy_percent[rows] + miss_points, len(sizes)) - price * share_s
        order = np.argsort(sure_s)
        self._slack_s = sure_s[order]
        self._points = np.concatenate([[0.0], np.maximum.accumulate(points[order]).clip(min=0.0)])

    def points(self, slack_s: FloatArray) -> FloatArray:
        """Returns the points that queries with these slacks are worth."""
        found: FloatArray = self._points[self._slack_s.searchsorted(slack_s, side="right")]
        return found


class Line(NamedTuple):
    """Queries of one queue that may all be served with the same variants, the most urgent first.

    Attributes:
        queries: m of them.
        slack_s: time to their deadlines, ascending, shape (m,).
        later: points that each is worth if it is left, shape (m,).
    """

    queries: Sequence[QueryView]
    slack_s: FloatArray
    later: FloatArray


class Terms(NamedTuple):
    """What a batch pays.

    Attributes:
        price: points a second.
        pressure: share of the time beyond its members' shares of a full batch that is charged.
        miss_points: see ``Later``.
        higher: the queries to expect that it may keep waiting.
        idle_s: in how many seconds another worker can serve those.
    """

    price: float
    pressure: float
    miss_points: float
    higher: Higher | None
    idle_s: float


class Batch(NamedTuple):
    """A batch, and the points that it gains over leaving its members for later.

    ``rest`` are queries of its queue that may fill it, the first rank's first.
    """

    gain: float
    variant_id: str
    queries: tuple[QueryView, ...]
    busy_s: float
    rest: Sequence[QueryView] = ()


def best_batch(menu: Menu, rows: Sequence[int], line: Line, terms: Terms) -> Batch | None:
    """Returns the batch with the highest gain; None if none is surely in time."""
    queries, slack_s, later = line
    items = np.concatenate([[0.0], np.cumsum([float(query.items) for query in queries])])
    left = np.concatenate([[0.0], np.cumsum(later)])
    most = min(menu.most, int(items[-1]))
    sure_s, busy_s = menu.sure_s[rows][:, :most], menu.busy_s[rows][:, :most]
    first = _first_members(sure_s, slack_s)
    end = items.searchsorted(items[first] + np.arange(1.0, most + 1.0), side="right") - 1
    members = end - first
    is_batch = (members > 0) & np.isfinite(busy_s)
    busy_s = np.where(is_batch, busy_s, 1.0)
    points = (menu.accuracy_percent[rows] + terms.miss_points)[:, None] * members
    if terms.higher is not None and terms.idle_s > 0.0:
        points = points - terms.higher.lost(np.minimum(busy_s, terms.idle_s))
    share_s = menu.item_s[rows] * (items[end] - items[first])
    charged_s = share_s + terms.pressure * np.maximum(busy_s - share_s, 0.0)
    net = np.where(is_batch, points - terms.price * charged_s, -np.inf)
    gain = net - (left[end] - left[first])
    if not is_batch.any():
        return None
    best_by = gain
    if net.max() < 0.0 < terms.price:  # nothing is worth the price: take the most points a second
        best_by = np.where(is_batch, points, -np.inf) / busy_s
    row, column = divmod(int(best_by.argmax()), most)
    best = float(gain[row, column])
    for wider in range(column + 1, most):
        if members[row, wider] > members[row, column]:
            if gain[row, wider] < best - _ALIKE_POINTS:
                break
            column = wider
    chosen = tuple(queries[int(first[row, column]) : int(end[row, column])])
    return Batch(best, menu.variant_ids[rows[row]], chosen, float(busy_s[row, column]))


def _first_members(sure_s: FloatArray, slack_s: FloatArray) -> npt.NDArray[np.intp]:
    """Returns the place of the first member of each batch, shape (v, n); m if none is in time.

    A batch begins with the most urgent query. Or, where that could not be in time in a full batch,
    with the first query that could: what is in a hurry must not split a long queue into small
    batches.
    """
    first = np.where(sure_s <= slack_s[0], 0, len(slack_s))
    relaxed = int(slack_s.searchsorted(sure_s[:, -1].min()))
    if 0 < relaxed < len(slack_s):
        in_time = (first > 0) & (sure_s <= slack_s[relaxed])
        first = np.where(in_time, relaxed, first)
    return first
