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

_ALIKE_POINTS = 1.0
_BEHIND_COUNTED = 64  # queries behind a batch whose lateness is counted


class Stakes(NamedTuple):
    """What an answer in time is worth besides its accuracy, and how sure it must be.

    Attributes:
        miss_penalty: accuracy points that a query not answered in time costs, besides its own.
        caution: standard normal quantile of latency that must fit a deadline for a query to join.
    """

    miss_penalty: float
    caution: float


class Line(NamedTuple):
    """A queue as arrays of shape (n,), most urgent first.

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


def what_waits(lines: Sequence[Line], peers: float, price: float, stakes: Stakes) -> Behind:
    """How long each waiting query could be kept from being served, were all served quickest."""
    slack_s = np.concatenate([line.slack_s for line in lines])
    work_s = np.concatenate([line.work_s for line in lines])
    servable = np.isfinite(work_s)  # what this worker cannot serve, others must
    order = np.argsort(slack_s, kind="stable")
    margin_s = np.full(len(slack_s), np.inf)
    done_s = np.cumsum(np.where(servable, work_s, 0.0)[order]) / peers
    margin_s[order] = slack_s[order] - done_s
    margin_s[~servable] = np.inf
    ends = np.cumsum([len(line.slack_s) for line in lines])
    kept = order[:_BEHIND_COUNTED]
    kept = kept[(margin_s[kept] >= 0.0) & (margin_s[kept] < np.inf)]
    item_s = float(work_s[servable].mean()) if servable.any() else math.inf
    least = [float(line.menu.accuracy_percent[-1]) for line in lines if line.menu.variant_ids]
    return Behind(
        peers,
        slack_s[kept],
        margin_s[kept],
        np.split(margin_s, ends[:-1]),
        item_s,
        max(least, default=0.0) + stakes.miss_penalty,
        price,
    )


def best_batch(line: Line, margin_s: FloatArray, behind: Behind, stakes: Stakes) -> Offer | None:
    """The batch from one queue that is worth most on this worker; None if none is in time."""
    menu = line.menu
    best_offer: Offer | None = None
    if not len(menu.variant_ids) or not line.queries:
        return None
    levels = np.unique(line.min_accuracy)
    # Variants that may serve just the same queries are looked at together.
    reach = np.searchsorted(levels, menu.accuracy_percent, side="right")
    for step in range(1, len(levels) + 1):
        rows = np.flatnonzero(reach == step)
        if not len(rows):
            continue
        allowed = np.flatnonzero(line.min_accuracy <= levels[step - 1])
        offer = _best_of(line, rows, allowed, margin_s, behind, stakes)
        if offer is not None and (best_offer is None or offer.worth > best_offer.worth):
            best_offer = offer
    return best_offer


def _best_of(
    line: Line,
    rows: NDArray[np.intp],
    allowed: NDArray[np.intp],
    margin_s: FloatArray,
    behind: Behind,
    stakes: Stakes,
) -> Offer | None:
    """The best batch of ``allowed`` queries with one of the variants in ``rows``.

    For every variant and number of queries, the batch is of the most urgent that would be in
    time; arrays are of shape (variants, numbers) and (variants, numbers, members).
    """
    menu = line.menu
    most = menu.typical_s.shape[1]
    slack_s = line.slack_s[allowed]
    items = line.items[allowed]
    if (items != 1).any():  # the most urgent, as many as fit
        counts = np.cumsum(items[:most])
        numbers = np.flatnonzero(counts <= most)
        if not len(numbers):
            return None
        columns = counts[numbers] - 1
        sizes = numbers + 1
        typical_s = menu.typical_s[np.ix_(rows, columns)]
        spread = menu.spread[np.ix_(rows, columns)]
        first = np.zeros(typical_s.shape, dtype=np.intp)
    else:
        sizes = np.arange(1, min(most, len(allowed)) + 1)
        typical_s = menu.typical_s[rows, : len(sizes)]
        spread = menu.spread[rows, : len(sizes)]
        needed_s = typical_s * np.exp(stakes.caution * spread)
        first = np.searchsorted(slack_s, needed_s)
        first = np.minimum(first, len(allowed) - sizes)  # some late ones too, at their chance
    offsets = np.arange(len(sizes))
    member = first[:, :, None] + offsets
    inside = offsets < sizes[:, None]  # (numbers, members)
    member = np.minimum(member, len(allowed) - 1)
    chance = chance_in_time(slack_s[member], typical_s[:, :, None], spread[:, :, None])
    chance = np.where(inside, chance, 0.0)
    accuracy = menu.accuracy_percent[rows]
    # Not served is worth nothing; served late is worse, it took the device's time for that.
    value = (accuracy + stakes.miss_penalty)[:, None] * chance.sum(axis=2)
    value -= stakes.miss_penalty * sizes
    # Being served now is worth only what it is more than being served later.
    later = np.maximum(line.later[allowed], -stakes.miss_penalty)
    value -= (later[member] * inside).sum(axis=2)
    # Who is less urgent than the batch waits for it anyway: only what it takes beyond the
    # quickest way delays them. Who is more urgent is delayed by all of it.
    most_s = typical_s / behind.peers
    excess_s = most_s - (line.work_s[allowed][member] * inside).sum(axis=2) / behind.peers
    is_ahead = behind.slack_s < slack_s[first][:, :, None]
    delay_s = np.where(is_ahead, most_s[:, :, None], excess_s[:, :, None])
    lost = (behind.margin_s < delay_s).sum(axis=2)
    own_s = margin_s[allowed][member]
    lost -= (inside & (own_s >= 0.0) & (own_s < excess_s[:, :, None])).sum(axis=2)
    lost = np.minimum(lost, typical_s / behind.item_s)  # so many could be served instead
    worth = value - behind.price * typical_s - behind.loss * lost
    worth = np.where(np.isfinite(typical_s), worth, -np.inf)
    if not len(worth):
        return None
    row, column = divmod(int(worth.argmax()), worth.shape[1])
    if worth[row, column] == -np.inf:
        return None
    # Of sizes worth about the same, the largest: it saves time, whatever that is worth just now.
    column = int(np.flatnonzero(worth[row] >= worth[row, column] - _ALIKE_POINTS)[-1])
    chosen = allowed[member[row, column][inside[column]]]
    return Offer(
        float(worth[row, column]),
        menu.variant_ids[int(rows[row])],
        tuple(line.queries[int(index)] for index in chosen),
        float(typical_s[row, column]),
    )
