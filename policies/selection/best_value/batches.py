"""Which batch is worth most: every variant and size at once, as arrays.

What a batch is worth is told in ``best_value``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from modelless.policies.selection.best_value.menu import log_of
from modelless.policies.selection.best_value.table import ValueTable
from modelless.policies.views import FloatArray, QueryView

_ALIKE_POINTS = 1.0  # accuracy points by which batches differ that are worth about the same


class Coming(NamedTuple):
    """Queries of higher priorities that come while a batch runs.

    Attributes:
        points_per_s: what each kind of them is worth, accuracy points a second; shape (m,).
        patience_s: how long each kind can wait for a worker and still be in time; shape (m,).
        next_idle_s: in how many seconds another worker that can serve them falls idle.
    """

    points_per_s: FloatArray
    patience_s: FloatArray
    next_idle_s: float

    def lost(self, busy_s: FloatArray) -> FloatArray:
        """Accuracy points that are lost of them to batches that keep the worker so long."""
        blocked_s = np.minimum(busy_s, self.next_idle_s)[..., None] - self.patience_s
        lost: FloatArray = np.maximum(blocked_s, 0.0) @ self.points_per_s
        return lost


class Line(NamedTuple):
    """Queries of a queue that the worker can serve, most urgent first.

    Attributes:
        table: what the worker offers for them, and what they are worth to others like it.
        queries: n of them.
        slack_s: time to each one's deadline.
        reach: how many of the menu's variants, from the first, may serve each.
        next_idle_s: in how many seconds a worker of the class, or this one again, falls idle.
        pressure: how far what waits fills batches for all workers, 0 to 1: so much of the time that
            a batch takes beyond its items' share would else be others'.
        calm: what those are worth who have longer than ``patient_s``: a crowd will have gone by
            then, and time be worth less. None: no less.
        patient_s: see there.
        coming: of higher priorities; None if there are none.
    """

    table: ValueTable
    queries: Sequence[QueryView]
    slack_s: Sequence[float]
    reach: Sequence[int]
    next_idle_s: float
    pressure: float
    calm: ValueTable | None = None
    patient_s: float = math.inf
    coming: Coming | None = None

    def later(self) -> list[float]:
        """What each query will be worth if it is left for now, accuracy points."""
        worth, next_idle_s = self.table.worth, self.next_idle_s
        left = [slack_s - next_idle_s for slack_s in self.slack_s]
        if self.calm is None or self.calm is self.table:  # no crowd
            return [worth(left_s, reach) for left_s, reach in zip(left, self.reach, strict=True)]
        calm, patient_s = self.calm.worth, self.patient_s
        return [
            calm(left_s, reach) if left_s > patient_s else worth(left_s, reach)
            for left_s, reach in zip(left, self.reach, strict=True)
        ]

    def patient(self) -> list[int]:
        """Who is, left for now, still patient, as places."""
        least_s = self.patient_s + self.next_idle_s
        return [place for place, slack_s in enumerate(self.slack_s) if slack_s > least_s]

    def only(self, places: Sequence[int]) -> Line:
        """These of them."""
        return Line(
            self.table,
            [self.queries[place] for place in places],
            [self.slack_s[place] for place in places],
            [self.reach[place] for place in places],
            self.next_idle_s,
            self.pressure,
            self.calm,
            self.patient_s,
            self.coming,
        )


class Offer(NamedTuple):
    """The best batch from one queue.

    Attributes:
        worth: accuracy points it gains over leaving its members for later, the price paid.
        variant_id, queries: what runs, and whom it serves.
        busy_s, latency_s: how long it keeps the worker, and takes until it is back, at the median.
    """

    worth: float
    variant_id: str
    queries: tuple[QueryView, ...]
    busy_s: float
    latency_s: float


def best_batch(line: Line) -> Offer | None:
    """The batch from one queue that is worth most; None if there is none."""
    best: Offer | None = None
    first = 0
    later_of = line.later()
    log_slack = log_of(line.slack_s)
    # Variants that may serve just the same queries are looked at together.
    for reach in sorted(set(line.reach)):
        rows = slice(first, reach)
        first = reach
        allowed = [place for place, own in enumerate(line.reach) if own >= reach]
        for places in _starts(line, rows, allowed):
            columns, members = _columns(line, places)
            if not members:
                continue
            later = [later_of[place] for place in members]
            if best is not None and line.table.at_most(rows, later) <= best.worth:
                continue
            offer = _best_of(line, rows, columns, members, later, log_slack)
            if offer is not None and (best is None or offer.worth > best.worth):
                best = offer
    return best


def best_for_now(line: Line) -> Offer | None:
    """``best_batch``; but if only the patient are in it, and would do better later, their best now.

    It runs if nobody else wants the device. Where every member is a loss, the batch that loses
    least is the smallest, which would waste the time that is dear just now.
    """
    offer = best_batch(line)
    if offer is None or offer.worth >= 0.0 or line.calm is None or line.calm is line.table:
        return offer
    patient = line.patient()
    if not patient or offer.queries[0] is not line.queries[patient[0]]:
        return offer
    whole = best_batch(line.only(patient)._replace(calm=None))
    return whole._replace(worth=offer.worth) if whole is not None else offer


def _starts(line: Line, rows: slice, allowed: list[int]) -> list[list[int]]:
    """Whom to look at: the most urgent; and if those are in a hurry, those who are not, too."""
    menu = line.table.menu
    most = menu.most
    surely_s = menu.surely_s(rows, min(most, len(allowed)))
    if line.slack_s[allowed[0]] >= surely_s:
        return [allowed[:most]]
    relaxed = [place for place in allowed if line.slack_s[place] >= surely_s]
    return [allowed[:most], relaxed[:most]] if relaxed else [allowed[:most]]


def _best_of(
    line: Line,
    rows: slice,
    columns: slice | NDArray[np.intp],
    members: list[int],
    later: list[float],
    log_slack: FloatArray,
) -> Offer | None:
    """The best batch of the first of ``members``, with one of the variants in ``rows``.

    Args:
        line, rows: where to look.
        columns: those of the menu for the first member, the first two, and so on.
        members: k places in the line.
        later: what each of them is worth if left.
        log_slack: of the whole line; see ``value_menu.log_of``.
    """
    table, count = line.table, len(members)
    menu, penalty, price = table.menu, table.penalty, table.price
    part = menu.part(rows, columns)
    are_first = members[-1] == count - 1
    chance = part.chance(log_slack[:count] if are_first else log_slack[members])
    chance *= _inside(count)  # of a batch of the first few, the first few count
    worth = np.add.reduce(chance, axis=0)  # (v, k): how many are served, by row and size
    worth *= part.accuracy_percent + penalty
    worth -= [left + penalty * number for number, left in enumerate(accumulate(later), 1)]
    if price > 0.0:
        waited = _waited(line.queries[members[0]], line.slack_s[members[0]])
        pressure = max(waited, line.pressure)
        worth -= price * (part.share_s + pressure * part.waste_s)
    if line.coming is not None:
        worth -= line.coming.lost(part.busy_s)
    if part.unknown is not None:
        worth[part.unknown] = -np.inf
    row, column = divmod(int(worth.argmax()), worth.shape[1])
    most = float(worth[row, column])
    if most == -np.inf:
        return None
    # Of sizes worth about the same, the largest: it saves time, whatever that is worth just now.
    while column + 1 < len(members) and worth[row, column + 1] >= most - _ALIKE_POINTS:
        column += 1
    at = column if isinstance(columns, slice) else columns[column]
    return Offer(
        most,
        menu.variant_ids[rows.start + row],
        tuple([line.queries[place] for place in members[: column + 1]]),
        float(part.busy_s[row, column]),
        float(menu.typical_s[rows.start + row, at]),
    )


def _waited(query: QueryView, slack_s: float) -> float:
    """The share of its limit that a query has spent waiting, 0 to 1."""
    limit_s = query.deadline_s - query.arrival_s
    if not 0.0 < limit_s < math.inf:
        return 0.0
    return min(max(1.0 - slack_s / limit_s, 0.0), 1.0)


@lru_cache(maxsize=128)
def _inside(count: int) -> FloatArray:
    """1 at [i, 0, j] if member i is one of the first j + 1."""
    inside: FloatArray = np.tri(count).T[:, None, :].copy()
    inside.flags.writeable = False
    return inside


def _columns(line: Line, places: list[int]) -> tuple[slice | NDArray[np.intp], list[int]]:
    """The menu's column for the first, the first two and so on; and those who fit."""
    items = [line.queries[place].items for place in places]
    if max(items) == 1:
        return slice(0, len(places)), places
    sums = np.cumsum(items)
    fitting = sums[sums <= line.table.menu.most]
    return fitting - 1, places[: len(fitting)]
