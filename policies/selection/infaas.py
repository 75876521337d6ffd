"""INFaaS: reuses a recent choice, or takes the running variant that fits the SLO most tightly.

The selection of INFaaS (Romero et al., "INFaaS: Automated Model-less Inference Serving", USENIX ATC
2021). It looks at recently chosen variants first, then at a bounded number in ascending accuracy.
Of those that run and are not overloaded it takes the slowest that still fits, which leaves quick
variants to queries that need them. Once a second, three rows of thresholds decide which variants
are overloaded: for accelerators, for CPUs with one replica, and for all others. Constants are the
source's.

Departures. Where that system would load a variant, the search is widened here, because loading
belongs to scaling (``infaas-autoscaler``) and placement (``least-utilised``). Its worker rule draws
one of the three least loaded hosts of the variant that are at most 80 % utilised. Here bound
queries wait in one queue for all hosts of a device class, and the first host to become idle, the
least loaded one, takes them. The source measures latencies and work in flight; a policy here does
not know them and uses the wait at the least busy host and the profile. Replicas are the hosts that
became idle in the last half minute. The source fits a line to the latencies of batches of 1, 4 and
8, and judges by the latency of the average query's items. Here the cost model knows all batch
sizes, and the items of the query that arrives at the time of judging count.

The source minimises cost. Proteus (Ahmad et al., ASPLOS 2024) compares with a second form that
maximises accuracy, ``objective: accuracy``: the most accurate running variant that fits and is not
overloaded, without the memory of recent choices, which would keep a lesser one after a burst.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError
from modelless.policies.reasons import Reason
from modelless.policies.seams import BatchingPolicy, SelectionPolicy
from modelless.policies.selection.feasibility import (
    check_quantile,
    latency_column,
    list_options,
    why_infeasible,
)
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

_RECENT: Final = 5
_LOOSE_S: Final = 0.1  # latency limit beyond which accelerators are avoided
_LEAST_EXAMINED: Final = 3
_EXAMINED_PER_S: Final = 0.15 * 1000.0 / 0.6
_PERIOD_S: Final = 1.0
_REMEMBERED_S: Final = 30.0
_DEAR: Final = 4.0
_QUICK_S: Final = 0.01  # accelerators' variants quicker than this may wait for longer
_MOST_SCOPES: Final = 1024

Mask = NDArray[np.bool_]


class _Thresholds(NamedTuple):
    """The thresholds of overload.

    A variant is overloaded if its queries take ``slow`` times its latency while they arrive at
    ``busy_share`` of the rate that it could serve one by one, or if ``most_s`` of work are in
    flight. It is no longer overloaded when they take less than ``calm`` times its latency.
    """

    slow: float
    busy_share: float
    most_s: float
    calm: float


_DEFAULT: Final = _Thresholds(2.5, 0.5, 0.8, 1.5)
_ACCELERATOR: Final = _Thresholds(1.5, 0.3, 0.8, 1.25)
_SINGLE_CPU: Final = _Thresholds(4.0, 1.0, 1.1, 1.5)


class Infaas(SelectionPolicy):
    """Best fit among running variants that are not overloaded; a query is bound for good.

    Latency is that of the variant's profile, without the queue: queues count only because they make
    variants overloaded, which is judged once a second. So queries may be bound to variants that
    will be late.

    Args:
        quantile: the latency quantile that must fit the limit: p50, p90, p95 or p99. The source's
            own profiles hold means.
        accelerators: device classes to save for tight limits; null: those whose time costs over
            four times that of the cheapest class.
        objective: ``cost``, or ``accuracy`` for the most accurate that fits.
        batching: how bound queries share batches.
    """

    def __init__(
        self,
        quantile: str = "p99",
        accelerators: Sequence[str] | None = None,
        objective: str = "cost",
        batching: BatchingPolicy | None = None,
    ) -> None:
        super().__init__(batching)
        self.quantile = check_quantile(quantile)
        self.accelerators = None if accelerators is None else frozenset(accelerators)
        self.objective = check_objective(objective)
        self._histories: dict[str, _PlacementHistory] = {}
        self._holders = _Holders()

    def on_arrival(
        self, query: QueryView, candidates: Candidates, rng: np.random.Generator
    ) -> Choice:
        latency_s = latency_column(candidates.estimates, self.quantile)
        history = self._history(query.scope, candidates)
        history.observe(candidates, latency_s, self._holders)
        # Unknown latencies are inf, and so is a limit that was not given.
        fits = np.isfinite(latency_s) & (latency_s <= query.deadline_s - candidates.now_s)
        allowed = (candidates.accuracy_percent >= query.min_accuracy_percent) & (
            candidates.cost_usd <= query.max_cost_usd
        )
        able = fits & allowed & ~history.overloaded
        if self.objective == "accuracy":
            row = _most_accurate(history.order, able, candidates.accuracy_percent, latency_s)
        else:
            row = history.recent_row(able)
            if row is None:
                row = self._search(query, history, latency_s, allowed, able)
        if row is not None:
            history.choose(row)
            return Bind(row, Reason.BEST_FIT)
        row = _soonest_loaded(candidates, history, fits & allowed & history.dear, latency_s)
        if row is not None:
            history.choose(row)
            return Bind(row, Reason.FALLBACK)
        return Reject(why_infeasible(query, list_options(query, candidates, self.quantile)))

    def on_idle(
        self,
        worker: WorkerView,
        queues: Sequence[QueueView],
        now_s: float,
        rng: np.random.Generator,
    ) -> Run | Wait:
        self._holders.record(worker, now_s)
        return super().on_idle(worker, queues, now_s, rng)

    def _search(
        self,
        query: QueryView,
        history: _PlacementHistory,
        latency_s: FloatArray,
        allowed: Mask,
        able: Mask,
    ) -> int | None:
        """Returns the tightest fit among the first rows in ascending accuracy, or among all."""
        limit_s = query.deadline_s - query.arrival_s
        bound = len(able)
        if limit_s < np.inf:
            bound = max(_LEAST_EXAMINED, int(limit_s * _EXAMINED_PER_S))
        if limit_s > _LOOSE_S:
            slow = latency_s >= _LOOSE_S  # quicker variants are for queries with tight limits
            row = _tightest(history.order, allowed & slow, able, latency_s, bound)
            if row is not None:
                return row
        row = _tightest(history.order, allowed, able, latency_s, bound)
        return (
            row if row is not None else _tightest(history.order, able, able, latency_s, len(able))
        )

    def _history(self, scope: str, candidates: Candidates) -> _PlacementHistory:
        """Returns the history of the scope's placements, carried over if these have changed."""
        known = self._histories.get(scope)
        if known is None or known.placements is not candidates.placements:
            if known is None and len(self._histories) >= _MOST_SCOPES:
                del self._histories[next(iter(self._histories))]
            known = self._histories[scope] = _PlacementHistory(candidates, self.accelerators, known)
        return known


