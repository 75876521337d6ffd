"""The best batch from one queue: every variant and number of members at once, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from modelless.policies.selection.best_value.menu import Menu, Suited
from modelless.policies.selection.best_value.pools import ToCome
from modelless.policies.views import FloatArray, QueryView

_ALIKE_POINTS = 1.0
"""Batches whose gains differ by less are worth the same: the quickest an item runs."""


class Line(NamedTuple):
    """Queries of one queue, the most urgent first.

    Attributes:
        queries: m of them.
        suited: the distinct variants that may serve one.
        which: of ``suited``, for each query.
        slack_s: time to their deadlines, ascending, m figures.
        later: points that each is worth if it is left, shape (m,).
    """

    queries: Sequence[QueryView]
    suited: Sequence[Suited]
    which: Sequence[int]
    slack_s: Sequence[float]
    later: FloatArray


class Terms(NamedTuple):
    """What a batch pays.

    Attributes:
        price: points a second.
        wanted: how far others want the worker, 0 to 1: the share of the time beyond its members'
            shares of a full batch that is charged.
        miss_points: accuracy points that a query not served costs, besides its own.
        to_come: the queries to expect that it may keep waiting.
        idle_s: in how many seconds another worker can serve those.
    """

    price: float
    wanted: float
    miss_points: float
    to_come: ToCome | None
    idle_s: float


class Batch(NamedTuple):
    """A batch, and the points that it gains over leaving its members for later."""

    gain: float
    row: int
    queries: tuple[QueryView, ...]
    busy_s: float


def best_batch(menu: Menu, line: Line, terms: Terms) -> Batch | None:
    """Returns the batch with the highest gain; None if none is surely in time.

    A batch of a variant has the first queries that the variant may serve.
    """
    can = np.array([suited.rows for suited in line.suited]).T[:, line.which]
    items = (can * np.array([query.items for query in line.queries])).cumsum(axis=1)
    rows = np.arange(len(can))[:, None]
    column = np.minimum(items, menu.most) - 1
    sure_s, busy_s = menu.sure_s[rows, column], menu.busy_s[rows, column]
    slack_s = np.array(line.slack_s)[can.argmax(axis=1)]
    is_batch = can & (items <= menu.most) & (sure_s <= slack_s[:, None]) & np.isfinite(busy_s)
    if not is_batch.any():
        return None
    members = can.cumsum(axis=1)
    busy_s = np.where(is_batch, busy_s, 1.0)
    points = (menu.accuracy_percent[:, None] + terms.miss_points) * members
    if terms.to_come is not None and terms.idle_s > 0.0:
        points = points - terms.to_come.lost(np.minimum(busy_s, terms.idle_s))
    share_s = menu.item_s * items
    charged_s = share_s + terms.wanted * np.maximum(busy_s - share_s, 0.0)
    net = points - terms.price * charged_s - (can * line.later).cumsum(axis=1)
    gain = np.where(is_batch, net, -np.inf)
    row, last = divmod(int(gain.argmax()), len(line.queries))
    best = float(gain[row, last])
    alike = np.flatnonzero(gain[row] >= best - _ALIKE_POINTS)[::-1]
    last = int(alike[(busy_s[row, alike] / items[row, alike]).argmin()])
    chosen = tuple([line.queries[place] for place in can[row, : last + 1].nonzero()[0].tolist()])
    return Batch(best, row, chosen, float(busy_s[row, last]))
