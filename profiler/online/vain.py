"""Which predictions queries are refused for while nothing shows whether they still hold.

A placement that was once seen to be slow is not chosen, and so never seen to be quick again: if
there is no other, everybody is refused. What it was seen to do is let be forgotten then, until it
is tried: optimism where nothing is known, as in Sutton and Barto, *Reinforcement Learning*, section
2.6. What nobody is refused for is remembered, however long ago it was seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from modelless.profiler.online.columns import FloatArray, column

IntArray = NDArray[np.intp]

_EVERY_S = 1.0
"""However many queries are refused in this time, they count once."""
_PATIENCE = 5.0
"""Times that queries may be refused for a row before it begins to be forgotten."""
_HALF_LIFE = 3.0
"""Times after which half of it is."""
_ONCE = 0.5 ** (1.0 / _HALF_LIFE)
_FORGOTTEN = _PATIENCE + 20.0 * _HALF_LIFE


class Vain:
    """How often queries were refused for each of n rows since it was last heard of.

    Args:
        groups: for each row the index of its group: what rows have in common is kept as long as
            any of them is heard of.
    """

    def __init__(self, groups: Sequence[int]) -> None:
        self._group_of_row = np.asarray(groups, dtype=np.intp)
        self._group_count = max(groups, default=-1) + 1
        self._times, self._counts = column(len(groups))
        self._is_known = np.zeros(len(groups), dtype=np.bool_)
        self._refused_s = np.full(len(groups), -np.inf)

    def heard(self, row: int) -> None:
        """The row was seen at work."""
        self._times[row] = 0.0
        self._is_known[row] = True

    def refused(self, rows: IntArray, at_s: float) -> tuple[FloatArray, FloatArray] | None:
        """A query was refused for these rows.

        Args:
            rows: whose.
            at_s: when, on any clock; one that jumps costs nothing.

        Returns:
            The shares to keep of what is known, by row and by group; None to keep it all.
        """
        due = rows[np.abs(at_s - self._refused_s[rows]) >= _EVERY_S]
        if not due.size:
            return None
        self._refused_s[due] = at_s
        self._counts[due] += 1.0
        vain = due[self._is_known[due] & (self._counts[due] > _PATIENCE)]
        if not vain.size:
            return None
        keep = np.ones(len(self._group_of_row))
        keep[vain] = _ONCE
        fresh = self._is_known & (self._counts <= _PATIENCE)
        is_fresh = np.bincount(self._group_of_row[fresh], minlength=self._group_count) > 0
        shared = np.ones(self._group_count)
        touched = self._group_of_row[vain]
        shared[touched] = np.where(is_fresh[touched], 1.0, _ONCE)
        self._is_known[vain[self._counts[vain] > _FORGOTTEN]] = False
        return keep, shared