def check_objective(value: str) -> str:
    """Returns ``value`` if it is an objective of INFaaS, else raises InvalidInputError."""
    if value not in ("cost", "accuracy"):
        raise InvalidInputError.of("objective", value, "cost or accuracy")
    return value


class _PlacementHistory:
    """The placements of a scope: recent choices, and which placements are overloaded.

    Attributes:
        placements: as in ``Candidates``; the arrays below are by row.
        order: rows in ascending accuracy, equal ones by name.
        overloaded: which rows must not be chosen.
        dear: which rows are on accelerators.
    """

    def __init__(
        self,
        candidates: Candidates,
        accelerators: frozenset[str] | None,
        before: _PlacementHistory | None,
    ) -> None:
        self.placements = candidates.placements
        rows = len(self.placements)
        names = [(p.variant_id, p.device_class) for p in self.placements]
        accuracy = candidates.accuracy_percent.tolist()
        self.order = np.array(
            sorted(range(rows), key=lambda row: (accuracy[row], names[row])), dtype=np.intp
        )
        self.overloaded: Mask = np.zeros(rows, dtype=np.bool_)
        self.dear = _dear(candidates, accelerators)
        self._accelerators = accelerators
        self._rows = {placement: row for row, placement in enumerate(self.placements)}
        self._recent: list[Placement] = []  # newest first
        self._chosen = np.zeros(rows)
        self._delay_s = np.zeros(rows)  # summed over looks
        self._observations = 0
        self._since_s: float | None = None
        if before is not None:
            self._recent = before._recent
            kept = [(row, before._rows.get(p)) for row, p in enumerate(self.placements)]
            pairs = [(row, old) for row, old in kept if old is not None]
            new, old = ([pair[i] for pair in pairs] for i in (0, 1))
            self.overloaded[new] = before.overloaded[old]
            self._chosen[new] = before._chosen[old]
            self._delay_s[new] = before._delay_s[old]
            self._observations, self._since_s = before._observations, before._since_s

    def observe(self, candidates: Candidates, latency_s: FloatArray, holders: _Holders) -> None:
        """Note how long each placement's least busy holder will be busy; judge once a second."""
        now_s = candidates.now_s
        delay_s = candidates.free_at_s - now_s
        self._delay_s += delay_s
        self._observations += 1
        passed_s = now_s - self._since_s if self._since_s is not None else 0.0
        if self._since_s is not None and 0.0 <= passed_s < _PERIOD_S:
            return
        self.dear = _dear(candidates, self._accelerators)
        replicas = holders.count(self.placements, now_s)
        rate = self._chosen / replicas / max(passed_s, _PERIOD_S)
        self._judge(latency_s, delay_s, rate, replicas)
        self._since_s = now_s
        self._chosen[:] = 0.0
        self._delay_s[:] = 0.0
        self._observations = 0

    def recent_row(self, able: Mask) -> int | None:
        """Returns the row of the last chosen placement that is able to serve; None without any."""
        for placement in self._recent:
            row = self._rows.get(placement)
            if row is not None and able[row]:
                return row
        return None

    def choose(self, row: int) -> None:
        """Remember the choice."""
        self._chosen[row] += 1.0
        placement = self.placements[row]
        if self._recent[:1] != [placement]:
            others = [other for other in self._recent if other != placement]
            self._recent = [placement, *others][:_RECENT]

    def _judge(
        self, latency_s: FloatArray, delay_s: FloatArray, rate: FloatArray, replicas: FloatArray
    ) -> None:
        """Judge which placements are overloaded; see ``_Thresholds``.

        Args:
            latency_s: profiled latency by row, seconds.
            delay_s: time until the least busy holder is idle, by row, seconds.
            rate: chosen queries a second and replica, by row.
            replicas: number of replicas by row.
        """
        rows = [self.dear, replicas <= 1.0]
        slow, busy_share, most_s, calm = (
            np.select(rows, [on_accelerator, on_single_cpu], default)
            for on_accelerator, on_single_cpu, default in zip(
                _ACCELERATOR, _SINGLE_CPU, _DEFAULT, strict=True
            )
        )
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            is_quick = self.dear & (latency_s < _QUICK_S)
            slow = np.where(is_quick, np.minimum(5.0, 0.015 / latency_s), slow)
            took_s = self._delay_s / self._observations + latency_s
            in_flight = delay_s > most_s
            over = ((took_s > slow * latency_s) & (rate * latency_s > busy_share)) | in_flight
            cleared = ~in_flight & (took_s < calm * latency_s)
        self.overloaded = over | (self.overloaded & ~cleared)


