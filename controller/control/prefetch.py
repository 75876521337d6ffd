"""Loads before demand comes: of placements needed by when a load that began now would end.

A load that begins with the first query ends too late for it. So once a tick the forecaster is asked
which scopes wake within a load's time and a margin (``Forecaster.awakenings``). The placement that
served such a scope last is *due*. It may displace others if more queries would come while it loads
on demand than are expected meanwhile of its victims. Pre-warming is as in "Serverless in
the Wild" (Shahrad et al., USENIX ATC 2020); to fetch ahead only what is worth more than what leaves
for it is an old rule of prefetching (Cao et al., SIGMETRICS 1995).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, log

from modelless.policies.scopes import in_scope, scopes_of
from modelless.policies.seams import Forecaster
from modelless.policies.views import ClusterView, Instance
from modelless.variants.vocabulary import Placement

_MARGIN_S = 3.0  # a tick, and what a load takes longer than it did
_LONGEST_LOAD_S = 600.0
_STEP = 1.25  # horizons are rounded up to powers of it: some thirty questions a tick at most
_LEAST_QUERIES = 0.5  # within a load's time and the margin, to be due
_LEAST_IDLE_S = 1.0
_MOST_SCOPES = 4096


@dataclass(frozen=True, slots=True)
class DueLoad:
    """A placement that will be asked for about when a load that began now would end.

    Attributes:
        queries: expected of its scope that would come before a load on demand has ended.
        until_s: how long ahead was looked: the load's time and the margin.
    """

    scope: str
    placement: Placement
    queries: float
    until_s: float


class Prefetcher:
    """Remembers what served each scope, finds due loads and weighs their victims."""

    def __init__(self, forecaster: Forecaster) -> None:
        self._forecaster = forecaster
        self._served: dict[str, Placement] = {}
        self._awakenings: dict[float, Mapping[str, float]] = {}  # by horizon, of this tick
        self._forecasts: dict[float, Mapping[str, float]] = {}
        self._copies: Counter[str] = Counter()
        self._now_s = 0.0

    def missing(self, view: ClusterView) -> list[DueLoad]:
        """Return the due loads of what is neither held nor loading, most queries first."""
        self._awakenings, self._forecasts, self._now_s = {}, {}, view.now_s
        self._observe(view)
        if not self._waking(_LONGEST_LOAD_S + _MARGIN_S):
            return []
        classes = {worker.device_class for worker in view.workers}
        facts = {variant.variant_id: variant for variant in view.variants}
        due = []
        for scope, placement in self._served.items():
            if self._copies[scope]:
                continue
            known = facts.get(placement.variant_id)
            load_s = known.load_s.get(placement.device_class, inf) if known else inf
            if placement.device_class not in classes or not 0.0 <= load_s <= _LONGEST_LOAD_S:
                continue
            until_s = load_s + _MARGIN_S
            if self._waking(until_s).get(scope, 0.0) >= _LEAST_QUERIES:
                queries = self._waking(until_s + load_s).get(scope, 0.0)
                due.append(DueLoad(scope, placement, queries, until_s))
        return sorted(due, key=lambda one: (-one.queries, one.scope))

    def cost(self, instance: Instance, until_s: float) -> float:
        """Return the queries that only this instance serves, expected until it could be back.

        Args:
            until_s: for how long it would be gone before it could be loaded again.
        """
        gone_s = until_s + (instance.load_s if 0.0 <= instance.load_s < inf else 0.0)
        alone = [s for s in scopes_of(instance.variant_id) if self._copies[s] <= 1]
        if not alone:
            return 0.0
        expected_per_s = sum(self._expected(gone_s).get(scope, 0.0) for scope in alone)
        if instance.use_count > 0:  # one query in all the time since: no forecaster need know it
            idle_s = max(self._now_s - instance.last_used_s, 0.0)
            expected_per_s = max(expected_per_s, 1.0 / (idle_s + _LEAST_IDLE_S))
        return expected_per_s * gone_s

    def is_worse(self, newcomer: Instance, victims: Sequence[Instance], view: ClusterView) -> bool:
        """Whether more queries are due of the victims than now wait for the newcomer."""
        due = 0.0
        for victim in victims:
            load_s = min(max(victim.load_s, 0.0), _LONGEST_LOAD_S)
            waking = self._waking(load_s + _MARGIN_S)
            alone = [s for s in scopes_of(victim.variant_id) if self._copies[s] <= 1]
            due += sum(waking.get(scope, 0.0) for scope in alone)
        waiting = sum(
            count
            for scope, count in view.open_queries.items()
            if in_scope(newcomer.variant_id, scope)
        )
        return due > max(waiting, 1.0)

    def _observe(self, view: ClusterView) -> None:
        """Learn what serves the scopes that are awake, and count the copies of every scope."""
        self._copies = Counter()
        last: dict[str, tuple[float, Placement]] = {}
        for worker in view.workers:
            for instance in worker.instances:
                placement = Placement(instance.variant_id, worker.device_class)
                used = instance.last_used_s if instance.use_count else -inf
                for scope in scopes_of(instance.variant_id):
                    self._copies[scope] += 1
                    if used > -inf and (scope not in last or last[scope][0] < used):
                        last[scope] = used, placement
        for scope, rate in view.arrivals_per_s.items():
            if rate > 0.0 and scope in last:
                self._served.pop(scope, None)  # the latest stand last
                self._served[scope] = last[scope][1]
        while len(self._served) > _MOST_SCOPES:
            del self._served[next(iter(self._served))]

    def _waking(self, horizon_s: float) -> Mapping[str, float]:
        horizon_s = _rounded(horizon_s)
        if horizon_s not in self._awakenings:
            self._awakenings[horizon_s] = self._forecaster.awakenings(horizon_s)
        return self._awakenings[horizon_s]

    def _expected(self, horizon_s: float) -> Mapping[str, float]:
        horizon_s = _rounded(horizon_s)
        if horizon_s not in self._forecasts:
            self._forecasts[horizon_s] = self._forecaster.forecast(horizon_s)
        return self._forecasts[horizon_s]


def _rounded(horizon_s: float) -> float:
    """The next power of the step from it on."""
    return float(_STEP ** ceil(log(horizon_s) / log(_STEP) - 1e-9))
