"""Mixed-integer programs by HiGHS, limited by the work done rather than by the clock.

HiGHS solves the same program in the same way on any machine, so a limit on the nodes of its search
tree gives the same plan everywhere. A limit in seconds does not: it protects against unexpectedly
large programs, and the result says if it ended the search. SciPy gives HiGHS no first guess, so
planners compare its result with the plans that they have, evaluated in the same program by
``evaluate_plan``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any, NamedTuple

import numpy as np

from modelless.common.errors import InvalidInputError
from modelless.policies.views import FloatArray

_TIME_LIMIT = 1  # SciPy's status


class SolverLimits(NamedTuple):
    """Limits of a search.

    Attributes:
        node_limit: most nodes of the search tree; the first node is the program without whole
            numbers, with cuts and heuristics.
        gap: share of the best at which the search stops, once proven.
        time_limit_s: wall-clock seconds for a program.
    """

    node_limit: int
    gap: float
    time_limit_s: float

    def validated(self) -> SolverLimits:
        """Returns the limits.

        Raises:
            InvalidInputError: a limit is out of range.
        """
        if type(self.node_limit) is not int or self.node_limit < 0:
            raise InvalidInputError.of("node_limit", self.node_limit, "a whole number, 0 or more")
        if not 0.0 <= self.gap < 1.0:
            raise InvalidInputError.of("gap", self.gap, "0 up to, not including, 1")
        if not 0.0 <= self.time_limit_s < inf:
            raise InvalidInputError.of("time_limit_s", self.time_limit_s, "0 or more seconds")
        return self


class SolverResult(NamedTuple):
    """The result of a search.

    Attributes:
        values: values of the columns; None if nothing was found.
        worth: worth of the values; -inf without values.
        bound: no values are worth more; inf if unknown.
        is_impossible: whether it is proven that there are none.
        by_clock: whether the time limit ended the search.
    """

    values: FloatArray | None
    worth: float = -inf
    bound: float = inf
    is_impossible: bool = False
    by_clock: bool = False


@dataclass(slots=True)
class MixedIntegerProgram:
    """Maximises gain x columns, which are 0 or more, under constraints that are added row by row.

    Attributes:
        gain: gain of each column.
        whole: number of columns, the first ones, that are whole numbers.
        most: upper bound of each column.
    """

    gain: FloatArray
    whole: int
    most: FloatArray
    _rows: list[int] = field(default_factory=list)
    _columns: list[int] = field(default_factory=list)
    _values: list[float] = field(default_factory=list)
    _low: list[float] = field(default_factory=list)
    _high: list[float] = field(default_factory=list)

    def add(self, coefficients: Mapping[int, float], low: float, high: float) -> None:
        """Add the constraint low <= the sum of coefficient x column <= high."""
        for column, value in coefficients.items():
            self._rows.append(len(self._low))
            self._columns.append(column)
            self._values.append(value)
        self._low.append(low)
        self._high.append(high)

    def maximise(self, limits: SolverLimits) -> SolverResult:
        """Search for the values of most worth."""
        return self._solve(self.whole, np.zeros(len(self.gain)), self.most, limits)

    def evaluate_plan(
        self, plan: Sequence[float] | FloatArray, time_limit_s: float
    ) -> SolverResult:
        """Returns the best values whose whole columns are those of ``plan``."""
        low, most = np.zeros(len(self.gain)), self.most.copy()
        low[: self.whole] = most[: self.whole] = plan
        return self._solve(0, low, most, SolverLimits(1, 0.0, time_limit_s))

    def _solve(
        self, whole: int, low: FloatArray, most: FloatArray, limits: SolverLimits
    ) -> SolverResult:
        try:  # SciPy is slow to import, and only these policies need it
            from scipy.optimize import Bounds, LinearConstraint, milp
            from scipy.sparse import coo_array
        except ImportError:
            return SolverResult(None)
        if limits.node_limit == 0 or limits.time_limit_s == 0.0:
            return SolverResult(None)
        shape = (len(self._low), len(self.gain))
        matrix = coo_array((self._values, (self._rows, self._columns)), shape=shape)
        integral = np.zeros(len(self.gain))
        integral[:whole] = 1
        result: Any = milp(
            -self.gain,
            integrality=integral,
            bounds=Bounds(low, most),
            constraints=LinearConstraint(matrix.tocsr(), self._low, self._high),
            options={
                "node_limit": limits.node_limit,
                "mip_rel_gap": limits.gap,
                "time_limit": limits.time_limit_s,
            },
        )
        by_clock = result.status == _TIME_LIMIT
        if result.x is None:
            return SolverResult(None, is_impossible=result.status == 2, by_clock=by_clock)
        worth = float(self.gain @ result.x)
        bound = worth if not whole else -_number(result.mip_dual_bound)
        return SolverResult(result.x, worth, max(bound, worth), by_clock=by_clock)


def _number(value: float | None) -> float:
    return float(value) if value is not None and isfinite(value) else -inf
