"""Residuals: where a placement's latencies lie now compared with its profile, under load.

The module is sans-I/O and bounded. A single observation moves a known placement by at most about 5
%.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from modelless.profiler.cost_model.online.columns import IntArray, make_column
from modelless.variants.estimates import FloatArray

KNOTS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0)
"""The busy neighbours at which the slope of the contention curve may change.

Neighbours first use idle cores, then fill shared caches and bandwidth, then share the cores. Beyond
the last knot the last slope continues."""

_SEGMENTS = tuple(pairwise((*KNOTS, float("inf"))))


@lru_cache(maxsize=256)
def reach_of(busy_neighbours: float) -> tuple[float, ...]:
    """Returns how far so many busy neighbours, 0 or more, reach into each segment of the curve."""
    return tuple(
        min(busy_neighbours, end) - start for start, end in _SEGMENTS if busy_neighbours > start
    )


@lru_cache(maxsize=256)
def energy_of(busy_neighbours: float) -> float:
    """Returns the squared length of ``reach_of``, for normalised least mean squares."""
    return sum(reach * reach for reach in reach_of(busy_neighbours))


class ContentionCurve:
    """The log of the slowdown by busy neighbours on one device class; it learns.

    The curve is piecewise linear, starts at 0 and never falls. A segment without observations has
    the slope of the segment before it.

    Args:
        prior: slope before any observation, log latency per neighbour; the curve fades to it.
        most: upper bound of every slope and of the prior.
    """

    __slots__ = ("_most", "_prior", "_seen", "_slopes")

    def __init__(self, prior: float, most: float) -> None:
        self._most = most
        self._prior = min(max(prior, 0.0), most)
        self._slopes = [self._prior] * len(_SEGMENTS)
        self._seen = 1  # segments from the left with observations

    def at(self, busy_neighbours: float) -> float:
        """Returns the log of the slowdown by so many busy neighbours, 0 or more."""
        total = 0.0
        for slope, reach in zip(self._slopes, reach_of(busy_neighbours), strict=False):
            total += slope * reach
        return total

    def learn(self, busy_neighbours: float, step: float) -> None:
        """Move the curve at ``busy_neighbours`` by ``step`` times ``energy_of`` them.

        Slopes stay between 0 and the bound, so the curve never falls.
        """
        slopes, most = self._slopes, self._most
        reaches = reach_of(busy_neighbours)
        self._seen = max(self._seen, len(reaches))
        for number, reach in enumerate(reaches):
            slope = slopes[number] + step * reach
            slopes[number] = 0.0 if slope < 0.0 else min(slope, most)
        self._extend_last_slope()

    def fade(self, keep: float) -> None:
        """Keep only the share ``keep`` of what was learned."""
        self._slopes = [self._prior + keep * (slope - self._prior) for slope in self._slopes]

    def _extend_last_slope(self) -> None:
        """Give segments without observations the slope of the last one with observations."""
        for number in range(self._seen, len(_SEGMENTS)):
            self._slopes[number] = self._slopes[self._seen - 1]


_RATE = 0.1
"""The weight of a new log ratio; the first few weigh more (1/n)."""
_CLIP = 0.5
"""The most that a log ratio may deviate; more counts as this."""
_MOST_LOG = math.log(10.0)
"""The bound of the log of a placement's factor, to either side."""
_MOST_NEIGHBOUR_LOG = math.log(3.0)
"""The upper bound of the log of the factor for one busy neighbour."""
_OWN_WEIGHT = 2.0
"""The outcomes of a placement that weigh as much as its class."""
CLASS_WEIGHT = 2.0
"""The placements that weigh as much, for their class, as the profile itself."""
_MOST_NEIGHBOURS = 64.0
_MOST_OUTCOMES = 20.0 / _RATE
"""The number of outcomes beyond which more do not count: 20 times the mean's memory."""
_AFTER_SHIFT = 2.0
"""The weight in outcomes of a placement's residual after a shift."""
_OWN_LOAD_SHARE = 0.25
"""The learning rate of a placement's own part of the contention, relative to its class's curve."""


