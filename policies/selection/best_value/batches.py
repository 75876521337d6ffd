"""The best batch from one queue: every variant, with every number of members."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, compress, count, repeat
from typing import NamedTuple

import numpy as np

from modelless.policies.selection.best_value.menu import Menu, Suited
from modelless.policies.selection.best_value.pools import ToCome
from modelless.policies.views import QueryView

_ALIKE_POINTS = 1.0
"""Batches whose gains differ by less are worth the same: the quickest an item runs."""


class Member(NamedTuple):
    """A query that a batch may have.

    Attributes:
        suited: the variants that may serve it.
        slack_s: time to its deadline.
        later: points that it is worth if it is left.
    """

    query: QueryView
    suited: Suited
    slack_s: float
    later: float


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
    to_come: ToCome
    idle_s: float


class Batch(NamedTuple):
    """A batch, and the points that it gains over leaving its members for later."""

    gain: float
    row: int
    queries: tuple[QueryView, ...]
    busy_s: float


def best_batch(menu: Menu, line: Sequence[Member], terms: Terms) -> Batch | None:
    """Returns the batch with the highest gain; None if none is surely in time.

    A batch of a variant has the first queries that the variant may serve.

    Args:
        menu: of the queue.
        line: queries of the queue, the most urgent first.
        terms: which.
    """
    price, wanted, miss_points, to_come, idle_s = terms
    lost = None
    if idle_s > to_come.least_s:
        busy_s = np.where(np.isfinite(menu.busy_s), menu.busy_s, 0.0)
        lost = to_come.lost(np.minimum(busy_s, idle_s)).tolist()
    best, found = -math.inf, None
    known: dict[tuple[bool, ...], tuple[list[Member], list[int], list[float]]] = {}
    accuracies = menu.accuracy_percent.tolist()
    for row, may in enumerate(zip(*[member.suited.may for member in line], strict=True)):
        if may not in known:  # the members of such variants; by number of them, column and worth
            members = list(compress(line, may))
            items = accumulate([member.query.items for member in members])
            columns = [each - 1 for each in items if each <= menu.most]
            known[may] = members, columns, list(accumulate([each.later for each in members]))
        members, columns, later = known[may]
        points, cells = accuracies[row] + miss_points, map(menu.cells[row].__getitem__, columns)
        losses = map(lost[row].__getitem__, columns) if lost is not None else repeat(0.0)
        slack_s = members[0].slack_s if members else 0.0
        # One after the other: for a few dozens that is quicker than a dozen calls with arrays.
        gains = [
            points * number - loss - price * (share_s + wanted * beyond_s) - worth
            if sure_s <= slack_s
            else -math.inf
            for number, (sure_s, share_s, beyond_s), loss, worth in zip(
                count(1), cells, losses, later, strict=False
            )
        ]
        if gains and (gain := max(gains)) > best:
            best, found = gain, (row, members, columns, gains)
    if found is None:
        return None
    row, members, columns, gains = found
    busy_s = menu.busy_s[row, columns].tolist()
    alike = [place for place, gain in enumerate(gains) if gain >= best - _ALIKE_POINTS]
    last = min(reversed(alike), key=lambda place: busy_s[place] / (columns[place] + 1))
    return Batch(best, row, tuple([each.query for each in members[: last + 1]]), busy_s[last])
