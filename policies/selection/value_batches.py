"""Which batch is worth most: every variant and size at once, as arrays.

What a batch is worth, and to whom it costs what, is told in ``best_value``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from modelless.policies.selection.value_menu import Menu
from modelless.policies.views import FloatArray, QueryView

_ALIKE_POINTS = 1.0  # accuracy points by which batches differ that are worth about the same
_BEHIND_COUNTED = 64  # waiting queries, the most urgent, whose delay by a batch is counted


class Stakes(NamedTuple):
    """What an answer in time is worth besides its accuracy, and how sure it must be.

    Attributes:
        miss_penalty: accuracy points that a query not answered in time costs, besides its own.
        caution: standard normal quantile of latency that must fit a deadline for a query to join.
    """

    miss_penalty: float
    caution: float


class Line(NamedTuple):
    """Queries of a queue that the worker can serve, as arrays of shape (n,), most urgent first.

    Attributes:
        work_s: device time that each takes at the least.
        later: accuracy points that each will be worth if it is left for now.
        hopeless: of the queue, not among ``queries``: nobody could serve them in time.
        left: how many are not among ``queries`` since another device will serve them better.
    """

    menu: Menu
    queries: tuple[QueryView, ...]
    slack_s: FloatArray
    min_accuracy: FloatArray
    items: NDArray[np.int_]
    work_s: FloatArray
    later: FloatArray
    hopeless: tuple[QueryView, ...]
    left: int


class Behind(NamedTuple):
    """What waits, and what keeping it waiting costs.

    Attributes:
        peers: workers that share the queues.
        slack_s, margin_s: of the most urgent that would be in time if all were served quickest:
            time to the deadline, and how much longer each could be kept waiting.
        by_line: the margins of all, line by line.
        item_s: device time of one item, served quickest.
        loss: accuracy points that are lost with a query.
        price: accuracy points a second of this worker is worth.
    """

    peers: float
    slack_s: FloatArray
    margin_s: FloatArray
    by_line: Sequence[FloatArray]
    item_s: float
    loss: float
    price: float


class Offer(NamedTuple):
    """The best batch from one queue."""

    worth: float
    variant_id: str
    queries: tuple[QueryView, ...]
    latency_s: float


def chance_in_time(slack_s: FloatArray, typical_s: FloatArray, spread: FloatArray) -> FloatArray:
    """Probability that a lognormal latency is within the slack; shapes are broadcast.

    The normal distribution function is taken as logistic (Bowling et al., 2009: within 0.01).
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        z = np.log(np.maximum(slack_s, 1e-9) / typical_s) / spread
        return np.nan_to_num(1.0 / (1.0 + np.exp(-1.702 * z)))


class _Batches(NamedTuple):
    """Every batch that comes into question: shape (v, k), of v variants and k sizes.

    Attributes:
        rows: the variants, rows of the menu, shape (v,).
        typical_s, spread: of latency.
        members: places of the queries in the line, shape (v, k, m).
        inside: which of those m are members of a batch of that size, shape (k, m).
    """

    rows: NDArray[np.intp]
    typical_s: FloatArray
    spread: FloatArray
    members: NDArray[np.intp]
    inside: NDArray[np.bool_]


def what_waits(lines: Sequence[Line], peers: float, price: float, stakes: Stakes) -> Behind:
    """How long each waiting query could be kept from being served, were all served quickest."""
    slack_s = np.concatenate([line.slack_s for line in lines])
    work_s = np.concatenate([line.work_s for line in lines])
    order = np.argsort(slack_s, kind="stable")
    margin_s = np.empty(len(slack_s))
    margin_s[order] = slack_s[order] - np.cumsum(work_s[order]) / peers
    ends = np.cumsum([len(line.slack_s) for line in lines])
    kept = order[:_BEHIND_COUNTED]
    kept = kept[(margin_s[kept] >= 0.0) & (margin_s[kept] < np.inf)]
    return Behind(
        peers,
        slack_s[kept],
        margin_s[kept],
        np.split(margin_s, ends[:-1]),
        float(work_s.mean()) if len(work_s) else math.inf,
        max(float(line.menu.accuracy_percent[-1]) for line in lines) + stakes.miss_penalty,
        price,
    )


