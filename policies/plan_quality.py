"""How good a plan is known to be: what an optimising policy says of it, for people to read."""

from __future__ import annotations

from enum import StrEnum
from math import isfinite
from typing import Final, NamedTuple

PROVEN_GAP: Final = 1e-4
"""What is this close to the bound counts as the best: solvers know no better."""


class PlanSource(StrEnum):
    """What found a plan."""

    PROGRAM = "program"
    GREEDY = "greedy"
    LAST_PLAN = "last-plan"


class PlanQuality(NamedTuple):
    """Of one plan.

    Attributes:
        source: what found it; where several did, the program.
        gap: how much better than this plan any other could be, by the policy's own objective and as
            a share of the plan's; NaN if nobody knows.
        by_clock: a wall-clock limit ended the search, so that another machine may plan otherwise.
        remark: what else is to be known of it, in words.
    """

    source: PlanSource
    gap: float
    by_clock: bool = False
    remark: str = ""

    @property
    def is_proven(self) -> bool:
        """Whether it is known to be the best."""
        return self.gap <= PROVEN_GAP

    def words(self) -> str:
        """In a line, such as ``solved to optimality`` or ``greedy, within 4 % of the bound``."""
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
