"""Workload-variant autoscaler: a replica more of the cheapest variant when replicas are saturated.

The saturation analyser of llm-d's Workload Variant Autoscaler (llm-d, "Saturation Analyzer", 2026).
A replica is saturated if its cache is 80 % full or five requests wait for it. A model gets one more
replica, of its cheapest variant, if the replicas that are not saturated have on average less than
10 % or fewer than three requests to spare. It loses one, of its dearest variant, if the load of all
of these would leave the others as much to spare. While a replica is starting, none is added. Peaks
since the last decision count. Each variant keeps one replica.

Departures. The source's variants serve one base model on different hardware; here they are the
variants of a task on device classes, whose accuracies differ, which the rule does not see. A
worker's busy share stands for the fill of a cache, and a task's open queries over its replicas for
the queue of one. A replica costs the share of its device's price that its memory takes. The source
decides once a minute; the default here is shorter, because loads here change in seconds. The number
of workers, which the source leaves to Kubernetes, is left alone; so is its second analyser, which
needs a queueing model of token latencies.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from math import inf, isfinite

from modelless.common.errors import InvalidInputError
from modelless.policies.reasons import Reason
from modelless.policies.scopes import task_of
from modelless.policies.seams import ScalingPolicy
from modelless.policies.views import ClusterView, Targets
from modelless.variants.vocabulary import Placement


class WorkloadVariantAutoscaler(ScalingPolicy):
    """One replica more or fewer of a task at a time, by what its replicas have to spare.

    Args:
        interval_s: seconds between two decisions.
        busy_share, queue: a replica that is as busy, or for which as many queries wait, is
            saturated.
        spare_share, spare_queue: what the other replicas are to have to spare on average.
    """

    def __init__(
        self,
        interval_s: float = 10.0,
        busy_share: float = 0.8,
        queue: float = 5.0,
        spare_share: float = 0.1,
        spare_queue: float = 3.0,
    ) -> None:
        if not 0.0 <= interval_s < inf:
            raise InvalidInputError.of("interval_s", interval_s, "seconds, 0 or more")
        for name, value in (
            ("busy_share", busy_share),
            ("queue", queue),
            ("spare_share", spare_share),
            ("spare_queue", spare_queue),
        ):
            if not 0.0 < value < inf:
                raise InvalidInputError.of(name, value, "a number above 0")
        self.interval_s = interval_s
        self.busy_share, self.queue = busy_share, queue
        self.spare_share, self.spare_queue = spare_share, spare_queue
        self._decided_s = inf
        self._wanted: dict[Placement, int] = {}
        self._peak_share: dict[str, float] = {}  # by worker
        self._peak_open: dict[str, int] = {}  # by task

    def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
        self._note_peaks(view)
        costs = _costs_usd(view)
        workers = Counter(worker.device_class for worker in view.workers)
        self._wanted = {
            placement: min(max(self._wanted.get(placement, 1), 1), workers[placement.device_class])
            for placement in sorted(costs, key=lambda p: (costs[p], _name(p)))
        }
        passed_s = view.now_s - self._decided_s
        if not 0.0 <= passed_s < self.interval_s:
            if passed_s >= 0.0:
                self._decide(view, workers)
            self._decided_s = view.now_s
            self._peak_share.clear()
            self._peak_open.clear()
        return Targets(dict(self._wanted), {}, Reason.DEMAND)

    def _note_peaks(self, view: ClusterView) -> None:
        for worker in view.workers:
            known = self._peak_share.get(worker.worker_id, 0.0)
            self._peak_share[worker.worker_id] = max(known, worker.busy_share)
        waiting: Counter[str] = Counter()
        for scope, count in view.open_queries.items():
            waiting[task_of(scope)] += count
        for task, count in waiting.items():
            self._peak_open[task] = max(self._peak_open.get(task, 0), count)

    def _decide(self, view: ClusterView, workers: Mapping[str, int]) -> None:
        """Want one replica more or fewer of each task, or none; ``_wanted`` is by cost."""
        by_task: defaultdict[str, list[Placement]] = defaultdict(list)
        for placement in self._wanted:
            by_task[task_of(placement.variant_id)].append(placement)
        held = view.count_instances()
        shares: defaultdict[str, list[float]] = defaultdict(list)
        for worker in view.workers:
            for instance in worker.instances:
                shares[task_of(instance.variant_id)].append(self._peak_share[worker.worker_id])
        for task, placements in by_task.items():
            change = self._change(shares[task], self._peak_open.get(task, 0))
            if change > 0 and all(self._wanted[p] <= held[p] for p in placements):
                able = [p for p in placements if self._wanted[p] < workers[p.device_class]]
                if able:
                    self._wanted[able[0]] += 1
            elif change < 0:
                able = [p for p in placements if self._wanted[p] > 1]
                if able:
                    self._wanted[able[-1]] -= 1

    def _change(self, shares: Sequence[float], open_queries: int) -> int:
        """Returns 1, 0 or -1 replicas for replicas that are so busy."""
        queue = open_queries / len(shares) if shares else inf
        calm = [share for share in shares if share < self.busy_share and queue < self.queue]
        if not calm:
            return 1 if shares else 0
        spare = self.busy_share - sum(calm) / len(calm)
        if spare < self.spare_share or self.queue - queue < self.spare_queue:
            return 1
        if len(calm) < 2:
            return 0
        rest = len(calm) - 1
        spare = self.busy_share - sum(calm) / rest
        left = self.queue - queue * len(calm) / rest
        return -1 if spare >= self.spare_share and left >= self.spare_queue else 0


def _costs_usd(view: ClusterView) -> dict[Placement, float]:
    """Returns the price of a second of each placement that fits on a worker, by its memory."""
    room_bytes: dict[str, int] = {}
    for worker in view.workers:
        known = room_bytes.get(worker.device_class, 0)
        room_bytes[worker.device_class] = max(known, worker.memory_bytes)
    costs = {}
    for variant in view.variants:
        for name, room in room_bytes.items():
            taken = variant.memory_bytes.get(name, inf)
            if isfinite(variant.latency_s.get(name, inf)) and taken <= room:
                price_usd = view.device_classes[name].cost_usd(1.0)
                costs[Placement(variant.variant_id, name)] = price_usd * taken / room
    return costs


def _name(placement: Placement) -> tuple[str, str]:
    return placement.variant_id, placement.device_class
