"""What came of a run: counted as it goes, in memory that does not grow with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from modelless.controller.sim.series import Series
from modelless.policies.plan_quality import PlanQuality, PlanSource

_GAMMA_LOG = math.log(1.02)
_LEAST_S = 1e-7


class LatencySketch:
    """Quantiles within 1 %: counts by logarithmic bins (as DDSketch, Masson et al., VLDB 2019)."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        self.total_s = 0.0
        self.most_s = 0.0

    def add(self, latency_s: float) -> None:
        """Count one latency, seconds."""
        place = math.ceil(math.log(latency_s) / _GAMMA_LOG) if latency_s > _LEAST_S else -10_000
        self._counts[place] = self._counts.get(place, 0) + 1
        self.count += 1
        self.total_s += latency_s
        if latency_s > self.most_s:
            self.most_s = latency_s

    def quantile(self, level: float) -> float | None:
        """The latency below which a share ``level`` lies, seconds; None if there are none."""
        if not self.count:
            return None
        rank, seen = level * (self.count - 1), 0
        for place in sorted(self._counts):
            seen += self._counts[place]
            if seen > rank:
                middle_s = 2.0 * math.exp(place * _GAMMA_LOG) / (1.0 + math.exp(_GAMMA_LOG))
                return min(middle_s, self.most_s) if place > -10_000 else 0.0
        return self.most_s


@dataclass(slots=True)
class Tally:
    """What came of some queries: of a task, of a tenant, of a stretch of time.

    A query is *good* if it was answered by its deadline with at least its minimum accuracy; every
    other one is a violation, of one kind: ``late``, ``inaccurate``, or why it was not answered.

    Attributes:
        value: sum of the good ones' accuracies, 0 to 1 each: what goodput is made of.
        accuracy: sum over the answered ones, per cent.
        cost_usd: price of the device time their batches took, shared out by items.
    """

    queries: int = 0
    good: int = 0
    answered: int = 0
    value: float = 0.0
    accuracy: float = 0.0
    cost_usd: float = 0.0
    over_cost: int = 0
    violations: dict[str, int] = field(default_factory=dict)

    def serve(self, accuracy: float, kind: str, cost_usd: float, is_dear: bool) -> None:
        """Count an answered query; ``kind`` of violation, or empty if it is good."""
        self.queries += 1
        self.answered += 1
        self.accuracy += accuracy
        self.cost_usd += cost_usd
        if is_dear:
            self.over_cost += 1
        if kind:
            self.violations[kind] = self.violations.get(kind, 0) + 1
        else:
            self.good += 1
            self.value += accuracy / 100.0

    def fail(self, kind: str) -> None:
        self.queries += 1
        self.violations[kind] = self.violations.get(kind, 0) + 1

    def figures(self, span_s: float) -> dict[str, Any]:
        """As plain data; ``span_s``: over how long, seconds."""
        return {
            "queries": self.queries,
            "answered": self.answered,
            "good": self.good,
            "attainment": self.good / self.queries if self.queries else None,
            "goodput_per_s": self.value / span_s if span_s > 0.0 else None,
            "value_per_query": self.value / self.queries if self.queries else None,
            "mean_accuracy": self.accuracy / self.answered if self.answered else None,
            "violations": dict(sorted(self.violations.items())),
            "violated": self.queries - self.good,
            "over_cost": self.over_cost,
            "cost_usd": self.cost_usd,
        }


