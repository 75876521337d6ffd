"""What the policies beside those in charge would have done, summed up for status and history."""

from __future__ import annotations

import math
from typing import Any, Final

from modelless.controller.control.messages import Entry, EntryKind
from modelless.policies.advisory import SWITCHED_OFF, Advice, add_advice, shown_advice

NOTE_S: Final = 60.0
"""Between two entries of the history on one seam."""


class AdviceTotals:
    """Advice by seam, since the control machine began and since the last entry."""

    def __init__(self) -> None:
        self.totals: dict[str, dict[tuple[str, str], int]] = {}
        self._new: dict[str, dict[tuple[str, str], int]] = {}
        self._noted_s = -math.inf

    def add(self, seam: str, advice: Advice) -> None:
        if advice:
            for counts in (self.totals, self._new):
                add_advice(counts.setdefault(seam, {}), advice)

    def status(self) -> list[dict[str, Any]]:
        """The totals as plain data."""
        return [shown_advice(seam, counts) for seam, counts in sorted(self.totals.items())]

    def entries(self, now_s: float) -> list[Entry]:
        """An entry a seam, if the last are old enough and there was advice since."""
        if now_s - self._noted_s < NOTE_S or not self._new:
            return []
        self._noted_s = now_s
        new, self._new = self._new, {}
        entries = []
        for seam, counts in sorted(new.items()):
            told = shown_advice(seam, counts)
            reason = f"agreed {told['agreed']} times of {told['asked']}"
            for done, would in counts:
                if done == SWITCHED_OFF:
                    reason = f"{SWITCHED_OFF}: it {would}"
            told["advice"] = told["advice"][:20]
            entries.append(Entry(EntryKind.ADVICE, seam, reason, told))
        return entries
