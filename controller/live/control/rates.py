"""Rates from reports that may come at any time.

A report that comes early, because somebody waits, tells of a moment only: one query in 50 ms is not
20 a second. So counts are taken over the last second at least. And as who learns from rates weighs
each by the time since the one before, an early report stays until it has weighed what it is worth:
else what it counted would weigh 50 ms.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from modelless.controller.dispatch.counters import Kind
from modelless.controller.live.messages import Report

LEAST_S = 0.9
"""A regular report's interval is a second, or a little less; rates are over no less than this."""
_WHOLE = 0.9
"""A query that has weighed so much has counted once. As reports stay or go whole, one may have
weighed half as much again by then, where several come early one after the other."""


@dataclass(slots=True)
class _Heard:
    """A report, and what each query in it has weighed so far in the rates that it is part of."""

    report: Report
    weight: float = 0.0


class Recent:
    """A member's last reports: those that make up ``LEAST_S``, and what has not counted once."""

    def __init__(self) -> None:
        self._heard: deque[_Heard] = deque()

    def take(self, report: Report) -> Report:
        """The newest report, with the counts and the interval of all that make up the time.

        Its ``arrivals``, ``unmet``, ``outcomes`` and ``kinds`` are to be divided by its
        ``interval_s``; whatever else is counted since the last report is the newest one's own.
        """
        heard = self._heard
        heard.append(_Heard(report))
        span_s = sum(one.report.interval_s for one in heard)
        while heard[0].weight >= _WHOLE and span_s - heard[0].report.interval_s >= LEAST_S:
            span_s -= heard.popleft().report.interval_s
        interval_s = max(span_s, LEAST_S)
        for one in heard:
            one.weight += report.interval_s / interval_s
        reports = [one.report for one in heard]
        if len(reports) == 1 and span_s >= LEAST_S:
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
