"""Model switching: serves every query with the most accurate variant that can carry the load.

Zhang et al., HotCloud 2020. It measures the arrival rate and serves all queries with the one model
of most effective accuracy at that rate, where late answers count as 0. RAMSIS and Sommelier switch
in the same spirit. Nothing is loaded or moved; only the choice changes.

The paper looks the model up in a table of load tests. Here its capacity is computed: the queries
that the workers with the model that recently asked for work can answer one by one at the predicted
p50. A policy is not told which workers hold what. Those that never ask had no work, so the known
workers suffice for the past load, and their number grows with it. The paper has no minimum
accuracy; queries that must be served above the level take their share of the capacity first. A
level is raised only after some calm periods in a row, so that a rate near the limit does not switch
it back and forth (ours), and a share of the capacity is kept in reserve.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from modelless.common.errors import InvalidInputError
from modelless.policies.reasons import Reason
from modelless.policies.seams import BatchingPolicy, SelectionPolicy
from modelless.policies.selection.eligibility import (
    in_time_if_idle,
    list_all_options,
    within_limits,
)
from modelless.policies.selection.feasibility import Options, best, why_infeasible
from modelless.policies.views import (
    Bind,
    Candidates,
    Choice,
    FloatArray,
    QueryView,
    QueueView,
    Reject,
    Run,
    Wait,
    WorkerView,
)
from modelless.variants.vocabulary import Placement

_SEEN_S = 30.0
"""The seconds after which a worker that has not asked for work does not count."""


@dataclass(slots=True)
class _Level:
    """The level of one scope: nothing more accurate than ``accuracy_percent`` is used.

    It starts with the fastest variant, because nothing is known in the first period.
    """

    since_s: float
    items: Counter[int] = field(default_factory=Counter)  # of this period, by minimum accuracy
    accuracy_percent: float = -math.inf
    busy_share: float = 0.0  # of all workers, by this scope
    calm_periods: int = 0


class ModelSwitching(SelectionPolicy):
    """One level of accuracy for each scope, lowered at once and raised with delay.

    A query gets the most accurate variant up to the level that would be in time on an idle system;
    if its minimum accuracy is above the level, the fastest that is accurate enough.

    Args:
        period_s: seconds between two measurements of the rate.
        utilisation: the share of the workers' time to plan with.
        calm_periods: successive periods in which a more accurate level must be possible before it
            is chosen.
        batching: how bound queries share batches.
    """

    def __init__(
        self,
        period_s: float = 1.0,
        utilisation: float = 0.8,
        calm_periods: int = 3,
        batching: BatchingPolicy | None = None,
    ) -> None:
        super().__init__(batching)
        if not 0.0 < period_s < math.inf:
            raise InvalidInputError.of("period_s", period_s, "seconds, above 0")
        if not 0.0 < utilisation <= 1.0:
            raise InvalidInputError.of("utilisation", utilisation, "above 0, up to 1")
        if calm_periods < 1:
            raise InvalidInputError.of("calm_periods", calm_periods, "1 or more")
        self.period_s = period_s
        self.utilisation = utilisation
        self.calm_periods = calm_periods
        self._levels: dict[str, _Level] = {}
        self._seen: dict[str, tuple[float, frozenset[Placement]]] = {}  # by worker

    def on_arrival(
        self, query: QueryView, candidates: Candidates, rng: np.random.Generator
    ) -> Choice:
        now_s = candidates.now_s
        options = list_all_options(query, candidates)
        level = self._levels.setdefault(query.scope, _Level(now_s))
        if now_s - level.since_s >= self.period_s:
            self._set_level(query, candidates, options)
        possible = within_limits(query, options) & in_time_if_idle(query, options)
        if not possible.any():
            return Reject(why_infeasible(query, options))
        level.items[math.floor(query.min_accuracy_percent)] += query.items
        accuracy_percent, latency_s = options.accuracy_percent, options.latency_s
        affordable = possible & (accuracy_percent <= level.accuracy_percent)
        if affordable.any():
            allowed = options._replace(feasible=affordable)
            row = best(candidates, allowed, -accuracy_percent, options.finish_s)
        else:
            allowed = options._replace(feasible=possible)
            row = best(candidates, allowed, latency_s, -accuracy_percent)
        return Reject(Reason.NOTHING_READY) if row is None else Bind(row, Reason.BEST_FIT)

    def on_idle(
        self,
        worker: WorkerView,
        queues: Sequence[QueueView],
        now_s: float,
        rng: np.random.Generator,
    ) -> Run | Wait:
        holds = frozenset(Placement(name, worker.device_class) for name in worker.residents)
        self._seen[worker.worker_id] = (now_s, holds)
        return super().on_idle(worker, queues, now_s, rng)

    def _set_level(self, query: QueryView, candidates: Candidates, options: Options) -> None:
        """End a period and set the most accurate level that would have kept up with it."""
        now_s, level = candidates.now_s, self._levels[query.scope]
        per_s = {least: items / (now_s - level.since_s) for least, items in level.items.items()}
        level.since_s, level.items = now_s, Counter()
        accuracy_percent, capacity_per_s = self._ladder(query, candidates, options)
        if not len(accuracy_percent):
            return
        spare = self.utilisation - sum(
            other.busy_share
            for scope, other in self._levels.items()
            if scope != query.scope and now_s - other.since_s < 2.0 * self.period_s
        )
        busy_share = _busy_share(per_s, accuracy_percent, capacity_per_s)
        covering = np.flatnonzero(busy_share <= spare)
        chosen = int(covering[-1]) if len(covering) else int(busy_share.argmin())
        wanted = float(accuracy_percent[chosen])
        level.calm_periods = level.calm_periods + 1 if wanted > level.accuracy_percent else 0
        calm = level.calm_periods >= self.calm_periods or level.accuracy_percent == -math.inf
        if calm or wanted < level.accuracy_percent:
            level.accuracy_percent, level.calm_periods = wanted, 0
        used = int(np.searchsorted(accuracy_percent, level.accuracy_percent, side="right")) - 1
        level.busy_share = float(busy_share[max(0, used)])

    def _ladder(
        self, query: QueryView, candidates: Candidates, options: Options
    ) -> tuple[FloatArray, FloatArray]:
        """Returns the variants' accuracies, ascending, and the items a second of all workers."""
        holders: Counter[Placement] = Counter()
        for worker_id, (seen_s, holds) in list(self._seen.items()):
            if candidates.now_s - seen_s > _SEEN_S:
                del self._seen[worker_id]
            else:
                holders.update(holds)
        capacity_per_s: dict[tuple[float, str], float] = {}
        columns = zip(
            candidates.placements,
            options.accuracy_percent.tolist(),
            options.latency_s.tolist(),
            strict=True,
        )
        for placement, accuracy, latency_s in columns:
            if 0.0 < latency_s < math.inf:
                key = (accuracy, placement.variant_id)
                items_per_s = max(1, holders[placement]) * query.items / latency_s
                capacity_per_s[key] = capacity_per_s.get(key, 0.0) + items_per_s
        ladder = sorted(capacity_per_s)
        return (
            np.array([accuracy for accuracy, _ in ladder]),
            np.array([capacity_per_s[key] for key in ladder]),
        )


def _busy_share(
    per_s: Mapping[int, float], accuracy_percent: FloatArray, capacity_per_s: FloatArray
) -> FloatArray:
    """Returns the share of the workers' time that each level would take, shape (n,).

    Queries that want more accuracy than the level get the variant of most capacity that has it.

    Args:
        per_s: items a second by minimum accuracy.
        accuracy_percent: accuracy of each level, ascending, shape (n,).
        capacity_per_s: items a second of each level, shape (n,).
    """
    busy_share = np.zeros_like(capacity_per_s)
    for least, rate_per_s in per_s.items():
        enough = accuracy_percent >= least
        if enough.any():
            above = capacity_per_s[enough].max()
            busy_share += rate_per_s / np.where(enough, capacity_per_s, above)
    return busy_share
