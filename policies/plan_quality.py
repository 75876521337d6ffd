"""The quality of a plan: how far it is from the best, as an optimising policy states it."""

from __future__ import annotations

from enum import StrEnum
from math import isfinite
from typing import Final, NamedTuple

PROVEN_GAP: Final = 1e-4
"""A plan within this share of the bound counts as the best, as in solvers."""


class PlanSource(StrEnum):
    """The method that found a plan."""

    PROGRAM = "program"
    GREEDY = "greedy"
    LAST_PLAN = "last-plan"


class PlanQuality(NamedTuple):
    """The quality of one plan.

    Attributes:
        source: method that found it; where several did, the program.
        gap: how much better any other plan could be, by the policy's own objective, as a share of
            this plan's; NaN if unknown.
        by_clock: whether a wall-clock limit ended the search, so that another machine may plan
            otherwise.
        remark: further information for people.
    """

    source: PlanSource
    gap: float
    by_clock: bool = False
    remark: str = ""

    @property
    def is_proven(self) -> bool:
        """Whether the plan is known to be the best."""
        return self.gap <= PROVEN_GAP

    def words(self) -> str:
        """Returns one line such as ``greedy, within 4 % of the bound`` for people."""
        parts = [] if self.source is PlanSource.PROGRAM else [self.source.replace("-", " ")]
        if self.is_proven:
            parts.append("proven the best" if parts else "solved to optimality")
        elif isfinite(self.gap):
            parts.append(f"within {100.0 * self.gap:.2g} % of the bound")
        else:
            parts.append("how far from the best is not known")
        if self.by_clock:
            parts.append("stopped by the clock")
        return ", ".join([*parts, self.remark] if self.remark else parts)
