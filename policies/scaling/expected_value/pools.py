"""The number and the sizes of workers, in pools that may grow: as many as pay, down to none.

A mixed-integer program weighs answers in time and accuracy against rent and moves. The division of
queries among placements is part of it, so a cheaper variant, a larger worker and one more worker
compete on equal terms, as in Proteus (Ahmad et al., ASPLOS 2024), here with workers of several
sizes that may change into each other. A limit on the work ends the search, so that the same demand
gives the same plan on any machine; without a plan all stays as it is.

Pools grow at once. They shrink only to the most expensive plan that was the best at any time in a
window (the stabilisation window of Kubernetes' Horizontal Pod Autoscaler). On a disturbed machine
workers may be slower than profiled: while busy workers miss deadlines, demand is multiplied by a
growing factor (*strain*), which falls slowly afterwards.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from math import inf, isfinite, nan

import numpy as np

from modelless.common.errors import InvalidInputError
from modelless.policies.plan_quality import PlanQuality, PlanSource
from modelless.policies.scaling.expected_value.offer import Offer, offer_of
from modelless.policies.scaling.expected_value.rates import KindRate
from modelless.policies.scaling.expected_value.worth import service_of
from modelless.policies.scaling.mixed_integer import MixedIntegerProgram, SolverLimits
from modelless.policies.views import ClusterView, FloatArray
from modelless.variants.vocabulary import DeviceClass

_GAP = 1e-6
_MOST_KINDS = 64
_MISSED = 0.01  # of the arrivals: more than this is too many
_STRAIN_UP, _STRAIN_DOWN, _MOST_STRAIN = 1.25, 0.99, 8.0  # a second
_LEAST_USD = 0.001
"""An answer is worth so much, ..."""
_RENTS = 10.0
"""... or so many times the rent of the time that it takes: a worker that is needed a tenth of the
time pays."""
_RESIZE_S = 1.0  # seconds of rent that a resize costs, far less than a start

Plan = Counter[tuple[str, str]]
"""The number of workers by pool and size."""


class PoolSizes:
    """Plans the workers of pools by what they earn less their rent.

    Args:
        query_usd: value of an answer in time. By default 0.001, or ten times the rent of the time
            that it takes with the quickest variant, on the class where that is dearest, if that is
            more: of a model that runs for seconds, an answer is worth more.
        accuracy_usd: further value of a perfectly accurate answer.
        utilisation: the share of a worker's time to plan with, above 0 and up to 1.
        down_after_s: seconds without a break for which fewer or smaller workers must have been
            enough.
        zero_after_s: seconds without any query after which no demand is expected.
        horizon_s: seconds within which starting or resizing a worker must pay.
        node_limit: nodes of the solver's search tree per plan.
        time_limit_s: a backstop for the solver, wall-clock seconds per plan. A plan that it ended
            may differ on another machine, and says so.
    """

    def __init__(
        self,
        query_usd: float | None = None,
        accuracy_usd: float = 0.00001,
        utilisation: float = 0.7,
        down_after_s: float = 30.0,
        zero_after_s: float = 60.0,
        horizon_s: float = 120.0,
        node_limit: int = 200,
        time_limit_s: float = 10.0,
    ) -> None:
        stated = () if query_usd is None else (("query_usd", query_usd),)
        for name, value in (*stated, ("horizon_s", horizon_s)):
            if not 0.0 < value < inf:
                raise InvalidInputError.of(name, value, "above 0, finite")
        for name, value in (
            ("accuracy_usd", accuracy_usd),
            ("down_after_s", down_after_s),
            ("zero_after_s", zero_after_s),
        ):
            if not 0.0 <= value < inf:
                raise InvalidInputError.of(name, value, "0 or more, finite")
        if not 0.0 < utilisation <= 1.0:
            raise InvalidInputError.of("utilisation", utilisation, "above 0 and up to 1")
        self.limits = SolverLimits(node_limit, _GAP, time_limit_s).validated()
        self.query_usd, self.accuracy_usd = query_usd, accuracy_usd
        self.horizon_s = horizon_s
        self.down_after_s = down_after_s
        self.zero_after_s = zero_after_s
        self.utilisation = utilisation
        self._asked_s: float | None = None  # time of the last query
        self._strain, self._strained_s = 1.0, -inf  # and when that was learned
        self.quality: PlanQuality | None = None
        # Recent plans, each dearer than those after it; with their times and rents.
        self._plans: deque[tuple[float, float, Plan]] = deque()

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
        present = Counter((worker.pool, worker.size) for worker in view.workers)
        expected = self._expected(view, kinds)
        plan = present if expected is None else self._best(view, expected, present)
        kept = self._stabilise(view, plan)
        if self.quality is not None and kept != plan:
            self.quality = self.quality._replace(remark="a dearer one of late is kept for now")
        wanted = dict.fromkeys((size for pool in view.pools for size in pool.sizes), 0)
        pooled = {pool.name for pool in view.pools}
        elsewhere = Counter({key: n for key, n in present.items() if key[0] not in pooled})
        for source in (kept, elsewhere):
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
        span_s = min(max(view.now_s - self._strained_s, 0.0), 1.0)
        self._strained_s = view.now_s
        busy = sum(worker.busy_share for worker in view.workers)
        is_busy = bool(view.workers) and busy >= self.utilisation * len(view.workers)
        if is_busy and view.missed_per_s > _MISSED * sum(view.arrivals_per_s.values()):
            self._strain = min(self._strain * _STRAIN_UP**span_s, _MOST_STRAIN)
        else:
            self._strain = max(self._strain * _STRAIN_DOWN**span_s, 1.0)

    def _best(self, view: ClusterView, expected: list[KindRate], present: Plan) -> Plan:
        """Returns the best plan; if it is empty while queries wait, one cheapest worker."""
        sizes = {size for pool in view.pools for size in pool.sizes}
        names = sorted((sizes | {size for _, size in present}) & set(view.device_classes))
        offer = offer_of(view.variants, names)
        time_s = np.full((len(expected), len(offer.placements)), inf)
        service = service_of(expected, offer)
        number, column = np.nonzero(service.can)
        time_s[number, service.rows[number, column]] = service.time_s[number, column]
        rates = np.array([kind.rate_per_s for kind in expected])
        plan = self._solved(view, *merged(rates, time_s), offer, present)
        scaled = {pool.name for pool in view.pools if pool.max_workers > 0}
        is_idle = not plan.total() and all(worker.pool in scaled for worker in view.workers)
        if is_idle and view.open_queries:
            able = offer.class_of[np.isfinite(time_s).any(axis=0)]
            plan = _cheapest(view, {offer.classes[number] for number in able})
        return plan

    def _solved(
        self,
        view: ClusterView,
        rate_per_s: FloatArray,
        time_s: FloatArray,
        offer: Offer,
        present: Plan,
    ) -> Plan:
        """Returns the plan of the program; the present one if the program gives none.

        A *slot* is a pool's worker of one size, and a *flow* a kind with a placement that serves
        it. The columns are workers by slot, queries a second by flow, resized or started workers
        by slot, and started workers by pool.
        """
        pools, classes = view.pools, view.device_classes
        slots = [(pool, size) for pool in pools for size in pool.sizes if size in classes]
        kind_of, placed = np.nonzero(np.isfinite(time_s))
        moved = len(slots) + len(placed)
        started = moved + len(slots)
        rent_usd = np.array([classes[size].cost_usd(1.0) for _, size in slots])
        is_scaled = [pool.name in classes for pool in pools]  # that of the gateways is not
        start_usd = [
            classes[pool.name].cost_usd(pool.start_s) / self.horizon_s if may else 0.0
            for pool, may in zip(pools, is_scaled, strict=True)
        ]
        query_usd = self._query_usd(time_s, offer, classes)
        worth_usd = query_usd[kind_of] + self.accuracy_usd * offer.accuracy[placed]
        resize_usd = rent_usd * _RESIZE_S / self.horizon_s
        gain = np.concatenate([-rent_usd, worth_usd, -resize_usd, -np.array(start_usd)])
        scale = max(float(np.abs(gain).max(initial=0.0)), 1e-12)  # tolerances are absolute
        program = MixedIntegerProgram(gain / scale, len(slots), np.full(len(gain), inf))
        flows = np.arange(len(placed)) + len(slots)
        for kind, rate in enumerate(rate_per_s.tolist()):
            program.add(dict.fromkeys(flows[kind_of == kind].tolist(), 1.0), -inf, rate)
        pooled = {pool.name for pool in pools}
        for number, name in enumerate(offer.classes):
            mine = np.flatnonzero(offer.class_of[placed] == number)
            used = zip(flows[mine].tolist(), time_s[kind_of, placed][mine].tolist(), strict=True)
            own = [slot for slot, (_, size) in enumerate(slots) if size == name]
            there = [
                n for (pool, size), n in present.items() if size == name and pool not in pooled
            ]
            given = dict.fromkeys(own, -self.utilisation)
            program.add({**dict(used), **given}, -inf, self.utilisation * sum(there))
        for slot, (pool, size) in enumerate(slots):
            program.add({slot: 1.0, moved + slot: -1.0}, -inf, present.get((pool.name, size), 0))
        for number, (pool, may) in enumerate(zip(pools, is_scaled, strict=True)):
            own = [slot for slot, (other, _) in enumerate(slots) if other is pool]
            count = sum(n for (name, _), n in present.items() if name == pool.name)
            least, most = (pool.min_workers, pool.max_workers) if may else (count, count)
            program.add(dict.fromkeys(own, 1.0), least, most)
            program.add({**dict.fromkeys(own, 1.0), started + number: -1.0}, -inf, count)
            if pool.max_cores is not None:
                cores = {slot: float(classes[slots[slot][1]].threads) for slot in own}
                program.add(cores, -inf, pool.max_cores)
        found = program.maximise(self.limits)
        if found.values is None:
            if not found.is_impossible:
                self.quality = PlanQuality(PlanSource.LAST_PLAN, nan, found.by_clock)
            return present
        gap = (found.bound - found.worth) / max(abs(found.worth), 1e-12)
        gap = max(gap, 0.0) if isfinite(found.bound) else nan
        self.quality = PlanQuality(PlanSource.PROGRAM, gap, found.by_clock)
        counts = found.values[: len(slots)].tolist()
        return Counter(
            {(pool.name, size): round(n) for (pool, size), n in zip(slots, counts, strict=True)}
        )

    def _query_usd(
        self, time_s: FloatArray, offer: Offer, classes: Mapping[str, DeviceClass]
    ) -> FloatArray:
        """Returns what an answer in time is worth, shape (k,)."""
        if self.query_usd is not None:
            return np.full(len(time_s), self.query_usd)
        worth_usd = np.full(len(time_s), _LEAST_USD)
        for number, name in enumerate(offer.classes):
            least_s = time_s[:, offer.class_of == number].min(axis=1, initial=inf)
            rent_usd = np.where(np.isfinite(least_s), least_s, 0.0) * classes[name].cost_usd(1.0)
            worth_usd = np.maximum(worth_usd, _RENTS * rent_usd)
        return worth_usd

    def _stabilise(self, view: ClusterView, plan: Plan) -> Plan:
        """Returns the most expensive recent plan, of equal ones the latest."""
        if self._plans and view.now_s < self._plans[-1][0]:
            self._plans.clear()  # the clock jumped back
        rent_usd_per_s = round(_rent_usd_per_s(plan, view.device_classes), 12)
        while self._plans and self._plans[-1][1] <= rent_usd_per_s:
            self._plans.pop()
        self._plans.append((view.now_s, rent_usd_per_s, plan))
        while self._plans[0][0] < view.now_s - self.down_after_s:
            self._plans.popleft()
        return self._plans[0][2]


def merged(rate_per_s: FloatArray, time_s: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns kinds that the same placements serve equally, merged; of very many the largest.

    The rates of the largest are scaled up to the total.

    Args:
        rate_per_s: queries a second of each kind, shape (k,).
        time_s: device time of a query, shape (k, p); inf where the placement must not serve it.
    """
    if not len(rate_per_s):
        return rate_per_s, time_s
    rows, number = np.unique(time_s, axis=0, return_inverse=True)
    rates = np.bincount(number.reshape(-1), weights=rate_per_s, minlength=len(rows))
    kept = np.argsort(-rates, kind="stable")[:_MOST_KINDS]
    most = rates[kept].sum()
    return rates[kept] * (rates.sum() / most if most > 0.0 else 1.0), rows[kept]


def _rent_usd_per_s(plan: Plan, classes: Mapping[str, DeviceClass]) -> float:
    return sum(classes[size].cost_usd(1.0) * n for (_, size), n in plan.items() if size in classes)


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
