"""What a query is worth by the time it has left: the value function that decisions compare with.

With a price on device time, a query that has ``s`` seconds left is worth

    U(s) = max over variants v and batches of n of
           (accuracy_v + penalty) x P(latency(v, n) <= s) - penalty - price x busy(v, n) / n

accuracy points: it comes to a batch of the best size for the price, and bears its share of it. The
function is tabulated once for each menu and price, so that to ask costs a look-up.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from modelless.policies.selection.best_value.menu import Menu

_STEP = 0.02  # of log slack
_MOST_CELLS = 100_000
_ANSWERS_KEPT = 256
_SIZES = 8  # batch sizes that are looked at
_BELOW_SPREADS, _ABOVE_SPREADS = 6.0, 4.0


class Chances:
    """A menu's chances on a grid of slacks, which no price changes.

    Args:
        menu: of one variant or more.
    """

    def __init__(self, menu: Menu) -> None:
        self.menu = menu
        finite = menu.log_s[np.isfinite(menu.log_s)]
        widest = float(menu.spread.max())
        self.low = math.log(menu.least_s) - _BELOW_SPREADS * widest
        high = float(finite.max()) + _ABOVE_SPREADS * widest
        sizes = np.unique(np.geomspace(1, menu.most, _SIZES).round().astype(np.intp))
        rows = len(menu.variant_ids)
        most_points = max(_MOST_CELLS // (rows * len(sizes)), 16)
        points = min(int((high - self.low) / _STEP) + 2, most_points)
        self.step = (high - self.low) / (points - 1)
        at_s = np.exp(self.low + self.step * np.arange(points))
        self.columns = sizes - 1
        few = Menu(
            menu.variant_ids,
            menu.accuracy_percent,
            menu.typical_s[:, self.columns],
            menu.spread[:, self.columns],
            menu.busy_s[:, self.columns],
        )
        self.chance = few.chance(at_s)  # (points, n, sizes)
        self.share_s = np.where(np.isfinite(few.busy_s), few.busy_s / sizes, 1e9)


class ValueTable:
    """The value function of one menu at one price.

    Args:
        chances: of the menu.
        price: accuracy points a second is worth.
        penalty: accuracy points that a query not answered in time costs.

    Attributes:
        menu, price, penalty: what it was made of.
        most: what a query without limits is worth.
    """

    def __init__(self, chances: Chances, price: float, penalty: float) -> None:
        self.menu = menu = chances.menu
        self.price = price
        self.penalty = penalty
        self._low, self._per_step = chances.low, 1.0 / chances.step
        gain = (menu.accuracy_percent + penalty)[:, None] * chances.chance
        gain -= price * chances.share_s + penalty
        best = np.maximum.accumulate(gain.max(axis=2), axis=1)
        self._points, self._rows = int(best.shape[0]), int(best.shape[1])
        # At each point, for each reach: flat, which to index is as quick as a list and smaller.
        self._worth = array("d", np.maximum(best, -penalty).tobytes())
        self.most = self._worth[-1]
        self._net: list[float] = (menu.accuracy_percent - price * menu.item_s).tolist()
        self._ample_s: dict[tuple[float, int], float] = {}
        # Nobody else wants the device: it pays for its share of a batch of the best size only.
        alone = (menu.accuracy_percent + penalty) * chances.chance[:, :, 0]
        alone -= price * menu.item_s + penalty
        leading = np.maximum.accumulate(alone, axis=1)
        rows = np.zeros(alone.shape, dtype=np.int64)
        # Of equals the most accurate.
        rows[:, 1:] = np.where(alone[:, 1:] > leading[:, :-1], np.arange(1, alone.shape[1]), 0)
        self._alone_row = array("q", np.maximum.accumulate(rows, axis=1).tobytes())
        self._alone = array("d", leading.tobytes())

    def worth(self, slack_s: float, reach: int) -> float:
        """What a query is worth at best that the first ``reach`` variants may serve; see U."""
        # As ``_place``, without a call: this is asked several times for each query that waits.
        if not 0.0 < slack_s < math.inf:
            place = self._place(slack_s)
        else:
            place = int((math.log(slack_s) - self._low) * self._per_step + 1e-9)
            if place >= self._points:
                place = self._points - 1
        if place < 0 or not reach:
            return -self.penalty
        return self._worth[place * self._rows + reach - 1]

    def alone(self, slack_s: float, reach: int) -> tuple[float, int]:
        """What it is worth at best in a batch of its own, and the variant's row."""
        at = max(self._place(slack_s), 0) * self._rows + reach - 1
        return self._alone[at], self._alone_row[at]

    def at_most(self, rows: slice, later: Sequence[float]) -> float:
        """No batch of such queries with one of these variants is worth more than this.

        ``later``: what each is worth if it is left.
        """
        most = max(self._net[rows])
        return sum([most - worth for worth in later if most > worth])

    def ample_s(self, worth: float, reach: int) -> float:
        """The slack from which on a query is worth that much; inf if it never is."""
        key = (worth, reach)
        known = self._ample_s.get(key)
        if known is None:
            column = self._worth[reach - 1 :: self._rows]
            place = bisect_left(column, worth)
            is_never = place == len(column)
            known = math.inf if is_never else math.exp(self._low + place / self._per_step)
            if len(self._ample_s) < _ANSWERS_KEPT:
                self._ample_s[key] = known
        return known

    def _place(self, slack_s: float) -> int:
        """The place in the table at or before the slack; negative if it is too short for all."""
        if not slack_s > 0.0:  # not a number: an infinite wait for what has no deadline
            return -1
        if slack_s == math.inf:
            return self._points - 1
        place = int((math.log(slack_s) - self._low) * self._per_step + 1e-9)
        return min(place, self._points - 1)
