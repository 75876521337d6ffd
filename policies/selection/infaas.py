"""INFaaS: reuse what was chosen lately, else the running variant that fits the SLO most tightly.

The selection of INFaaS (Romero et al., "INFaaS: Automated Model-less Inference Serving", USENIX ATC
2021): variants chosen lately are looked at first, then a bounded number in ascending accuracy, and
of those that run and are not overloaded the slowest that still fits is taken, which leaves what is
quick to who needs it. Where that system would load a variant, here the search is widened, because
loading is up to scaling (``infaas-autoscaler``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from modelless.policies.batching.earliest_deadline_first import EarliestDeadlineFirst
from modelless.policies.reasons import Reason
from modelless.policies.seams import BatchingPolicy, SelectionPolicy
from modelless.policies.selection.feasibility import (
    check_quantile,
    latency_column,
    look,
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
_LOOSE_S: Final = 0.1  # with more time than that, accelerators are saved
_LEAST_LOOKS: Final = 3
_LOOKS_PER_S: Final = 0.15 * 1000.0 / 0.6
_PERIOD_S: Final = 1.0
_REMEMBERED_S: Final = 30.0
_DEAR: Final = 4.0
_MOST_SCOPES: Final = 1024

Mask = NDArray[np.bool_]


class Infaas(SelectionPolicy):
    """Best fit among running variants that are not overloaded; a query is bound for good.

    Latency is what the profile says of the variant, without the queue: queues count only in that
    they make variants overloaded, which is judged once a second. So queries may be bound to what
    will be late.

    Args:
        quantile: the latency quantile that must fit the limit: p50, p90 or p99. The source's own
            profiles tell means.
        accelerators: device classes to be saved for tight limits; null: those whose time costs
            over four times that of the cheapest one.
        batching: how bound queries share batches.
    """

    def __init__(
        self,
        quantile: str = "p99",
        accelerators: Sequence[str] | None = None,
        batching: BatchingPolicy | None = None,
    ) -> None:
        super().__init__(batching or EarliestDeadlineFirst())
        self.quantile = check_quantile(quantile)
        self.accelerators = None if accelerators is None else frozenset(accelerators)
        self._watches: dict[str, _Watch] = {}
        self._holders = _Holders()

    def on_arrival(
        self, query: QueryView, candidates: Candidates, rng: np.random.Generator
    ) -> Choice:
        latency_s = latency_column(candidates.estimates, self.quantile)
        watch = self._watch(query.scope, candidates)
        watch.look(candidates, latency_s, self._holders)
        # Unknown latencies are inf, and so is a limit that was not given.
        fits = np.isfinite(latency_s) & (latency_s <= query.deadline_s - candidates.now_s)
        allowed = (candidates.accuracy_percent >= query.min_accuracy_percent) & (
            candidates.cost_usd <= query.max_cost_usd
        )
        able = fits & allowed & ~watch.overloaded
        row = watch.recent_row(able)
        if row is None:
            row = self._search(query, watch, latency_s, allowed, able)
        if row is not None:
            watch.choose(row)
            return Bind(row, Reason.BEST_FIT)
        row = _soonest_loaded(candidates, watch, fits & allowed & watch.dear, latency_s)
        if row is not None:
            watch.choose(row)
            return Bind(row, Reason.FALLBACK)
        return Reject(why_infeasible(query, look(query, candidates, self.quantile)))

    def on_idle(
        self,
        worker: WorkerView,
        queues: Sequence[QueueView],
        now_s: float,
        rng: np.random.Generator,
    ) -> Run | Wait:
        self._holders.note(worker, now_s)
        return super().on_idle(worker, queues, now_s, rng)

    def _search(
        self, query: QueryView, watch: _Watch, latency_s: FloatArray, allowed: Mask, able: Mask
    ) -> int | None:
        """The tightest fit among the first few in ascending accuracy; if none, among all."""
        limit_s = query.deadline_s - query.arrival_s
        bound = len(able)
        if limit_s < np.inf:
            bound = max(_LEAST_LOOKS, int(limit_s * _LOOKS_PER_S))
        if limit_s > _LOOSE_S:
            saved = watch.dear & (latency_s < _LOOSE_S)
            row = _tightest(watch.order, allowed & ~saved, able, latency_s, bound)
            if row is not None:
                return row
        row = _tightest(watch.order, allowed, able, latency_s, bound)
        return row if row is not None else _tightest(watch.order, able, able, latency_s, len(able))

    def _watch(self, scope: str, candidates: Candidates) -> _Watch:
        """What is known of the scope's placements, carried over if these are not the same."""
        known = self._watches.get(scope)
        if known is None or known.placements is not candidates.placements:
            if known is None and len(self._watches) >= _MOST_SCOPES:
                del self._watches[next(iter(self._watches))]
            known = self._watches[scope] = _Watch(candidates, self.accelerators, known)
        return known


