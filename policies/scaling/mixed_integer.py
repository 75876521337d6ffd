"""Mixed-integer programs by HiGHS, ended by the work done rather than by the clock.

HiGHS goes the same way through the same program on any machine, so a limit on the nodes of its
search tree ends it at the same plan everywhere. A limit in seconds does not: it is a far backstop
for programs that are larger than anybody foresaw, and an answer tells if it was what ended the
search. SciPy hands HiGHS no first guess; planners compare what is found with the plans that they
have, by the worth that ``worth_of`` gives these in the same program.
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


class Effort(NamedTuple):
    """How long to search.

    Attributes:
        node_limit: nodes of the search tree at most; the first node is the program without whole
            numbers, with cuts and heuristics.
        gap: stop when the plan is proven this close to the best, as a share.
        time_limit_s: wall-clock seconds a program, as a backstop.
    """

    node_limit: int
    gap: float
    time_limit_s: float

    def checked(self) -> Effort:
        """Itself.

        Raises:
            InvalidInputError: it makes no sense.
        """
        if type(self.node_limit) is not int or self.node_limit < 0:
            raise InvalidInputError.of("node_limit", self.node_limit, "a whole number, 0 or more")
        if not 0.0 <= self.gap < 1.0:
            raise InvalidInputError.of("gap", self.gap, "0 up to, not including, 1")
        if not 0.0 <= self.time_limit_s < inf:
            raise InvalidInputError.of("time_limit_s", self.time_limit_s, "0 or more seconds")
        return self


class Found(NamedTuple):
    """What a search found.

    Attributes:
        values: of the columns; None if nothing was found.
        worth: theirs; -inf without.
        bound: no values are worth more; inf if nobody knows.
        is_impossible: it is proven that there are none.
        by_clock: the backstop ended the search.
    """

    values: FloatArray | None
    worth: float = -inf
    bound: float = inf
    is_impossible: bool = False
    by_clock: bool = False


@dataclass(slots=True)
class Program:
    """Maximise gain x columns, which are 0 or more, under constraints that are added row by row.

    Attributes:
        gain: by column.
        whole: the first so many columns are whole numbers.
        most: by column.
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
        """low <= the sum of coefficient x column <= high."""
        for column, value in coefficients.items():
            self._rows.append(len(self._low))
            self._columns.append(column)
            self._values.append(value)
        self._low.append(low)
        self._high.append(high)

    def best(self, effort: Effort) -> Found:
        """Search."""
        return self._solve(self.whole, np.zeros(len(self.gain)), self.most, effort)

    def worth_of(self, plan: Sequence[float] | FloatArray, time_limit_s: float) -> Found:
        """The best there is with the whole columns as in ``plan``: a program without any."""
        low, most = np.zeros(len(self.gain)), self.most.copy()
        low[: self.whole] = most[: self.whole] = plan
        return self._solve(0, low, most, Effort(1, 0.0, time_limit_s))

    def _solve(self, whole: int, low: FloatArray, most: FloatArray, effort: Effort) -> Found:
        try:  # takes a while to import, and only these policies need it
            from scipy.optimize import Bounds, LinearConstraint, milp
            from scipy.sparse import coo_array
        except ImportError:
            return Found(None)
        if effort.node_limit == 0 or effort.time_limit_s == 0.0:
            return Found(None)
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
                "node_limit": effort.node_limit,
                "mip_rel_gap": effort.gap,
                "time_limit": effort.time_limit_s,
            },
        )
        by_clock = result.status == _TIME_LIMIT
        if result.x is None:
            return Found(None, is_impossible=result.status == 2, by_clock=by_clock)
        worth = float(self.gain @ result.x)
        bound = worth if not whole else -_number(result.mip_dual_bound)
        return Found(result.x, worth, max(bound, worth), by_clock=by_clock)


def _number(value: float | None) -> float:
    return float(value) if value is not None and isfinite(value) else -inf
