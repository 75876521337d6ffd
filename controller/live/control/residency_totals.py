"""Loads and unloads of the whole cluster, for the status."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Any, Final

from modelless.controller.control.messages import MemberReport
from modelless.controller.device.messages import ChangeKind, ResidencyChange

_RECENT: Final = 32
"""Changes that the status shows."""


class ResidencyTotals:
    """The latest loads and unloads of the cluster, and the sums of all."""

    def __init__(self) -> None:
        self._recent: deque[ResidencyChange] = deque(maxlen=_RECENT)
        self._counts: Counter[str] = Counter()
        self._declined: Counter[str] = Counter()
        self._loading_s = 0.0
        self._cold_queries = 0

    def add(self, report: MemberReport) -> None:
        for change in report.changes:
            self._recent.append(change)
            self._counts[change.kind] += 1
            if change.kind == ChangeKind.LOADED:
                self._loading_s += change.seconds
        self._cold_queries += sum(report.unmet.values())

    def add_declined(self, variant_ids: Iterable[str]) -> None:
        """Add loads on demand that were not worth what they would have displaced."""
        self._declined.update(variant_ids)

    def status(self) -> dict[str, Any]:
        """All of it as plain data, the latest change first."""
        return {
            "cold_queries": self._cold_queries,
            "counts": dict(self._counts),
            "loading_s": round(self._loading_s, 3),
            "declined": dict(self._declined),
            "recent": [
                {
                    **change._asdict(),
                    "at_s": round(change.at_s, 3),
                    "seconds": round(change.seconds, 4),
                    "reason": change.reason.value,
                    "displaced": list(change.displaced),
                }
                for change in reversed(self._recent)
            ],
        }
