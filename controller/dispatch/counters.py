"""Meters: counts of finished queries and batches, cheap enough to count every one of them.

The control loop adds up the meters that dispatchers report each second, and publishes the sums.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

LATENCY_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the latency buckets, seconds; one more bucket holds what took longer."""

BATCH_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Upper bounds of the batch size buckets, items; one more bucket holds what is larger."""


@dataclass(slots=True)
class Meters:
    """Counts over some time.

    Attributes:
        ends: finished queries by scope and outcome; see ``Receipt``.
        refusals: refused queries by scope and reason.
        latencies: of served queries by scope: a count for each bucket of ``LATENCY_BOUNDS_S`` and
            for what is above them; the last figure is the sum, seconds.
        batches: by variant and device class: a count for each bucket of ``BATCH_BOUNDS`` and for
            what is above them; the last two figures are the items and the seconds devices took.
    """

    ends: dict[tuple[str, str], int] = field(default_factory=dict)
    refusals: dict[tuple[str, str], int] = field(default_factory=dict)
    latencies: dict[str, list[float]] = field(default_factory=dict)
    batches: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def count_end(self, scope: str, outcome: str) -> None:
        """Count a finished query."""
        key = (scope, outcome)
        self.ends[key] = self.ends.get(key, 0) + 1

    def count_refusal(self, scope: str, reason: str) -> None:
        """Count a refused query."""
        key = (scope, reason)
        self.refusals[key] = self.refusals.get(key, 0) + 1

    def count_latency(self, scope: str, latency_s: float) -> None:
        """Count a query that was served ``latency_s`` seconds after it arrived."""
        counts = self.latencies.get(scope)
        if counts is None:
            counts = self.latencies[scope] = [0.0] * (len(LATENCY_BOUNDS_S) + 2)
        counts[bisect_left(LATENCY_BOUNDS_S, latency_s)] += 1.0
        counts[-1] += latency_s

    def count_batch(self, variant_id: str, device_class: str, items: int, busy_s: float) -> None:
        """Count a batch that ran."""
        key = (variant_id, device_class)
        counts = self.batches.get(key)
        if counts is None:
            counts = self.batches[key] = [0.0] * (len(BATCH_BOUNDS) + 3)
        counts[bisect_left(BATCH_BOUNDS, items)] += 1.0
        counts[-2] += items
        counts[-1] += busy_s

    def add(self, other: Meters) -> None:
        """Add the counts of another."""
        for end, count in other.ends.items():
            self.ends[end] = self.ends.get(end, 0) + count
        for refusal, count in other.refusals.items():
            self.refusals[refusal] = self.refusals.get(refusal, 0) + count
        for scope, latencies in other.latencies.items():
            self.latencies[scope] = _sum(self.latencies.get(scope), latencies)
        for placement, batches in other.batches.items():
            self.batches[placement] = _sum(self.batches.get(placement), batches)


def _sum(before: list[float] | None, more: list[float]) -> list[float]:
    return list(more) if before is None else [a + b for a, b in zip(before, more, strict=True)]