@dataclass(slots=True)
class Plans:
    """What a policy that optimises knew of its plans; nothing of one that does not.

    Attributes:
        greedy: found without the solver's help, or better than what it found.
        unknown: of which nobody knows how far from the best they are.
        by_clock: where a wall-clock limit ended the search, so that a run elsewhere may differ.
        gaps: sum over plans whose gap is known, a share of their worth; ``worst_gap``: the largest.
    """

    count: int = 0
    proven: int = 0
    greedy: int = 0
    unknown: int = 0
    by_clock: int = 0
    gaps: float = 0.0
    worst_gap: float = 0.0

    def add(self, quality: PlanQuality) -> None:
        self.count += 1
        self.proven += quality.is_proven
        self.greedy += quality.source is PlanSource.GREEDY
        self.by_clock += quality.by_clock
        if math.isfinite(quality.gap):
            self.gaps += quality.gap
            self.worst_gap = max(self.worst_gap, quality.gap)
        else:
            self.unknown += 1

    def figures(self) -> dict[str, Any] | None:
        """As plain data; None if there were none."""
        if not self.count:
            return None
        known = self.count - self.unknown
        return {
            "count": self.count,
            "proven": self.proven,
            "greedy": self.greedy,
            "unknown": self.unknown,
            "by_clock": self.by_clock,
            "mean_gap": self.gaps / known if known else None,
            "worst_gap": self.worst_gap if known else None,
        }


@dataclass(slots=True)
class Summary:
    """All of a run.

    Attributes:
        latency: of answered queries, from arrival to answer.
        busy_s, alive_s: of devices, by class: running batches, being there.
        loads, failed_loads, unloads, evictions: counted; evictions are the unloads that made room.
        cold_start_s: spent on loads that were not there at the start, seconds.
        policy_problems: what policies did wrong, with counts; the first few.
        plans: how good those of an optimising policy were known to be.
        span_s: of the arrivals; end_s: when all was over.
        series: the run's course, if it is wanted.
    """

    seed: int
    world: str
    total: Tally = field(default_factory=Tally)
    tasks: dict[str, Tally] = field(default_factory=dict)
    tenants: dict[str, Tally] = field(default_factory=dict)
    latency: LatencySketch = field(default_factory=LatencySketch)
    batches: int = 0
    items: int = 0
    busy_s: dict[str, float] = field(default_factory=dict)
    alive_s: dict[str, float] = field(default_factory=dict)
    busy_cost_usd: float = 0.0
    rent_usd: float = 0.0
    energy_j: float = 0.0
    loads: int = 0
    failed_loads: int = 0
    unloads: int = 0
    evictions: int = 0
    cold_start_s: float = 0.0
    policy_problems: dict[str, int] = field(default_factory=dict)
    plans: Plans = field(default_factory=Plans)
    span_s: float = 0.0
    end_s: float = 0.0
    series: Series | None = None

    def complain(self, problem: str) -> None:
        """A policy did something wrong."""
        if problem in self.policy_problems or len(self.policy_problems) < 20:
            self.policy_problems[problem] = self.policy_problems.get(problem, 0) + 1

    def figures(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        latency = self.latency
        quantiles = {
            name: _ms(latency.quantile(level))
            for name, level in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999))
        }
        mean_s = latency.total_s / latency.count if latency.count else None
        return {
            "world": self.world,
            "seed": self.seed,
            "span_s": self.span_s,
            "end_s": self.end_s,
            **self.total.figures(self.span_s),
            "latency_ms": {**quantiles, "mean": _ms(mean_s), "max": _ms(latency.most_s)},
            "batches": self.batches,
            "mean_batch": self.items / self.batches if self.batches else None,
            "utilisation": _shares(self.busy_s, self.alive_s),
            "busy_cost_usd": self.busy_cost_usd,
            "rent_usd": self.rent_usd,
            "energy_wh": self.energy_j / 3600.0,
            "loads": self.loads,
            "failed_loads": self.failed_loads,
            "unloads": self.unloads,
            "evictions": self.evictions,
            "cold_start_s": self.cold_start_s,
            "policy_problems": dict(self.policy_problems),
            "plans": self.plans.figures(),
            "tasks": {name: t.figures(self.span_s) for name, t in sorted(self.tasks.items())},
            "tenants": {name: t.figures(self.span_s) for name, t in sorted(self.tenants.items())},
        }


def _shares(part: Mapping[str, float], whole: Mapping[str, float]) -> dict[str, float]:
    return {
        name: part.get(name, 0.0) / total for name, total in sorted(whole.items()) if total > 0.0
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3
