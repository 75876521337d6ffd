"""What each placement is worth to each kind of query: its points less the price of device time.

A second of a device class has a price: so much that the demand, each query taking the placement of
most points less price x time, fits into the time there is (the dual of the best mix of variants, as
in Proteus: Ahmad et al., ASPLOS 2024). It is found by damped steps of the logarithm of the price,
with the demand of a kind divided among placements in proportion to exp(gain / 2 points): without
that, demand would jump from one class to another with each step.

Where time is cheap, a slow query can still cost others their answers: those that come while it runs
and cannot wait. A query pays for them, or for its time, whichever is more. One that costs others
more than it brings is worth nothing: holding what serves it would only let it run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from modelless.policies.scaling.expected_value.offer import IntArray, Offer
from modelless.policies.scaling.expected_value.rates import KindRate
from modelless.policies.scopes import in_scope, task_of
from modelless.policies.views import FloatArray

_SURE = 1.1
"""A query on its own must take at most its limit divided by this."""
_LIMIT_PART = 0.5
"""The share of a limit in which queries gather for a batch, and the share that a batch may take."""
_SPREAD_POINTS = 2.0
_STEPS = 60
_LEAST_GAIN = 1e-4  # of the points, for a query that does not bring the price of its time
_LEAST_BLOCKED, _MOST_BLOCKED = 0.02, 0.99
_MOST_BUSY = 0.95


class Service(NamedTuple):
    """How placements would serve kinds.

    Attributes:
        rows: the placements of each kind's task, shape (k, v); -1 beyond the last.
        can: whether the placement meets the kind's limits, shape (k, v).
        alone_s: device time of a query on its own, seconds, shape (k, v); inf where it cannot.
        time_s: device time of a query in the batches that form, seconds; likewise.
    """

    rows: IntArray
    can: NDArray[np.bool_]
    alone_s: FloatArray
    time_s: FloatArray


class TaskWorth(NamedTuple):
    """The kinds of a task, and the placements of its variants.

    Attributes:
        rows: of the placements, shape (v,).
        rate_per_s: of the kinds, shape (k,).
        variance: of the rates, shape (k,).
        gain: points of a query with a placement less what it costs others, shape (k, v); 0 where
            the placement cannot serve it, or costs others more than it brings.
        blocked: probability that a worker with the placement cannot begin in time, shape (k, v).
    """

    rows: IntArray
    rate_per_s: FloatArray
    variance: FloatArray
    gain: FloatArray
    blocked: FloatArray


def service_of(kinds: Sequence[KindRate], offer: Offer) -> Service:
    """Returns how the placements would serve the kinds."""
    rows_of: defaultdict[str, list[int]] = defaultdict(list)
    for row, placement in enumerate(offer.placements):
        rows_of[task_of(placement.variant_id)].append(row)
    items_per_s: defaultdict[str, float] = defaultdict(float)
    for kind in kinds:
        items_per_s[task_of(kind.scope)] += kind.rate_per_s * kind.items
    width = max([len(rows_of[task_of(kind.scope)]) for kind in kinds], default=0)
    shape = (len(kinds), width)
    found = np.full(shape, -1, dtype=np.intp)
    alone_s, time_s = np.full(shape, np.inf), np.full(shape, np.inf)
    most = offer.batch_s.shape[1] - 1
    sizes = np.arange(1.0, most + 1.0)
    for number, kind in enumerate(kinds):
        task = task_of(kind.scope)
        rows = np.array(rows_of[task], dtype=np.intp)
        if not len(rows):
            continue
        found[number, : len(rows)] = rows
        fits = 100.0 * offer.accuracy[rows] >= kind.min_accuracy_percent - 1e-9
        if kind.scope != task:
            names = [offer.placements[row].variant_id for row in rows_of[task]]
            fits &= np.array([in_scope(name, kind.scope) for name in names])
        items = min(max(round(kind.items), 1), most)
        batch_s = offer.batch_s[rows, 1:]
        one_s = batch_s[:, items - 1]
        fits &= one_s * _SURE <= kind.latency_s
        forms = items + _LIMIT_PART * kind.latency_s * items_per_s[task]
        in_time = (batch_s <= _LIMIT_PART * kind.latency_s) & (sizes >= items) & (sizes <= forms)
        item_s = np.where(in_time, batch_s / sizes, np.inf).min(axis=1)
        item_s = np.minimum(item_s, one_s / items)
        alone_s[number, : len(rows)] = np.where(fits, one_s, np.inf)
        time_s[number, : len(rows)] = np.where(fits, item_s * items, np.inf)
    return Service(found, np.isfinite(time_s), alone_s, time_s)


def worth_of(
    kinds: Sequence[KindRate],
    offer: Offer,
    workers: FloatArray,
    busy: FloatArray,
    prices: Mapping[str, float],
    miss_points: float,
    utilisation: float,
) -> tuple[list[TaskWorth], dict[str, float]]:
    """Returns what the placements are worth by task, and the prices of time.

    Args:
        kinds: of queries.
        offer: the placements.
        workers: number of each device class, shape (d,).
        busy: share of their time in which they run batches, shape (d,).
        prices: points a second by device class, of the last time.
        miss_points: accuracy points that a query not served costs, besides its own.
        utilisation: the share of the workers' time that demand may fill.
    """
    service = service_of(kinds, offer)
    time_s = np.where(service.can, service.time_s, 0.0)
    rows = np.maximum(service.rows, 0)
    class_of = offer.class_of[rows]
    points = np.where(service.can, 100.0 * offer.accuracy[rows] + miss_points, 0.0)
    rates = np.array([kind.rate_per_s for kind in kinds])
    before = np.array([prices.get(name, 1.0) for name in offer.classes])
    price = _price(rates, points, time_s, class_of, service.can, utilisation * workers, before)
    held_up = _held_up(kinds, rates, service, points, class_of, workers, busy)
    paid = np.maximum(price[class_of] * time_s, held_up)
    gain = np.where(held_up < points, np.maximum(points - paid, _LEAST_GAIN * points), 0.0)
    blocked = _blocked(kinds, rates, service, gain, class_of, busy)
    of_task: defaultdict[str, list[int]] = defaultdict(list)
    for number, kind in enumerate(kinds):
        of_task[task_of(kind.scope)].append(number)
    variances = np.array([kind.variance for kind in kinds])
    worth = []
    for numbers in of_task.values():
        own = service.rows[numbers[0]]
        own = own[own >= 0]
        if not len(own):
            continue
        mine = np.ix_(numbers, range(len(own)))
        worth.append(TaskWorth(own, rates[numbers], variances[numbers], gain[mine], blocked[mine]))
    return worth, dict(zip(offer.classes, price.tolist(), strict=True))


def _price(
    rates: FloatArray,
    points: FloatArray,
    time_s: FloatArray,
    class_of: IntArray,
    can: NDArray[np.bool_],
    capacity_s: FloatArray,
    before: FloatArray,
) -> FloatArray:
    """Returns the price of a second of each class, points; see the module."""
    log = np.log(before)
    total = np.zeros_like(log)
    for step in range(_STEPS):
        gain = np.where(can, points - np.exp(log)[class_of] * time_s, -np.inf)
        best = gain.max(axis=1, keepdims=True, initial=0.0)
        share = np.exp(np.maximum(gain - best, -100.0) / _SPREAD_POINTS) * can
        share /= share.sum(axis=1, keepdims=True) + np.exp(
            -np.minimum(best, 100.0) / _SPREAD_POINTS
        )
        used_s = np.bincount(
            class_of.ravel(), (rates[:, None] * share * time_s).ravel(), minlength=len(log)
        )
        pull = np.log(np.maximum(used_s, 1e-9) / np.maximum(capacity_s, 1e-9))
        log = np.clip(log + np.clip(pull, -1.5, 1.5) / (1.0 + step / 4.0), -7.0, 16.0)
        total += log * (step >= _STEPS // 2)
    price: FloatArray = np.exp(total / (_STEPS - _STEPS // 2))
    return price


def _held_up(
    kinds: Sequence[KindRate],
    rates: FloatArray,
    service: Service,
    points: FloatArray,
    class_of: IntArray,
    workers: FloatArray,
    busy: FloatArray,
) -> FloatArray:
    """Returns the points that others lose while a query runs on its own, shape (k, v).

    A query that comes meanwhile and cannot wait is lost for it if no other worker that could serve
    it is idle, and this one would be.
    """
    limits_s = np.array([kind.latency_s for kind in kinds])
    points_per_s = rates * points.max(axis=1, initial=0.0)
    share = busy.clip(_LEAST_BLOCKED, _MOST_BUSY)
    classes = range(len(workers))
    runs = [(service.can & (class_of == number)).any(axis=1) for number in classes]
    all_busy = np.exp(np.stack(runs, axis=1) @ (workers * np.log(share)))
    held_up = np.zeros_like(points)
    for number in classes:
        mine = service.can & (class_of == number)
        least_s = np.where(mine, service.alone_s, np.inf).min(axis=1, initial=np.inf)
        some = np.flatnonzero(runs[number])
        some = some[np.argsort(limits_s[some] - least_s[some])]
        patience_s = limits_s[some] - least_s[some]
        others_busy = np.minimum(all_busy[some] / share[number], 1.0)
        lost_per_s = points_per_s[some] * others_busy * (1.0 - share[number])
        sums = np.concatenate([[0.0], np.cumsum(lost_per_s)])
        waits = np.concatenate([[0.0], np.cumsum(lost_per_s * patience_s)])
        at = patience_s.searchsorted(service.alone_s[mine])
        held_up[mine] = service.alone_s[mine] * sums[at] - waits[at]
    return held_up


def _blocked(
    kinds: Sequence[KindRate],
    rates: FloatArray,
    service: Service,
    gain: FloatArray,
    class_of: IntArray,
    busy: FloatArray,
) -> FloatArray:
    """Returns the probability that a worker with a placement cannot begin in time, shape (k, v).

    It is the higher of two: that the worker is busy for longer than the query can wait (the wait of
    an M/M/1 queue), and the share of the task's work that one worker cannot do.
    """
    best = gain.argmax(axis=1)[:, None]
    best_s = np.where(service.can, service.time_s, 0.0)
    work = rates * np.take_along_axis(best_s, best, 1)[:, 0]
    tasks = [task_of(kind.scope) for kind in kinds]
    by_task: defaultdict[str, float] = defaultdict(float)
    for task, each in zip(tasks, work.tolist(), strict=True):
        by_task[task] += each
    erlangs = np.array([by_task[task] for task in tasks])[:, None]
    alone_s = np.where(service.can, service.alone_s, 0.0)
    weight = rates[:, None] * service.can
    runs = np.bincount(class_of.ravel(), weight.ravel(), len(busy))
    taken_s = np.bincount(class_of.ravel(), (weight * alone_s).ravel(), len(busy))
    mean_s = np.maximum(taken_s / np.maximum(runs, 1e-12), 1e-4)
    limits_s = np.array([kind.latency_s for kind in kinds])[:, None]
    waits = np.minimum((limits_s - alone_s) / mean_s[class_of], 50.0)  # in mean batches
    share = np.minimum(busy, _MOST_BUSY)[class_of]
    late = share * np.exp(-(1.0 - share) * waits)
    beyond = 1.0 - 1.0 / np.maximum(erlangs, 1.0)
    highest = np.maximum(late, beyond)
    return np.where(service.can, highest.clip(_LEAST_BLOCKED, _MOST_BLOCKED), _MOST_BLOCKED)