class _Holders:
    """The variants that workers hold, as far as the workers recently became idle."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, str, tuple[str, ...]]] = {}

    def record(self, worker: WorkerView, now_s: float) -> None:
        """Remember the variants that the worker holds."""
        self._seen[worker.worker_id] = (now_s, worker.device_class, tuple(worker.residents))

    def count(self, placements: Sequence[Placement], now_s: float) -> FloatArray:
        """Returns the replicas of each placement, at least one, shape (n,)."""
        self._seen = {
            name: seen for name, seen in self._seen.items() if now_s - seen[0] <= _REMEMBERED_S
        }
        counts = Counter(
            (variant_id, device_class)
            for _, device_class, held in self._seen.values()
            for variant_id in held
        )
        return np.array(
            [max(counts[p.variant_id, p.device_class], 1) for p in placements], dtype=np.float64
        )


def _dear(candidates: Candidates, accelerators: frozenset[str] | None) -> Mask:
    """Returns which rows are on accelerators, shape (n,)."""
    classes = [placement.device_class for placement in candidates.placements]
    if accelerators is not None:
        return np.array([name in accelerators for name in classes], dtype=np.bool_)
    with np.errstate(divide="ignore", invalid="ignore"):
        price_per_s = candidates.cost_usd / candidates.estimates.p50_s
    known = price_per_s[np.isfinite(price_per_s)]
    if not len(known):
        return np.zeros(len(classes), dtype=np.bool_)
    dear: Mask = price_per_s > _DEAR * known.min()
    return dear


def _tightest(
    order: NDArray[np.intp], looked_at: Mask, able: Mask, latency_s: FloatArray, bound: int
) -> int | None:
    """Returns the slowest able row of the first ``bound`` rows of ``order``; None without any."""
    rows = order[looked_at[order]][:bound]
    rows = rows[able[rows]]
    return int(rows[latency_s[rows].argmax()]) if len(rows) else None


def _most_accurate(
    order: NDArray[np.intp], able: Mask, accuracy_percent: FloatArray, latency_s: FloatArray
) -> int | None:
    """Returns the most accurate able row, of equals the quickest; None without any."""
    rows = order[able[order]]
    if not len(rows):
        return None
    return int(rows[np.lexsort((latency_s[rows], -accuracy_percent[rows]))[0]])


def _soonest_loaded(
    candidates: Candidates, history: _PlacementHistory, overloaded: Mask, latency_s: FloatArray
) -> int | None:
    """Overloaded ones on accelerators stay candidates, as if they were still to be loaded."""
    rows = history.order[overloaded[history.order]]
    if not len(rows):
        return None
    ready_s = np.nan_to_num(candidates.estimates.load_s[rows], nan=np.inf) + latency_s[rows]
    return int(rows[ready_s.argmin()])
