"""Demand value: holds the instances with the most accuracy-weighted goodput per byte.

One objective decides on instances and on workers: accuracy-weighted goodput over a horizon, less
the loss while things load, less rent. A change whose gain up to the horizon is less than its cost
is not made; nothing else damps flapping. The objective combines published parts: the mix of
variants under load (Proteus, Ahmad et al., ASPLOS 2024), the price of reloading (InfAdapter,
Salmani et al., EuroMLSys 2023), worth per byte (GreedyDual-Size, Cao and Irani, USITS 1997) and
break-even scale-down (Karlin et al., Algorithmica 1988).

Room that is left is filled with what would earn most if demand were several times as high, and then
with anything: loads into free room displace nothing, and a surge finds there what it needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import ceil, inf, isfinite

import numpy as np

from modelless.common.errors import InvalidInputError
from modelless.policies.reasons import Reason
from modelless.policies.scaling.demand_value.loads import LoadsUnderWay
from modelless.policies.scaling.demand_value.moves import Search
from modelless.policies.scaling.demand_value.offer import Offer, offer_of
from modelless.policies.scaling.demand_value.rates import KindKey, KindRate, KindRates
from modelless.policies.scaling.demand_value.shelves import Shelf, fill, has_room, shelves_of
from modelless.policies.scaling.demand_value.workers import WorkerCounts
from modelless.policies.scaling.demand_value.worth import (
    Served,
    serve,
    shares_of,
    worth_of,
)
from modelless.policies.scaling.fixed import Fixed
from modelless.policies.scopes import task_of
from modelless.policies.seams import ScalingPolicy
from modelless.policies.views import ClusterView, FloatArray, Targets
from modelless.variants.vocabulary import Placement

_STRESS = (4.0, 16.0, 64.0)  # times the demand that room nothing else needs is used for
_INSURED = 0.01  # of the mean rate: what clients nobody has seen yet count


class DemandValue(ScalingPolicy):
    """The most valuable set of instances that memory, time and reloading allow.

    Args:
        horizon_s: seconds within which a change must pay; longer than loads take.
        utilisation: the share of a worker's time to plan with, above 0 and up to 1.
        slack: a variant suits a latency limit if its median time is at most the limit divided by
            this.
        memory_s: time constant of the arrival rates, seconds.
        spread: the share of a variant's worth at risk while only one worker holds it; 0 to 1.
        loading: the share of a worker's mean worth that is lost while it loads; 0 to 1.
        scale_workers: whether the policy also decides the number of workers.
        most_workers: most workers to plan with, by device class, with ``scale_workers``.
        query_usd: value of a perfectly accurate answer in time, with ``scale_workers``.
        start_s: seconds from wanting a worker to having it, with ``scale_workers``.
    """

    def __init__(
        self,
        horizon_s: float = 120.0,
        utilisation: float = 0.7,
        slack: float = 2.0,
        memory_s: float = 300.0,
        spread: float = 0.2,
        loading: float = 0.1,
        scale_workers: bool = False,
        most_workers: Mapping[str, int] | None = None,
        query_usd: float = 0.001,
        start_s: float = 30.0,
    ) -> None:
        self.horizon_s = _positive("horizon_s", horizon_s)
        self.utilisation = _share("utilisation", utilisation)
        if not utilisation > 0.0:
            raise InvalidInputError.of("utilisation", utilisation, "above 0 and up to 1")
        if not 1.0 <= slack < inf:
            raise InvalidInputError.of("slack", slack, "1 or more, finite")
        self.slack = slack
        self.memory_s = _positive("memory_s", memory_s)
        self.spread = _share("spread", spread)
        self.loading = _share("loading", loading)
        self.scale_workers = scale_workers
        self.most_workers = dict(most_workers or {})
        for name, count in self.most_workers.items():
            if type(count) is not int or count < 0:
                raise InvalidInputError.of(f"most_workers.{name}", count, "a whole number from 0")
        self.query_usd = _positive("query_usd", query_usd)
        self.start_s = _positive("start_s", start_s)
        self._rates = KindRates(memory_s)
        self._loads = LoadsUnderWay()
        self._counts = WorkerCounts()
        self._earned_per_s: dict[str, float] = {}  # of a busy second of each class's time
        self._all = Fixed()

    def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
        self._rates.observe(view)
        loads_left_s = self._loads.observe(view)
        present = Counter(worker.device_class for worker in view.workers)
        tasks = sorted({variant.task for variant in view.variants})
        told = self._rates.rates(forecast_per_s, len(tasks))
        workers = self._workers(view, told, present) if self.scale_workers else {}
        offer = offer_of(view.variants, sorted(present))
        kinds = told + self._insured(told, tasks, view, offer)
        everything = self._all.targets(view, forecast_per_s).instances
        roomy = _roomy(view, offer)
        shelves = shelves_of(view.workers, offer, loads_left_s)
        fill([shelf for shelf in shelves if shelf.class_number in roomy], offer, everything)
        search = self._search(kinds, 1.0, present, offer, shelves, _waiting(view, kinds))
        if len(roomy) < len(offer.classes):
            search.run()
            if has_room(shelves, offer):
                for factor in _STRESS:
                    self._search(kinds, factor, present, offer, shelves).run(free_room_only=True)
                fill(shelves, offer, everything)
            search.recount()
        served = search.serve()
        per_byte = search.losses(served) / np.maximum(offer.memory_bytes, 1.0)
        instances: dict[Placement, int] = {}
        for row in np.lexsort((np.arange(len(per_byte)), -per_byte)).tolist():
            if offer.class_of[row] not in roomy and search.count[row]:
                instances[offer.placements[row]] = int(search.count[row])
        whole = {offer.classes[number] for number in roomy}
        instances.update((p, count) for p, count in everything.items() if p.device_class in whole)
        return Targets(instances, workers, Reason.OPTIMISED, shares_of(kinds, offer, served))

    def _search(
        self,
        kinds: Sequence[KindRate],
        factor: float,
        present: Mapping[str, int],
        offer: Offer,
        shelves: Sequence[Shelf],
        waiting: FloatArray | None = None,
    ) -> Search:
        """A search for moves that suit ``factor`` times the demand."""
        demand = [kind._replace(rate_per_s=factor * kind.rate_per_s) for kind in kinds]
        time_per_s = np.array([present[name] * self.utilisation for name in offer.classes])
        worth = worth_of(demand, offer, self.slack, time_per_s, np.zeros(len(offer.classes)))
        return Search(
            offer,
            worth,
            shelves,
            np.zeros(len(kinds)) if waiting is None else waiting,
            self.horizon_s,
            self.utilisation,
            self.spread,
            self.loading,
        )

    def _insured(
        self, told: list[KindRate], tasks: list[str], view: ClusterView, offer: Offer
    ) -> list[KindRate]:
        """Clients nobody has seen yet: of each task, who wants the best and who wants the soonest.

        They are few, but a task nobody has asked for is not worth nothing.
        """
        asked = {task_of(kind.key.scope) for kind in told}
        mean_per_s = self._rates.mean_per_s(len(tasks))
        unseen_per_s = self._rates.unseen_per_s(len(tasks))
        quickest: dict[str, float] = {}
        for facts in view.variants:
            for name in offer.classes:
                latency_s = facts.latency_s.get(name, inf)
                if 0.0 <= latency_s < quickest.get(facts.task, inf):
                    quickest[facts.task] = latency_s
        insured = []
        for task in tasks:
            rate_per_s = _INSURED * mean_per_s if task in asked else unseen_per_s
            insured.append(KindRate(KindKey(task, inf, 0.0), rate_per_s, 1.0))
            soonest_s = self.slack * quickest.get(task, inf) * 1.01
            if isfinite(soonest_s):
                insured.append(KindRate(KindKey(task, soonest_s, 0.0), rate_per_s, 1.0))
        return insured

    def _workers(
        self, view: ClusterView, told: list[KindRate], present: Mapping[str, int]
    ) -> dict[str, int]:
        """Workers that the demand told is worth, if any was."""
        if not told:
            return {}
        offer = offer_of(view.variants, sorted(view.device_classes))
        rents = {name: view.device_classes[name].cost_usd(1.0) for name in offer.classes}
        prices = np.array([rents[name] for name in offer.classes])
        most = [self.most_workers.get(name, inf) for name in offer.classes]
        worth = worth_of(
            told,
            offer,
            self.slack,
            np.array(most) * self.utilisation,
            prices / (self.utilisation * self.query_usd),
        )
        plenty = np.full(len(offer.placements), 10**6, dtype=np.intp)
        served = serve(worth, plenty, self.utilisation)
        needed, start_loss_usd = {}, {}
        for number, name in enumerate(offer.classes):
            spent = float(served.spent[offer.class_of == number].sum())
            count = ceil(spent / self.utilisation - 1e-9)
            needed[name] = int(min(count, most[number]))
            if spent > 0.0:
                self._earned_per_s[name] = _earned_per_s(served, offer, number) / spent
            earned_per_s = self._earned_per_s.get(name, 0.0) * self.utilisation
            start_loss_usd[name] = earned_per_s * self.start_s * self.query_usd
        return self._counts.wanted(view.now_s, present, needed, rents, start_loss_usd)


def _earned_per_s(served: Served, offer: Offer, class_number: int) -> float:
    """What a class earns a second, in perfectly accurate answers."""
    mine = (served.by >= 0) & (offer.class_of[served.by] == class_number)
    return float((served.amount_per_s * served.gain)[:, :-1][mine].sum())


def _roomy(view: ClusterView, offer: Offer) -> set[int]:
    """The classes each of whose workers has memory for all that can run there."""
    roomy = set()
    for number, name in enumerate(offer.classes):
        needed = float(offer.memory_bytes[offer.class_of == number].sum())
        least = min(w.memory_bytes for w in view.workers if w.device_class == name)
        if needed <= least:
            roomy.add(number)
    return roomy


def _waiting(view: ClusterView, kinds: Sequence[KindRate]) -> FloatArray:
    """(k,), queries that found nothing loaded and wait for it."""
    waiting = np.zeros(len(kinds))
    first: dict[str, int] = {}
    for row, kind in enumerate(kinds):
        first.setdefault(kind.key.scope, row)
    for scope in view.unmet_per_s:
        if scope in first:
            waiting[first[scope]] = view.open_queries.get(scope, 0)
    return waiting


def _positive(name: str, value: float) -> float:
    if not 0.0 < value < inf:
        raise InvalidInputError.of(name, value, "above 0, finite")
    return value


def _share(name: str, value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise InvalidInputError.of(name, value, "0 to 1")
    return value