class Residuals:
    """The log of observed over measured latency, for n rows, each in one of several groups.

    Groups are device classes. A row's residual on an idle host is an exponentially weighted mean of
    its outcomes. It is shrunk towards its group's residual, which is the mean of its rows shrunk
    towards 0 (the empirical Bayes estimate of a random effect; Efron and Morris, JASA 1975). A row
    without outcomes therefore has its group's residual, a row with many its own. Under load the
    group's ``ContentionCurve`` and the row's own deviation from it are added. All follow the error
    by clipped, normalised steps (NLMS).

    Args:
        groups: index of each row's group.
        contention: log of each row's slowdown by one busy neighbour, known beforehand.
    """

    def __init__(self, groups: Sequence[int], contention: Sequence[float]) -> None:
        count, group_count = len(groups), max(groups, default=-1) + 1
        self._groups = list(groups)
        self._group_of_row = np.asarray(self._groups, dtype=np.intp)
        self._mean, self._means = make_column(count)
        self._outcomes, self._outcome_counts = make_column(count)
        self._weighted = [0.0] * group_count
        self._weight = [0.0] * group_count
        # For ``locations``: the row's own part of the estimate, and the group's share in it.
        self._own, self._owns = make_column(count)
        self._shared, self._shares = make_column(count)
        self._shares += 1.0
        priors = [0.0] * group_count
        for group in set(self._groups):
            members = [contention[row] for row, its in enumerate(self._groups) if its == group]
            priors[group] = sum(members) / len(members)
        bound = _MOST_NEIGHBOUR_LOG
        self._curves = [ContentionCurve(prior, bound) for prior in priors]
        at_one = _saturation(1.0)
        self._load_prior, self._load_priors = make_column(count)
        self._load_priors[:] = [
            min(max((log - priors[group]) / at_one, -bound), bound)
            for log, group in zip(contention, self._groups, strict=True)
        ]
        self._own_load, self._own_loads = make_column(count)  # from the prior on
        self._trust, self._trusts = make_column(count)
        self._trusts += 1.0

    def location(self, row: int, busy_neighbours: float) -> float:
        """Returns the log of the expected ratio of one row under a load."""
        return self.idle(row) + self.contention(row, busy_neighbours)

    def idle(self, row: int) -> float:
        """Returns ``location`` on an idle host."""
        return self._own[row] + self._shared[row] * self._group_mean(self._groups[row])

    def idle_if(self, row: int, trust: float) -> float:
        """Returns ``idle`` if that share of what was learned of the row were trusted."""
        shared = self._shared[row]
        own = (1.0 - shared) * trust * self._mean[row]
        return own + shared * self._group_mean(self._groups[row])

    def contention(self, row: int, busy_neighbours: float) -> float:
        """Returns the log of the row's slowdown by its busy neighbours, 0 or more."""
        load = _bounded(busy_neighbours)
        if not load:
            return 0.0
        own = self._load_prior[row] + self._trust[row] * self._own_load[row]
        log = self._curves[self._groups[row]].at(load) + _saturation(load) * own
        return min(max(log, 0.0), _MOST_LOG)

    def locations(self, rows: IntArray, busy_neighbours: float) -> FloatArray:
        """Returns ``location`` of many rows, shape (n,)."""
        groups = self._group_of_row.take(rows)
        logs: FloatArray = self._shares.take(rows)
        logs *= np.array([self._group_mean(g) for g in range(len(self._weight))]).take(groups)
        logs += self._owns.take(rows)
        load = _bounded(busy_neighbours)
        if load:
            slowed = np.array([curve.at(load) for curve in self._curves]).take(groups)
            own = self._own_loads.take(rows) * self._trusts.take(rows) + self._load_priors.take(
                rows
            )
            slowed += _saturation(load) * own
            np.clip(slowed, 0.0, _MOST_LOG, out=slowed)
            logs += slowed
        return logs

    def learn(self, row: int, ratio_log: float, contention_log: float, load: float) -> None:
        """Learn from one outcome.

        Args:
            row: the row.
            ratio_log: log of observed latency over measured median.
            contention_log: ``contention(row, load)``.
            load: number of busy neighbours.
        """
        group = self._groups[row]
        load = _bounded(load)
        outcomes = self._outcomes[row]
        mean = self._mean[row] if outcomes else self._group_mean(group)
        error = ratio_log - contention_log - mean
        if not -_CLIP < error < _CLIP:
            error = math.copysign(_CLIP, error)
        if load:
            share = _saturation(load)
            error /= 1.0 + _OWN_LOAD_SHARE * share * share + energy_of(load)
            step = _RATE * error
            self._curves[group].learn(load, step)
            limit, prior = _MOST_NEIGHBOUR_LOG, self._load_prior[row]
            own = prior + self._own_load[row] + _OWN_LOAD_SHARE * step * share
            self._own_load[row] = max(-limit, min(limit, own)) - prior
        outcomes += 1.0
        rate = 1.0 / outcomes
        mean += (rate if rate > _RATE else _RATE) * error
        if not -_MOST_LOG < mean < _MOST_LOG:
            mean = math.copysign(_MOST_LOG, mean)
        if outcomes > _MOST_OUTCOMES:
            outcomes = _MOST_OUTCOMES
        self._store(row, mean, outcomes)

    def forget(self, row: int) -> None:
        """Let a row that has shifted weigh its next outcomes more than those before."""
        self._store(row, self._mean[row], min(self._outcomes[row], _AFTER_SHIFT))

    def keep(self, row: int, share: float) -> None:
        """Keep only a share of what was learned of a row, and trust that."""
        self._own_load[row] *= share
        self._store(row, share * self._mean[row], self._outcomes[row])

    def trust(self, share: FloatArray) -> None:
        """Trust only a share of what was learned of each row, shape (rows,)."""
        self._trusts[:] = share
        weights = self._outcome_counts / (self._outcome_counts + _OWN_WEIGHT)
        self._shares[:] = 1.0 - weights
        weights *= share
        self._owns[:] = weights * self._means
        groups = len(self._weight)
        self._weight = np.bincount(self._group_of_row, weights, groups).tolist()
        self._weighted = np.bincount(self._group_of_row, self._owns, groups).tolist()

    def fade_curves(self, keep: float) -> None:
        """Keep only a share of what was learned of contention."""
        for curve in self._curves:
            curve.fade(keep)

    def _store(self, row: int, mean: float, outcomes: float) -> None:
        """Store and trust a row's mean and outcomes, also for its group and ``locations``."""
        group = self._groups[row]
        weight = outcomes / (outcomes + _OWN_WEIGHT)
        self._weighted[group] += weight * mean - self._own[row]
        self._weight[group] += weight - self._trust[row] * (1.0 - self._shared[row])
        self._mean[row], self._outcomes[row], self._trust[row] = mean, outcomes, 1.0
        self._own[row], self._shared[row] = weight * mean, 1.0 - weight

    def _group_mean(self, group: int) -> float:
        return self._weighted[group] / (self._weight[group] + CLASS_WEIGHT)


def _bounded(busy_neighbours: float) -> float:
    return min(busy_neighbours, _MOST_NEIGHBOURS) if busy_neighbours > 0.0 else 0.0


def _saturation(load: float) -> float:
    """Returns how far a placement's own deviation applies under a load, 0 to 1."""
    return load / (1.0 + load)
