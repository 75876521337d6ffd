"""Rates from reports that may come at any time.

A report that comes early, because somebody waits, tells of a moment only: one query in 50 ms is not
20 a second. So counts are taken over the last second at least.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import replace

from modelless.controller.core.books import Kind
from modelless.controller.live.messages import Report

LEAST_S = 0.9
"""A regular report's interval is a second, or a little less; rates are over no less than this."""


class Recent:
    """A member's last reports, as many as make up ``LEAST_S``."""

    def __init__(self) -> None:
        self._reports: deque[Report] = deque()

    def take(self, report: Report) -> Report:
        """The newest report, with the counts and the interval of all that make up the time.

        Its ``arrivals``, ``unmet``, ``outcomes`` and ``kinds`` are to be divided by its
        ``interval_s``; whatever else is counted since the last report is the newest one's own.
        """
        reports = self._reports
        reports.append(report)
        while sum(each.interval_s for each in reports) - reports[0].interval_s >= LEAST_S:
            reports.popleft()
        if len(reports) == 1:
            return report
        kinds: dict[Kind, tuple[int, int]] = {}
        for each in reports:
            for kind, (queries, items) in each.kinds.items():
                before = kinds.get(kind, (0, 0))
                kinds[kind] = before[0] + queries, before[1] + items
        return replace(
            report,
            interval_s=sum(each.interval_s for each in reports),
            arrivals=_summed(each.arrivals for each in reports),
            unmet=_summed(each.unmet for each in reports),
            outcomes=_summed(each.outcomes for each in reports),
            kinds=kinds,
        )


def _summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)
