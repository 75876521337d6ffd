"""Rates from reports that may come at any time.

A report that comes early, because a query waits, covers a moment only: one query in 50 ms is not 20
a second. So counts are taken over a window at least. A policy that learns from rates weighs each by
the time since the one before, so an early report stays until it has weighed as much as it is worth;
otherwise what it counted would weigh 50 ms.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from modelless.controller.control.messages import MemberReport
from modelless.controller.dispatch.counters import Kind

_WHOLE = 0.9
"""A query that has weighed so much has counted once. As reports stay or go whole, one may have
weighed half as much again by then, where several come early one after the other."""


@dataclass(slots=True)
class _Heard:
    """A report, and the weight so far of each query in it in the rates that it is part of."""

    report: MemberReport
    weight: float = 0.0


class RateWindow:
    """A member's last reports: those that make up the window, and those not counted once yet.

    Args:
        window_s: rates are over no less than this, seconds.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._heard: deque[_Heard] = deque()

    def add(self, report: MemberReport) -> MemberReport:
        """Return the report with the counts and the interval of all reports in the window.

        Its ``arrivals``, ``unmet``, ``outcomes`` and ``kinds`` are to be divided by its
        ``interval_s``; whatever else is counted since the last report is the newest one's own.
        """
        heard = self._heard
        heard.append(_Heard(report))
        span_s = sum(one.report.interval_s for one in heard)
        while heard[0].weight >= _WHOLE and span_s - heard[0].report.interval_s >= self._window_s:
            span_s -= heard.popleft().report.interval_s
        interval_s = max(span_s, self._window_s)
        for one in heard:
            one.weight += report.interval_s / interval_s
        reports = [one.report for one in heard]
        if len(reports) == 1 and span_s >= self._window_s:
            return report
        kinds: dict[Kind, tuple[int, int]] = {}
        for each in reports:
            for kind, (queries, items) in each.kinds.items():
                before = kinds.get(kind, (0, 0))
                kinds[kind] = before[0] + queries, before[1] + items
        return replace(
            report,
            interval_s=interval_s,
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
