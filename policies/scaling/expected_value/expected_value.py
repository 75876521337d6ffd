"""Expected value: workers hold the variants whose expected gain is the highest.

The demand of the last minute says which kinds of queries to expect. A query gains the accuracy of
its answer and a bonus for being in time, less the price of device time (``worth``). What a set of
variants gains is the expected best of the offers that are free, and a load must gain more than it
displaces, with confidence (``search``). Where loads are quick, they also follow single queries: one
that nothing could serve has its variant loaded at once, if that is in time for it and it is worth
more than what is lost meanwhile. Of every task a few queries are expected that nobody has
sent yet: one in a hurry and one with all the time. Before anybody sent one, each task has its
quickest variant once, where there is most room.

Room that is worth nothing to the expected demand is filled in the order of ``fixed``: such loads
displace nothing, and a surge finds there what it needs. A worker is given few loads at a time, and
is left alone until it has loaded: the next plan knows more.

Where pools of workers may grow or change their size, ``PoolSizes`` says how many to have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError
from modelless.policies.reasons import Reason
from modelless.policies.scaling.expected_value.offer import Offer, offer_of
from modelless.policies.scaling.expected_value.pools import PoolSizes
from modelless.policies.scaling.expected_value.rates import KindRate, KindRates
from modelless.policies.scaling.expected_value.search import AHEAD_S, Holdings, Search
from modelless.policies.scaling.expected_value.worth import worth_of
from modelless.policies.scaling.fixed import Fixed
from modelless.policies.scopes import in_scope, task_of
from modelless.policies.seams import ScalingPolicy
from modelless.policies.views import ClusterView, Targets
from modelless.variants.vocabulary import Placement

_UNSEEN_QUERIES = 0.5
"""So many queries of each task that nobody has sent are expected in the time that was counted."""
_PATIENT_S = 3600.0
_HURRIED = 2.02  # times the quickest latency
_LOAD_PART = 0.5
"""Of a limit, for the load and the run: the rest is for the wait."""
_BUSY_WEIGHT = 0.1
"""Weight of a view in the mean share of time that the workers of a class are busy."""


class ExpectedValue(ScalingPolicy):
    """See the module.

    Args:
        horizon_s: time constant, seconds: a gain that is so far away counts 1/e.
        memory_s: time constant of the arrival rates, seconds.
        miss_penalty: accuracy points that a query not answered in time costs, besides its own.
        confidence_z: standard deviations by which the gain of a load must exceed what is lost.
        utilisation: the share of the workers' time that demand may fill before time gets dearer,
            above 0 and up to 1.
        pools: settings for the number and size of workers: see docs/scaling.md.
    """

    def __init__(
        self,
        horizon_s: float = 60.0,
        memory_s: float = 60.0,
        miss_penalty: float = 100.0,
        confidence_z: float = 1.645,
        utilisation: float = 0.9,
        pools: Mapping[str, Any] | None = None,
    ) -> None:
        for name, value in (("horizon_s", horizon_s), ("memory_s", memory_s)):
            if not 0.0 < value < inf:
                raise InvalidInputError.of(name, value, "above 0, finite")
        for name, value in (("miss_penalty", miss_penalty), ("confidence_z", confidence_z)):
            if not 0.0 <= value < inf:
                raise InvalidInputError.of(name, value, "0 or more, finite")
        if not 0.0 < utilisation <= 1.0:
            raise InvalidInputError.of("utilisation", utilisation, "above 0 and up to 1")
        self._horizon_s = horizon_s
        self._miss_points = miss_penalty
        self._confidence_z = confidence_z
        self._utilisation = utilisation
        self._rates = KindRates(memory_s)
        self._pools = PoolSizes(**(pools or {}))
        self._prices: dict[str, float] = {}
        self._busy: dict[str, float] = {}  # mean share by device class
        self._fixed = Fixed()

    def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
        self._rates.observe(view)
        kinds = self._rates.rates(forecast_per_s)
        workers = self._pools.workers(view, kinds)
        instances = self._instances(view, kinds)
        return Targets(instances, workers, Reason.OPTIMISED, quality=self._pools.quality)

    def _instances(self, view: ClusterView, kinds: list[KindRate]) -> dict[Placement, int]:
        """Returns the wanted instances, those to be loaded first."""
        count = Counter(worker.device_class for worker in view.workers)
        offer = offer_of(view.variants, sorted(count))
        if not offer.placements:
            return {}
        numbers = {placement: row for row, placement in enumerate(offer.placements)}
        holdings = _holdings(view, offer, numbers)
        self._learn_busy(view)
        added: list[int] = []
        if not kinds:
            added = _one_of_each(offer, holdings)
        elif holdings.allowed.any():
            tasks, self._prices = worth_of(
                kinds + self._unseen(offer),
                offer,
                np.array([float(count[name]) for name in offer.classes]),
                np.array([self._busy[name] for name in offer.classes]),
                self._prices,
                self._miss_points,
                self._utilisation,
            )
            search = Search(offer, tasks, holdings, self._horizon_s, self._confidence_z)
            search.run()
            self._load_for_waiting(view, offer, search, holdings.held)
            added = search.added
        for placement in self._fixed.targets(view, {}).instances:
            row = numbers.get(placement, -1)
            size = offer.memory_bytes[row]
            for worker in np.flatnonzero(holdings.allowed[row]).tolist() if row >= 0 else ():
                if size <= holdings.free_bytes[worker] and holdings.busy_s[worker] < AHEAD_S:
                    holdings.place(offer, row, worker)
                    added.append(row)
        held = holdings.held.sum(axis=1)
        order = [*added, *np.flatnonzero(held).tolist()]
        return {offer.placements[row]: int(held[row]) for row in order if held[row]}

    def _load_for_waiting(
        self, view: ClusterView, offer: Offer, search: Search, held: NDArray[np.bool_]
    ) -> None:
        """Load what serves the queries that nothing could serve since the last view.

        The variant that gains most, of those that a part of the queries' limit suffices for, is
        loaded at once if it gains more from them than what is displaced loses meanwhile.
        """
        ids = [placement.variant_id for placement in offer.placements]
        for demand in view.demands:
            queries = view.unmet_per_s.get(demand.scope, 0.0) * self._rates.span_s
            if not queries > 0.0:
                continue
            may = np.array([in_scope(each, demand.scope) for each in ids])
            may &= 100.0 * offer.accuracy >= demand.min_accuracy_percent - 1e-9
            may &= offer.load_s + offer.batch_s[:, 1] <= _LOAD_PART * demand.latency_s
            if held[may].any():
                continue
            search.load_now(np.flatnonzero(may).tolist(), queries)

    def _learn_busy(self, view: ClusterView) -> None:
        shares: dict[str, list[float]] = {}
        for worker in view.workers:
            shares.setdefault(worker.device_class, []).append(worker.busy_share)
        now = {name: sum(each) / len(each) for name, each in shares.items()}
        before = self._busy
        self._busy = {
            name: before.get(name, share) + _BUSY_WEIGHT * (share - before.get(name, share))
            for name, share in now.items()
        }

    def _unseen(self, offer: Offer) -> list[KindRate]:
        """Returns the queries to expect that nobody has sent yet."""
        rate_per_s = _UNSEEN_QUERIES / max(self._rates.seen_s, self._rates.memory_s)
        quickest: dict[str, float] = {}
        for placement, alone_s in zip(offer.placements, offer.batch_s[:, 1], strict=True):
            task = task_of(placement.variant_id)
            quickest[task] = min(quickest.get(task, inf), float(alone_s))
        return [
            KindRate(task, limit_s, 0.0, 1.0, rate_per_s, rate_per_s / max(self._rates.seen_s, 1.0))
            for task, least_s in quickest.items()
            for limit_s in (_PATIENT_S, _HURRIED * least_s)
        ]


def _one_of_each(offer: Offer, holdings: Holdings) -> list[int]:
    """Load the quickest variant of each task that no worker holds, where there is most room.

    Returns:
        The placements, those of the quickest first.
    """
    tasks = [task_of(placement.variant_id) for placement in offer.placements]
    held = {tasks[row] for row in np.flatnonzero(holdings.held.any(axis=1)).tolist()}
    added = []
    for row in np.argsort(offer.batch_s[:, 1], kind="stable").tolist():
        size = offer.memory_bytes[row]
        fits = holdings.allowed[row] & (size <= holdings.free_bytes)
        if tasks[row] in held or not fits.any():
            continue
        worker = int(np.where(fits, holdings.free_bytes, -1.0).argmax())
        holdings.place(offer, row, worker)
        held.add(tasks[row])
        added.append(row)
    return added


def _holdings(view: ClusterView, offer: Offer, numbers: Mapping[Placement, int]) -> Holdings:
    """Returns what the workers hold and may hold."""
    shape = (len(offer.placements), len(view.workers))
    held, movable = np.zeros(shape, dtype=np.bool_), np.zeros(shape, dtype=np.bool_)
    allowed = np.zeros(shape, dtype=np.bool_)
    held_bytes, free_bytes = np.zeros(shape), np.zeros(shape[1])
    class_of = {name: number for number, name in enumerate(offer.classes)}
    for column, worker in enumerate(sorted(view.workers, key=lambda worker: worker.worker_id)):
        runs = offer.class_of == class_of[worker.device_class]
        used = 0.0
        for instance in worker.instances:
            row = numbers.get(Placement(instance.variant_id, worker.device_class))
            size = float(instance.memory_bytes)
            may_leave = not (instance.in_use or instance.pinned)
            if row is not None:
                size = size or float(offer.memory_bytes[row])
                held[row, column], held_bytes[row, column] = True, size
                movable[row, column] = may_leave
            elif may_leave:  # an earlier version: nobody wants it, so it leaves when room is needed
                continue
            used += size
        free_bytes[column] = worker.memory_bytes - used
        if not any(instance.is_loading for instance in worker.instances):
            fits = offer.memory_bytes <= worker.memory_bytes
            allowed[:, column] = runs & fits & ~held[:, column]
            for variant_id in worker.barred:
                row = numbers.get(Placement(variant_id, worker.device_class))
                if row is not None:
                    allowed[row, column] = False
    return Holdings(held, movable, allowed, free_bytes, held_bytes, np.zeros(shape[1]))