class _Watch:
    """The placements of a scope: what was chosen of them, and which are overloaded.

    Attributes:
        placements: as in ``Candidates``; arrays below are by row.
        order: rows in ascending accuracy; equals by name.
        overloaded: not to be chosen.
        dear: on accelerators.
    """

    def __init__(
        self,
        candidates: Candidates,
        accelerators: frozenset[str] | None,
        before: _Watch | None,
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
        self._looks = 0
        self._since_s: float | None = None
        if before is not None:
            self._recent = before._recent
            kept = [(row, before._rows.get(p)) for row, p in enumerate(self.placements)]
            pairs = [(row, old) for row, old in kept if old is not None]
            new, old = ([pair[i] for pair in pairs] for i in (0, 1))
            self.overloaded[new] = before.overloaded[old]
            self._chosen[new] = before._chosen[old]
            self._delay_s[new] = before._delay_s[old]
            self._looks, self._since_s = before._looks, before._since_s

    def look(self, candidates: Candidates, latency_s: FloatArray, holders: _Holders) -> None:
        """Take in how long each placement's least busy holder will be busy; once a second judge."""
        now_s = candidates.now_s
        delay_s = candidates.free_at_s - now_s
        self._delay_s += delay_s
        self._looks += 1
        passed_s = now_s - self._since_s if self._since_s is not None else 0.0
        if self._since_s is not None and 0.0 <= passed_s < _PERIOD_S:
            return
        self.dear = _dear(candidates, self._accelerators)
        replicas = holders.count(self.placements, now_s)
        self._judge(latency_s, delay_s, self._chosen / replicas / max(passed_s, _PERIOD_S))
        self._since_s = now_s
        self._chosen[:] = 0.0
        self._delay_s[:] = 0.0
        self._looks = 0

    def recent_row(self, able: Mask) -> int | None:
        """The newest of the placements chosen lately that is able to serve."""
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

    def _judge(self, latency_s: FloatArray, delay_s: FloatArray, rate: FloatArray) -> None:
        """Which placements are overloaded, by the thresholds of the source.

        It says so of one whose queries take ``slow`` times the latency while they come at a rate
        near what a replica can serve, or of one with more than about a second's work in flight;
        and takes it back once the queue and the latency are low again.

        Args:
            rate: queries chosen for a replica of each, a second.
        """
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            quick = np.minimum(5.0, 0.015 / latency_s)
            slow = np.where(self.dear, np.where(latency_s < 0.01, quick, 1.5), 4.0)
            busy_share = np.where(self.dear, 0.3, 1.0)
            most_s = np.where(self.dear, 0.8, 1.1)
            calm = np.where(self.dear, 1.25, 1.5)
            took_s = self._delay_s / self._looks + latency_s
            in_flight = delay_s > most_s
            over = ((took_s > slow * latency_s) & (rate * latency_s > busy_share)) | in_flight
            cleared = ~in_flight & (took_s < calm * latency_s)
        self.overloaded = over | (self.overloaded & ~cleared)


class _Holders:
    """Which workers hold what, as far as they were seen falling idle lately."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, str, tuple[str, ...]]] = {}

    def note(self, worker: WorkerView, now_s: float) -> None:
        """Remember what the worker holds."""
        self._seen[worker.worker_id] = (now_s, worker.device_class, tuple(worker.residents))

    def count(self, placements: Sequence[Placement], now_s: float) -> FloatArray:
        """Replicas of each placement, one at least; shape (n,)."""
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
    """The rows on accelerators."""
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
    """Of the first ``bound`` rows of ``order`` to be looked at, the slowest that is able."""
    rows = order[looked_at[order]][:bound]
    rows = rows[able[rows]]
    return int(rows[latency_s[rows].argmax()]) if len(rows) else None


def _soonest_loaded(
    candidates: Candidates, watch: _Watch, overloaded: Mask, latency_s: FloatArray
) -> int | None:
    """Overloaded ones on accelerators stay candidates, as if they were still to be loaded."""
    rows = watch.order[overloaded[watch.order]]
    if not len(rows):
        return None
    ready_s = np.nan_to_num(candidates.estimates.load_s[rows], nan=np.inf) + latency_s[rows]
    return int(rows[ready_s.argmin()])