def best_batch(line: Line, margin_s: FloatArray, behind: Behind, stakes: Stakes) -> Offer | None:
    """The batch from one queue that is worth most on this worker; None if there is none.

    Args:
        line: what there is to choose from.
        margin_s: how much longer each could be kept waiting, shape (n,).
        behind: all that waits.
        stakes: what is at stake.
    """
    best: Offer | None = None
    levels = np.unique(line.min_accuracy)
    # Variants that may serve just the same queries are looked at together.
    reach = np.searchsorted(levels, line.menu.accuracy_percent, side="right")
    for step, level in enumerate(levels, start=1):
        rows = np.flatnonzero(reach == step)
        allowed = np.flatnonzero(line.min_accuracy <= level)
        batches = _form(line, rows, allowed, stakes.caution) if len(rows) else None
        if batches is not None:
            worth = _worth(line, batches, margin_s, behind, stakes)
            offer = _best_of(line, batches, worth)
            if offer is not None and (best is None or offer.worth > best.worth):
                best = offer
    return best


def _form(
    line: Line, rows: NDArray[np.intp], allowed: NDArray[np.intp], caution: float
) -> _Batches | None:
    """For every variant and number of queries, the most urgent that would be in time.

    Where queries are of several items each: just the most urgent, as many as fit.
    """
    menu = line.menu
    most = menu.typical_s.shape[1]
    items = line.items[allowed]
    if (items != 1).any():
        counts = np.cumsum(items[:most])
        counts = counts[counts <= most]
        if not len(counts):
            return None
        sizes = np.arange(1, len(counts) + 1)
        columns = counts - 1
    else:
        sizes = np.arange(1, min(most, len(allowed)) + 1)
        columns = sizes - 1
    typical_s, spread = menu.typical_s[np.ix_(rows, columns)], menu.spread[np.ix_(rows, columns)]
    if (items != 1).any():
        first = np.zeros(typical_s.shape, dtype=np.intp)
    else:
        first = np.searchsorted(line.slack_s[allowed], typical_s * np.exp(caution * spread))
        first = np.minimum(first, len(allowed) - sizes)  # some late ones too, at their chance
    offsets = np.arange(len(sizes))
    members = allowed[np.minimum(first[:, :, None] + offsets, len(allowed) - 1)]
    return _Batches(rows, typical_s, spread, members, offsets < sizes[:, None])


def _worth(
    line: Line, batches: _Batches, margin_s: FloatArray, behind: Behind, stakes: Stakes
) -> FloatArray:
    """What each batch is worth, accuracy points, shape (v, k); -inf where its time is unknown."""
    typical_s, members, inside = batches.typical_s, batches.members, batches.inside
    slack_s = line.slack_s[members]
    chance = chance_in_time(slack_s, typical_s[:, :, None], batches.spread[:, :, None])
    chance = np.where(inside, chance, 0.0)
    accuracy = line.menu.accuracy_percent[batches.rows]
    # Not served is worth nothing; served late is worse, it took the device's time for that.
    value = (accuracy + stakes.miss_penalty)[:, None] * chance.sum(axis=2)
    value -= stakes.miss_penalty * inside.sum(axis=1)
    # Being served now is worth only what it is more than being served later.
    later = np.maximum(line.later, -stakes.miss_penalty)
    value -= (later[members] * inside).sum(axis=2)
    # Who is less urgent than the batch waits for it anyway: only what it takes beyond the
    # quickest way delays them. Who is more urgent is delayed by all of it.
    most_s = typical_s / behind.peers
    excess_s = most_s - (line.work_s[members] * inside).sum(axis=2) / behind.peers
    is_ahead = behind.slack_s < slack_s[:, :, :1]
    delay_s = np.where(is_ahead, most_s[:, :, None], excess_s[:, :, None])
    lost = (behind.margin_s < delay_s).sum(axis=2)
    own_s = margin_s[members]
    lost -= (inside & (own_s >= 0.0) & (own_s < excess_s[:, :, None])).sum(axis=2)
    lost = np.minimum(lost, typical_s / behind.item_s)  # so many could be served instead
    known = np.isfinite(typical_s)
    cost = behind.price * np.where(known, typical_s, 0.0)
    return np.where(known, value - cost - behind.loss * lost, -np.inf)


def _best_of(line: Line, batches: _Batches, worth: FloatArray) -> Offer | None:
    row, column = divmod(int(worth.argmax()), worth.shape[1])
    if worth[row, column] == -np.inf:
        return None
    # Of sizes worth about the same, the largest: it saves time, whatever that is worth just now.
    column = int(np.flatnonzero(worth[row] >= worth[row, column] - _ALIKE_POINTS)[-1])
    chosen = batches.members[row, column][batches.inside[column]]
    return Offer(
        float(worth[row, column]),
        line.menu.variant_ids[int(batches.rows[row])],
        tuple(line.queries[int(place)] for place in chosen),
        float(batches.typical_s[row, column]),
    )
