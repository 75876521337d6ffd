"""The number and the sizes of workers, in pools that may grow: as many as pay, down to none.

They grow at once. They shrink only to the most expensive plan that was the best at any time in a
window (the stabilisation window of Kubernetes' Horizontal Pod Autoscaler). On a disturbed machine
workers may be slower than profiled: while busy workers miss deadlines, demand is multiplied by a
growing factor (*strain*), which falls slowly afterwards.

The plan is the proven best of a mixed-integer program. If the search ends without a proof, it is
the better of the plan found and a greedy plan (``pool_program``). A limit on the work ends the
search, so that the same demand gives the same plan on any machine.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Sequence
from math import inf

import numpy as np

from modelless.common.errors import InvalidInputError
from modelless.policies.plan_quality import PlanQuality
from modelless.policies.scaling.expected_value.offer import offer_of
from modelless.policies.scaling.expected_value.pool_problem import Prices
from modelless.policies.scaling.expected_value.pool_program import (
    Plan,
    best_plan,
    merged,
    present_plan,
    rent_usd_per_s,
)
from modelless.policies.scaling.expected_value.rates import KindRate
from modelless.policies.scaling.expected_value.worth import service_of
from modelless.policies.scaling.mixed_integer import SolverLimits
from modelless.policies.views import ClusterView

_GAP = 1e-6
_MOST_PLANS = 1024
_MISSED = 0.01  # of the arrivals: more than this is too many
_STRAIN_UP, _STRAIN_DOWN, _MOST_STRAIN = 1.25, 0.99, 8.0  # a view


class PoolSizes:
    """Plans the workers of pools by what they earn less their rent.

    Args:
        query_usd: value of an answer in time.
        accuracy_usd: further value of a perfectly accurate answer.
        utilisation: the share of a worker's time to plan with, above 0 and up to 1.
        down_after_s: seconds without a break for which fewer or smaller workers must have been
            enough.
        zero_after_s: seconds without any query after which no demand is expected.
        horizon_s: seconds within which starting or resizing a worker must pay.
        node_limit: nodes of the solver's search tree per plan; 0: always the greedy plan.
        time_limit_s: a backstop for the solver, wall-clock seconds per plan. A plan that it ended
            may differ on another machine, and says so.
    """

    def __init__(
        self,
        query_usd: float = 0.001,
        accuracy_usd: float = 0.00001,
        utilisation: float = 0.7,
        down_after_s: float = 30.0,
        zero_after_s: float = 60.0,
        horizon_s: float = 120.0,
        node_limit: int = 200,
        time_limit_s: float = 10.0,
    ) -> None:
        for name, value in (("query_usd", query_usd), ("horizon_s", horizon_s)):
            if not 0.0 < value < inf:
                raise InvalidInputError.of(name, value, "above 0, finite")
        for name, value in (
            ("accuracy_usd", accuracy_usd),
            ("down_after_s", down_after_s),
            ("zero_after_s", zero_after_s),
        ):
            if not 0.0 <= value < inf:
                raise InvalidInputError.of(name, value, "0 or more, finite")
        self.limits = SolverLimits(node_limit, _GAP, time_limit_s).validated()
        self.prices = Prices(query_usd, accuracy_usd, horizon_s)
        self.down_after_s = down_after_s
        self.zero_after_s = zero_after_s
        self.utilisation = utilisation
        self._asked_s: float | None = None  # time of the last query
        self._strain = 1.0
        self.quality: PlanQuality | None = None
        self._plans: deque[tuple[float, Plan]] = deque(maxlen=_MOST_PLANS)

    def workers(self, view: ClusterView, kinds: Sequence[KindRate]) -> dict[str, int]:
        """Returns wanted workers by device class; none if no pool may change.

        Before any query, those that exist are wanted.

        Args:
            view: the cluster.
            kinds: the queries to expect.
        """
        self.quality = None
        if not any(pool.max_workers > pool.min_workers or pool.sizes[1:] for pool in view.pools):
            return {}
        present = present_plan(view.workers)
        expected = self._expected(view, kinds)
        plan = present if expected is None else self._best(view, expected, present)
        kept = self._stabilise(view, plan)
        if self.quality is not None and kept != plan:
            self.quality = self.quality._replace(remark="a dearer one of late is kept for now")
        wanted = dict.fromkeys((size for pool in view.pools for size in pool.sizes), 0)
        for source in (kept, _unpooled(view, present)):
            for (_, size), count in source.items():
                wanted[size] = wanted.get(size, 0) + count
        return {size: count for size, count in wanted.items() if size in view.device_classes}

    def _expected(self, view: ClusterView, kinds: Sequence[KindRate]) -> list[KindRate] | None:
        """Returns the demand to plan for; None before any query."""
        if any(rate > 0.0 for rate in view.arrivals_per_s.values()) or view.open_queries:
            self._asked_s = view.now_s
        if self._asked_s is None:
            return None
        if view.now_s - self._asked_s >= self.zero_after_s:
            return []
        self._update_strain(view)
        return [kind._replace(rate_per_s=self._strain * kind.rate_per_s) for kind in kinds]

    def _update_strain(self, view: ClusterView) -> None:
        """Learn whether busy workers miss deadlines."""
        busy = sum(worker.busy_share for worker in view.workers)
        is_busy = bool(view.workers) and busy >= self.utilisation * len(view.workers)
        if is_busy and view.missed_per_s > _MISSED * sum(view.arrivals_per_s.values()):
            self._strain = min(self._strain * _STRAIN_UP, _MOST_STRAIN)
        else:
            self._strain = max(self._strain * _STRAIN_DOWN, 1.0)

    def _best(self, view: ClusterView, expected: list[KindRate], present: Plan) -> Plan:
        """Returns the best plan; if it is empty while queries wait, one cheapest worker."""
        sizes = {size for pool in view.pools for size in pool.sizes}
        names = sorted((sizes | {size for _, size in present}) & set(view.device_classes))
        offer = offer_of(view.variants, names)
        rate_per_s = np.array([kind.rate_per_s for kind in expected])
        time_s = np.full((len(expected), len(offer.placements)), inf)
        service = service_of(expected, offer)
        number, column = np.nonzero(service.can)
        time_s[number, service.rows[number, column]] = service.time_s[number, column]
        if expected:
            rate_per_s, time_s = merged(rate_per_s, time_s)
        found = best_plan(
            rate_per_s,
            time_s,
            offer,
            view.pools,
            present,
            view.device_classes,
            self.utilisation,
            self.prices,
            self.limits,
        )
        plan = present
        if found is not None:
            plan, self.quality = found
        scaled = {pool.name for pool in view.pools if pool.max_workers > 0}
        is_idle = not plan.total() and all(worker.pool in scaled for worker in view.workers)
        if is_idle and view.open_queries:
            able = offer.class_of[np.isfinite(time_s).any(axis=0)]
            plan = _cheapest(view, {offer.classes[number] for number in able})
        return plan

    def _stabilise(self, view: ClusterView, plan: Plan) -> Plan:
        """Returns the most expensive recent plan, of equal ones the latest."""
        if self._plans and view.now_s < self._plans[-1][0]:
            self._plans.clear()  # the clock jumped back
        self._plans.append((view.now_s, plan))
        while self._plans[0][0] < view.now_s - self.down_after_s:
            self._plans.popleft()
        return max(
            (plan for _, plan in reversed(self._plans)),
            key=lambda plan: round(rent_usd_per_s(plan, view.device_classes), 12),
        )


def _cheapest(view: ClusterView, able: Collection[str]) -> Plan:
    """Returns one worker of the cheapest class that is able to serve; empty without any."""
    slots = [
        (pool.name, size)
        for pool in view.pools
        for size in pool.sizes
        if size in able and pool.max_workers > 0
    ]
    slots.sort(key=lambda slot: (view.device_classes[slot[1]].cost_usd(1.0), slot))
    return Counter(slots[:1])


def _unpooled(view: ClusterView, present: Plan) -> Plan:
    """Returns the workers outside the pools, which stay as they are."""
    pooled = {pool.name for pool in view.pools}
    return Counter({key: count for key, count in present.items() if key[0] not in pooled})
