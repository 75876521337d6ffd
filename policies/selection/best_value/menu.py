"""A worker's menu for one scope: its variants as arrays over batch sizes."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from modelless.policies.views import FloatArray, ResidentView

_Z99 = 2.326  # standard normal's 99 % quantile
_LEAST_SPREAD = 0.01  # of log latency; a profile without any spread is too good to be true
_LEAST_SLACK_S, _MOST_SLACK_S = 1e-9, 1e9
_LIMITS_KEPT = 64
_PARTS_KEPT = 256
_SURELY = 2.0  # standard deviations of log latency that must fit a deadline to be surely in time
_ALL = slice(None)


class Within(NamedTuple):
    """Variants in batches that run no longer than so long.

    Attributes:
        accuracy_percent: shape (n,), descending.
        item_s: least device time an item takes, shape (n,); inf where even a batch of one takes
            too long.
        first_s: of the most accurate that is quick enough; inf if none is.
        least_s: of the quickest.
    """

    accuracy_percent: FloatArray
    item_s: FloatArray
    first_s: float
    least_s: float


class Part(NamedTuple):
    """Some rows and columns of a menu: v variants, k sizes of batches.

    Attributes:
        accuracy_percent: shape (v, 1).
        busy_s, share_s, log_s: as the menu's, shape (v, k).
        waste_s: by how much ``busy_s`` is more than ``share_s``.
        steepness: of the chance to be in time, by log latency, shape (v, k).
        unknown: where ``busy_s`` is inf, shape (v, k); None if it is so nowhere.
    """

    accuracy_percent: FloatArray
    busy_s: FloatArray
    share_s: FloatArray
    log_s: FloatArray
    waste_s: FloatArray
    steepness: FloatArray
    unknown: NDArray[np.bool_] | None

    def chance(self, log_slack: FloatArray) -> FloatArray:
        """Probability that each batch takes no longer than each slack.

        The normal distribution function is taken as logistic (Bowling et al., 2009: within 0.01).

        Args:
            log_slack: as ``log_of`` has it, shape (m,).

        Returns:
            Shape (m, v, k).
        """
        z = log_slack[:, None, None] - self.log_s
        z *= self.steepness
        np.tanh(z, out=z)
        z += 1.0
        z *= 0.5
        return z


@dataclass(frozen=True, slots=True, eq=False)
class Menu:
    """Variants by rows, most accurate first; batches of 1 to K items by columns.

    A variant that another equals or betters in accuracy and in latency at every batch is left out.

    Attributes:
        variant_ids: n of them.
        accuracy_percent: shape (n,), descending.
        typical_s: p50 latency, shape (n, K); inf where unknown.
        spread: standard deviation of log latency, shape (n, K): latency is taken as lognormal
            through p50 and p99.
        busy_s: how long a batch keeps the worker from others, shape (n, K).
        log_s: logarithm of ``typical_s``.
        share_s: device time of the items if their batches were of the best size, shape (n, K).
        item_s: least device time an item takes in any batch, shape (n,).
        least_s: the least of ``typical_s``; inf if there are no variants.
        most: items of the largest batch: K.
    """

    variant_ids: tuple[str, ...]
    accuracy_percent: FloatArray
    typical_s: FloatArray
    spread: FloatArray
    busy_s: FloatArray
    log_s: FloatArray = field(init=False)
    share_s: FloatArray = field(init=False)
    item_s: FloatArray = field(init=False)
    least_s: float = field(init=False)
    most: int = field(init=False)
    _falling: tuple[float, ...] = field(init=False)
    _quickest_s: tuple[float, ...] = field(init=False)
    _within: dict[tuple[float, int], Within] = field(init=False)
    _reach_for: dict[tuple[float, int], int] = field(init=False)
    _surely: dict[tuple[int, int, int], float] = field(init=False)
    _parts: dict[tuple[int, int, int], Part] = field(init=False)

    def __post_init__(self) -> None:
        per_item = self.busy_s / np.arange(1, self.busy_s.shape[1] + 1)
        item_s = per_item.min(axis=1, initial=np.inf)
        for name, value in (
            ("log_s", np.log(self.typical_s)),
            ("item_s", item_s),
            ("least_s", float(self.typical_s[:, :1].min(initial=np.inf))),
            ("most", int(self.typical_s.shape[1])),
            ("_falling", tuple((-self.accuracy_percent).tolist())),
            ("_quickest_s", tuple(np.minimum.accumulate(item_s).tolist())),
            ("_within", {}),
            ("_reach_for", {}),
            ("_surely", {}),
            ("_parts", {}),
            ("share_s", item_s[:, None] * np.arange(1.0, self.typical_s.shape[1] + 1.0)),
        ):
            object.__setattr__(self, name, value)

    def reach(self, min_accuracy_percent: float) -> int:
        """How many variants, from the first, are at least so accurate."""
        return bisect_right(self._falling, -min_accuracy_percent)

    def quickest_item_s(self, reach: int) -> float:
        """The least device time an item takes with one of the first ``reach`` variants."""
        return self._quickest_s[reach - 1] if reach else math.inf

    def reach_for(self, min_accuracy_percent: float, items: int) -> int:
        """As ``reach``, for a query of so many items; 0 if no variant is known to take them."""
        key = (min_accuracy_percent, items)
        reach = self._reach_for.get(key)
        if reach is None:
            reach = self.reach(min_accuracy_percent) if items <= self.most else 0
            if not np.isfinite(self.typical_s[:reach, items - 1 : items]).any():
                reach = 0
            if len(self._reach_for) >= _LIMITS_KEPT:
                self._reach_for.clear()
            self._reach_for[key] = reach
        return reach

    def latency_s(self, reach: int) -> float:
        """The least p50 latency of one item with one of the first ``reach`` variants."""
        return float(self.typical_s[:reach, :1].min(initial=math.inf))

    def within(self, latency_s: float, reach: int) -> Within:
        """What the first ``reach`` variants do in batches that run no longer than ``latency_s``."""
        key = (latency_s, reach)
        known = self._within.get(key)
        if known is None:
            per_item = self.busy_s[:reach] / np.arange(1, self.most + 1)
            within = np.where(self.typical_s[:reach] <= latency_s, per_item, np.inf)
            item_s = np.asarray(within.min(axis=1, initial=np.inf))
            usable = item_s[item_s < np.inf].tolist() or [math.inf]
            known = Within(self.accuracy_percent[:reach], item_s, usable[0], min(usable))
            if len(self._within) >= _LIMITS_KEPT:
                self._within.clear()
            self._within[key] = known
        return known

    def surely_s(self, rows: slice, items: int) -> float:
        """What the quickest of some variants needs for a batch to be surely in time."""
        key = (rows.start, rows.stop, items)
        known = self._surely.get(key)
        if known is None:
            latency_s = self.typical_s[rows, items - 1]
            quickest = int(latency_s.argmin())
            spread = float(self.spread[rows, items - 1][quickest])
            known = self._surely[key] = float(latency_s[quickest]) * math.exp(_SURELY * spread)
        return known

    def part(self, rows: slice, columns: slice | NDArray[np.intp]) -> Part:
        """These variants and sizes; what begins with the smallest is kept."""
        if not isinstance(columns, slice):
            return self._cut(rows, columns)
        key = (rows.start, rows.stop, columns.stop)
        known = self._parts.get(key)
        if known is None:
            if len(self._parts) >= _PARTS_KEPT:
                self._parts.clear()
            known = self._parts[key] = self._cut(rows, slice(0, columns.stop))
        return known

    def chance(self, slack_s: FloatArray) -> FloatArray:
        """As ``Part.chance``, of all variants and sizes; ``slack_s`` has shape (m,)."""
        return self._cut(_ALL, _ALL).chance(log_of(slack_s))

    def _cut(self, rows: slice, columns: slice | NDArray[np.intp]) -> Part:
        busy_s, share_s = self.busy_s[rows, columns], self.share_s[rows, columns]
        unknown = np.isinf(busy_s)
        return Part(
            self.accuracy_percent[rows, None],
            busy_s,
            share_s,
            self.log_s[rows, columns],
            busy_s - share_s,
            0.851 / self.spread[rows, columns],
            unknown if unknown.any() else None,
        )


def log_of(slack_s: Sequence[float] | FloatArray) -> FloatArray:
    """The logarithm of slacks, none of which counts as nothing or as for ever; shape (m,)."""
    logs: FloatArray = np.log(np.minimum(np.maximum(slack_s, _LEAST_SLACK_S), _MOST_SLACK_S))
    return logs


def make_menu(residents: Iterable[ResidentView], max_batch: int, lead_s: float = 0.0) -> Menu:
    """The menu of these variants; those of unknown latency are left out.

    ``lead_s``: see ``WorkerView``. A worker has two batches at most, so that each of them keeps it
    for half its latency, if that is longer.
    """
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
    upper_s = typical_s * np.exp(spread)
    kept: list[int] = []
    for row in range(len(known)):  # nothing later is more accurate
        at_least = (typical_s[kept] <= typical_s[row]) & (upper_s[kept] <= upper_s[row])
        if not at_least.all(axis=1).any():
            kept.append(row)
    return Menu(
        tuple(known[row].variant_id for row in kept),
        np.array([known[row].accuracy_percent for row in kept], dtype=np.float64),
        typical_s[kept],
        spread[kept],
        np.maximum(typical_s[kept] - lead_s, typical_s[kept] / 2.0) if lead_s else typical_s[kept],
    )
