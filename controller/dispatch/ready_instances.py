"""The ready instances: which workers can serve a query, and their expected latency and cost.

This turns the workers' reports and the cost model's estimates into the views that policies read.
Results that are the same for many queries are computed once and kept until the instances change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from modelless.controller.dispatch.backlog import BacklogSnapshot, ReadyCandidates, WorkerBacklogs
from modelless.controller.dispatch.messages import WorkerReport
from modelless.controller.dispatch.worker_groups import (
    GroupsByScope,
    ServingGroups,
    WorkerGroup,
    WorkerGroups,
)
from modelless.policies.priorities import rank
from modelless.policies.scopes import in_scope
from modelless.policies.views import Candidates, FloatArray, QueryView, ResidentView
from modelless.variants.estimates import CostModel, Estimates, Load
from modelless.variants.vocabulary import Accuracy, DeviceClass, Placement, Provenance, Variant

# The shortlist: the rows of the candidates that can ever be the best choice. With it, a choice
# among thousands of rows is quick.
#
# A row is left out if another row *with the same workers* is at least as accurate, as cheap and as
# quick at every quantile: it waits as long, so it loses whatever the queues are. The shortlist is
# computed once for each set of estimates, not for each query.

WORTHWHILE_ROWS = 128
"""Below this many rows, looking at all of them costs no more."""


def find_shortlist(
    accuracy_percent: FloatArray,
    cost_usd: FloatArray,
    estimates: Estimates,
    workers_of: NDArray[np.intp],
) -> NDArray[np.intp] | None:
    """Return the rows that can be the best choice, ascending, or None for all rows.

    Args:
        accuracy_percent, cost_usd: shape (n,), float64.
        estimates: n rows; rows without any known quantile are left out.
        workers_of: shape (n,): rows with equal numbers are ready on the same workers.
    """
    if len(accuracy_percent) < WORTHWHILE_ROWS:
        return None
    latency_s = np.stack([estimates.p50_s, estimates.p90_s, estimates.p99_s])
    known = np.isfinite(latency_s).any(axis=0)
    columns = np.concatenate([[-accuracy_percent, cost_usd], latency_s])
    columns[np.isnan(columns)] = np.inf
    kept = [
        _undominated(columns, np.flatnonzero(known & (workers_of == number)))
        for number in np.unique(workers_of)
    ]
    rows: NDArray[np.intp] = np.sort(np.concatenate(kept))
    rows.flags.writeable = False
    return rows


def _undominated(columns: FloatArray, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return those of ``rows`` that no other one equals or betters in all columns.

    Less is better. Of rows that are equal in all columns the first is kept.
    """
    rows = rows[np.lexsort(columns[:, rows])]  # nothing later can dominate what comes first
    kept = []
    while len(rows):
        first, rest = rows[0], rows[1:]
        kept.append(first)
        better_somewhere = (columns[:, rest] < columns[:, first, None]).any(axis=0)
        rows = rest[better_somewhere]
    return np.array(kept, dtype=np.intp)


# The variants that one worker holds, as policies see them, with their latencies by batch size.


def build_residents(
    variants: Sequence[Variant],
    device_class: str,
    hop_s: float,
    cost_model: CostModel,
    load: Load,
    max_batch: int,
    size: int,
) -> Mapping[str, ResidentView]:
    """Return the views of these variants on a device class, by id; read-only.

    Args:
        hop_s: time that a batch travels to the worker and back, seconds.
        max_batch: most items of a batch.
    """
    # The cost model looks a tuple up once for all batches.
    placements = tuple([Placement(variant.id, device_class) for variant in variants])
    p50_s, p99_s = [np.zeros(len(variants))], [np.zeros(len(variants))]
    for batch in range(1, max_batch + 1):
        estimates = cost_model.estimate(placements, batch, load, size)
        p50_s.append(estimates.p50_s + hop_s)
        p99_s.append(estimates.p99_s + hop_s)
    columns = zip(variants, np.stack(p50_s, axis=1), np.stack(p99_s, axis=1), strict=True)
    return MappingProxyType(
        {
            variant.id: ResidentView(
                variant.id,
                variant.accuracy.percent,
                tuple(typical.tolist()),
                tuple(upper.tolist()),
            )
            for variant, typical, upper in columns
        }
    )


def _with_accuracy(variant: Variant, percent: float) -> Variant:
    """Return the variant with an accuracy that feedback has shown."""
    metric = variant.accuracy.metric
    return replace(variant, accuracy=Accuracy(percent, metric, Provenance.MEASURED, "feedback"))


# Read-only columns of the views that policies get.


def column(values: Iterable[float]) -> FloatArray:
    """Return the values as a read-only float64 column."""
    made = np.fromiter(values, dtype=np.float64)
    made.flags.writeable = False
    return made


def plus(estimates: Estimates, hop_s: FloatArray) -> Estimates:
    """Return the estimates plus a hop of ``hop_s`` seconds, shape (n,); read-only."""
    columns = (
        estimates.p50_s + hop_s,
        estimates.p90_s + hop_s,
        estimates.p99_s + hop_s,
        estimates.memory_bytes.view(),  # views: the cost model's own arrays stay writeable
        estimates.load_s.view(),
    )
    for each in columns:
        each.flags.writeable = False
    return Estimates(*columns)


_ANSWERS_KEPT = 4096
_ITEM_COUNTS_KEPT = 64  # of a scope
_SIZES_KEPT = 1024  # of a scope, by items and size


@dataclass(slots=True)
class _ScopeTable:
    """The rows of one scope: all columns that do not depend on the queues.

    Rows that are ready on the same set of workers have the same wait.

    Attributes:
        placements: one for each of the n rows.
        accuracy_percent: shape (n,).
        price_usd_per_s: shape (n,).
        hop_s: to the nearest worker, seconds, shape (n,).
        workers_of: the number of each row's set of workers, shape (n,).
        holders: the indices of the sets' workers, one set after the other, shape (m,).
        detour_s: how much longer the hop to each holder is than to the nearest one of its set,
            shape (m,); None if all are 0.
        begins: where each set begins in ``holders``, shape (sets,).
        by_items: predictions by the query's number of items and their size.
    """

    placements: tuple[Placement, ...]
    accuracy_percent: FloatArray
    price_usd_per_s: FloatArray
    hop_s: FloatArray
    workers_of: NDArray[np.intp]
    holders: NDArray[np.intp]
    detour_s: FloatArray | None
    begins: NDArray[np.intp]
    by_items: dict[tuple[int, int], _Predicted] = field(default_factory=dict)

    def free_at_s(self, backlogs: BacklogSnapshot, rank: int) -> FloatArray:
        """Return when the first worker of each row can begin a query of this rank, shape (n,)."""
        free_at_s = backlogs.starts_s(rank).take(self.holders)
        if self.detour_s is not None:
            free_at_s += self.detour_s
        if len(self.begins) < len(self.holders):
            free_at_s = np.minimum.reduceat(free_at_s, self.begins)
        return free_at_s.take(self.workers_of)


class _Predicted(NamedTuple):
    estimates: Estimates
    cost_usd: FloatArray
    shortlist: NDArray[np.intp] | None
    least_us: dict[float, int]  # by minimum accuracy; see ``ReadyInstances.least_work_us``


class _Holders(NamedTuple):
    names: tuple[str, ...]
    indices: NDArray[np.intp]
    hop_s: FloatArray | None  # None if all are equally far away


class ReadyInstances:
    """Ready instances by scope, and their estimates.

    Args:
        variants: every variant that may be served, by id.
        max_batch: the largest batch that will be asked about.

    Attributes:
        variants: the same, with the accuracies that they count for.
        groups_by_scope: the groups that hold a ready variant of a scope, by scope.
        worker_counts: number of workers by device class; read-only.
    """

    def __init__(
        self,
        variants: Mapping[str, Variant],
        device_classes: Mapping[str, DeviceClass],
        cost_model: CostModel,
        max_batch: int,
    ) -> None:
        self.variants = self._registered = variants
        self._accuracies_percent: Mapping[str, float] = {}
        self.cost_model = cost_model
        self.max_batch = max_batch
        self._price_usd_per_s = {name: d.cost_usd(1.0) for name, d in device_classes.items()}
        self._reports: dict[str, WorkerReport] = {}
        self.worker_counts: Mapping[str, int] = MappingProxyType({})
        self._index: dict[str, int] = {}
        self._scopes: dict[str, _ScopeTable] = {}
        self.groups = WorkerGroups()
        self._residents: dict[tuple[WorkerGroup, int], Mapping[str, ResidentView]] = {}
        self.groups_by_scope = GroupsByScope(self._find_groups, _ANSWERS_KEPT)
        self._best: dict[str, float] = {}  # by scope, the accuracy of its best ready variant
        self._holders: dict[Placement, _Holders] = {}
        self._loadable: dict[tuple[str, int], tuple[FloatArray, FloatArray]] = {}
        self._starting_s: Mapping[str, float] = {}
        self._backlogs = WorkerBacklogs(np.zeros(0))  # in the order of ``_index``
        self._load = Load()
        self._observed, self._renew_at = 0, 1  # batches that the cost model was told of

    @property
    def reports(self) -> Mapping[str, WorkerReport]:
        return self._reports

    @property
    def load(self) -> Load:
        return self._load

    def price_usd_per_s(self, device_class: str) -> float:
        return self._price_usd_per_s[device_class]

    def update_worker(self, report: WorkerReport) -> bool:
        before = self._reports.get(report.worker_id)
        if before == report:
            return False
        self._reports[report.worker_id] = report
        group_before, group = self.groups.get(report.worker_id), self.groups.put(*report)
        if before is not None and before._replace(variant_ids=report.variant_ids) == report:
            self._drop_stale(report, set(before.variant_ids) ^ set(report.variant_ids))
            if group_before is not None:
                self.groups.replace_group(group_before, group, self.groups_by_scope.values())
        else:
            self._rebuild()
        return True

    def remove_worker(self, worker_id: str) -> None:
        if self._reports.pop(worker_id, None) is not None:
            del self.groups[worker_id]
            self._rebuild()

    def refresh_estimates(self, load: Load) -> None:
        """Renew the estimates, for this load and for what the cost model learned since."""
        self._load = load
        self._residents.clear()
        for table in self._scopes.values():
            table.by_items.clear()

    def observe_batch(self, placement: Placement, items: int, size: int, busy_s: float) -> None:
        """Tell the cost model how long a batch took, and renew the estimates if that changes them.

        Drivers renew the estimates once a second (``LoadChanged``). While few batches were
        observed, each says much, and a second is long: where a profile is wrong, hundreds of
        queries would get predictions that cannot hold. So the estimates are also renewed whenever
        the number of observed batches has doubled. The error of a mean falls with the root of that
        number, so each renewal corrects an equal part of the error, and a gateway renews some
        twenty times in its life. The last case is an outcome that the cost model says makes them
        obsolete.
        """
        is_obsolete = self.cost_model.observe(placement, items, self._load, busy_s, size)
        self._observed += 1
        if self._observed == self._renew_at:
            self._renew_at *= 2
            is_obsolete = True
        if is_obsolete:
            self.refresh_estimates(self._load)

    def replace_catalog(self, variants: Mapping[str, Variant], cost_model: CostModel) -> None:
        if cost_model is not self.cost_model:  # a new one has observed nothing yet
            self._observed, self._renew_at = 0, 1
        self._registered, self.cost_model = variants, cost_model
        self.revise_accuracies(self._accuracies_percent)

    def revise_accuracies(self, percent: Mapping[str, float]) -> None:
        """Let these variants count for these accuracies, and all others for their own."""
        self._accuracies_percent = percent
        self.variants = {
            name: variant if name not in percent else _with_accuracy(variant, percent[name])
            for name, variant in self._registered.items()
        }
        self._rebuild()

    def set_backlog(
        self, worker_id: str, busy_until_s: float, backlog_s: Mapping[int, float]
    ) -> None:
        """Set when a worker's batch ends, and how long its waiting queries take, by rank."""
        index = self._index.get(worker_id)
        if index is not None:
            self._backlogs.set(index, busy_until_s, backlog_s)

    def find_soonest_worker(self, placement: Placement, now_s: float, rank: int = 0) -> str:
        """Return the worker that can begin soonest, hop included, of those with the placement.

        There must be one. Of equals it is the first by id. ``rank``: of the query to begin with.
        """
        holders = self._holders.get(placement)
        if holders is None:
            holders = self._holders[placement] = self._find_holders(placement)
        if len(holders.names) == 1:
            return holders.names[0]
        starts_s = self._backlogs.snapshot_at(now_s).starts_s(rank).take(holders.indices)
        if holders.hop_s is not None:
            starts_s += holders.hop_s
        return holders.names[int(starts_s.argmin())]

    def residents(self, worker_id: str, size: int = 0) -> Mapping[str, ResidentView]:
        """Return a worker's ready variants with their predicted latency by batch size.

        ``size``: of an item, see ``QueryView.size``.
        """
        key = self.groups[worker_id], size
        known = self._residents.get(key)
        if known is None:
            known = self._residents[key] = self._build_residents(*key)
        return known

    def is_served(self, scope: str) -> bool:
        return bool(self.groups_by_scope[scope])

    def is_served_elsewhere(self, worker_id: str, scope: str) -> bool:
        """Whether a worker other than this one holds a ready variant of the scope."""
        serving = self.groups_by_scope[scope]
        return any(o in serving for name, o in self.groups.items() if name != worker_id)

    def candidates(
        self, scope: str, items: int, now_s: float, rank: int = 0, size: int = 0
    ) -> Candidates:
        """Return the candidates for a query of ``items`` items; no rows if nothing is ready.

        Args:
            rank: the query's; what goes behind it does not keep it waiting.
        """
        table = self._scopes.get(scope)
        if table is None:
            table = self._build_scope(scope)
            if table.placements:  # unknown scopes must not fill the cache
                self._scopes[scope] = table
        key = items, size
        known = table.by_items.get(key)
        if known is None:
            known = self._predict(table, *key)
            if len(table.by_items) < (_SIZES_KEPT if size else _ITEM_COUNTS_KEPT):
                table.by_items[key] = known
        return ReadyCandidates(
            table.placements,
            table.accuracy_percent,
            known.cost_usd,
            known.estimates,
            partial(table.free_at_s, self._backlogs.snapshot_at(now_s), rank),
            now_s,
            known.shortlist,
            self.worker_counts,
        )

    def start_s(
        self, query: QueryView, allowed: NDArray[np.bool_], ahead: float, now_s: float
    ) -> float:
        """Return when the workers will have done their backlogs and ``ahead`` queries like this.

        Each worker runs full batches of its quickest allowed variant. inf if no row is allowed.

        Args:
            query: the query.
            allowed: which rows of its ``candidates`` may serve it, shape (n,).
            ahead: how many queries like this one are served before it.
            now_s: the present.
        """
        most, own = self.max_batch, rank(query)
        p50_s = self.candidates(query.scope, most, now_s, own, query.size).estimates.p50_s
        table = self._scopes.get(query.scope)
        if table is None or not allowed.any():
            return np.inf
        per_s = np.where(allowed & (p50_s > 0.0), most / query.items / p50_s, 0.0)
        of_set = np.zeros(len(table.begins))
        np.maximum.at(of_set, table.workers_of, per_s)
        sizes = np.diff(table.begins, append=len(table.holders))
        of_worker = np.zeros(len(self._index))
        np.maximum.at(of_worker, table.holders, of_set.repeat(sizes))
        free_s = self._backlogs.snapshot_at(now_s).starts_s(own) - now_s
        order = np.flatnonzero(of_worker)
        order = order[free_s[order].argsort()]
        of_worker, free_s = of_worker[order], free_s[order]
        done_s = (ahead + (of_worker * free_s).cumsum()) / of_worker.cumsum()
        return now_s + float(done_s.min(initial=np.inf))

    def set_starting(self, starting_s: Mapping[str, float]) -> None:
        """Set how soon a new worker can be ready, seconds; see ``LoadChanged.starting_s``."""
        if starting_s != self._starting_s:
            self._starting_s = dict(starting_s)
            self._loadable.clear()

    def least_work_us(self, query: QueryView) -> int:
        """Return the least device time for the query, microseconds.

        This is the time of the quickest ready variant that is accurate enough.

        Whole, so that what was added up can be taken away. 0 if it is unknown, or if ``candidates``
        was not asked about such a query.
        """
        table = self._scopes.get(query.scope)
        known = table.by_items.get((query.items, query.size)) if table is not None else None
        if table is None or known is None:
            return 0
        minimum = query.min_accuracy_percent
        least_us = known.least_us.get(minimum)
        if least_us is None:
            accurate_s = known.estimates.p50_s[table.accuracy_percent >= minimum]
            least_s = float(np.fmin.reduce(accurate_s, initial=np.inf))
            least_us = int(least_s * 1e6) if least_s < np.inf else 0
            if len(known.least_us) < _ANSWERS_KEPT:
                known.least_us[minimum] = least_us
        return least_us

    def is_served_accurately(self, scope: str, min_accuracy_percent: float) -> bool:
        """Whether any worker holds a ready variant of the scope that is as accurate."""
        best = self._best.get(scope)
        if best is None:
            ready = set[str]().union(*[report.variant_ids for report in self._reports.values()])
            held = [self.variants[name] for name in self._ids_in(scope) & ready]
            best = max([variant.accuracy.percent for variant in held], default=-np.inf)
            if len(self._best) < _ANSWERS_KEPT:
                self._best[scope] = best
        return min_accuracy_percent <= best

    def fastest_load_s(self, query: QueryView) -> float:
        """Return after how many seconds a variant could answer the query if its load began now.

        The quickest to load and run of those that the query allows and that the device class of
        some worker, or of one that would be started for it, can run; inf if there are none.
        """
        key = query.scope, query.size
        known = self._loadable.get(key)
        if known is None:
            known = self._find_loadable(*key)
            if len(self._loadable) < _ANSWERS_KEPT:
                self._loadable[key] = known
        accuracy_percent, answer_s = known
        return float(
            answer_s.min(where=accuracy_percent >= query.min_accuracy_percent, initial=np.inf)
        )

    def _find_loadable(self, scope: str, size: int) -> tuple[FloatArray, FloatArray]:
        present = {report.device_class for report in self._reports.values()}
        classes = sorted(present | set(self._starting_s))
        start_s = [0.0 if name in present else self._starting_s[name] for name in classes]
        variants = [v for v in self.variants.values() if in_scope(v.id, scope)]
        placements = [Placement(variant.id, name) for variant in variants for name in classes]
        estimates = self.cost_model.estimate(placements, 1, self._load, size)
        return (
            column(v.accuracy.percent for v in variants for _ in classes),
            np.nan_to_num(estimates.load_s + estimates.p50_s, nan=np.inf, posinf=np.inf)
            + np.tile(start_s, len(variants)),
        )

    def _in_order(self) -> list[WorkerReport]:
        return [self._reports[name] for name in self._index]

    def _find_holders(self, placement: Placement) -> _Holders:
        reports = [
            report
            for report in self._in_order()
            if report.device_class == placement.device_class
            and placement.variant_id in report.variant_ids
        ]
        names = tuple(report.worker_id for report in reports)
        indices = np.array([self._index[name] for name in names], dtype=np.intp)
        hop_s = column(report.hop_s for report in reports)
        return _Holders(names, indices, hop_s if len(set(hop_s.tolist())) > 1 else None)

    def _rebuild(self) -> None:
        counts = Counter(report.device_class for report in self._reports.values())
        self.worker_counts = MappingProxyType(counts)
        names = sorted(self._reports)
        places = [self._index.get(name, -1) for name in names]
        self._backlogs = self._backlogs.rearranged(np.array(places, dtype=np.intp))
        self._index = {name: i for i, name in enumerate(names)}
        for cache in (
            self._scopes,
            self._residents,
            self.groups_by_scope,
            self._best,
            self._holders,
            self._loadable,
        ):
            cache.clear()

    def _drop_stale(self, report: WorkerReport, changed: set[str]) -> None:
        """Drop what depends on the variants that the worker gained or lost (``changed``)."""
        for variant_id in changed:
            self._holders.pop(Placement(variant_id, report.device_class), None)
        variants = [self.variants[name] for name in changed if name in self.variants]
        for cache in (self._scopes, self.groups_by_scope, self._best):
            for scope in [s for s in cache if any(in_scope(v.id, s) for v in variants)]:
                del cache[scope]

    def _ids_in(self, scope: str) -> frozenset[str]:
        return frozenset(v.id for v in self.variants.values() if in_scope(v.id, scope))

    def _find_groups(self, scope: str) -> ServingGroups:
        return self.groups.find_serving(self._ids_in(scope))

    def _build_scope(self, scope: str) -> _ScopeTable:
        ids = self._ids_in(scope)
        rows: dict[Placement, list[str]] = {}
        for report in self._in_order():
            for variant_id in report.variant_ids:
                if variant_id in ids:
                    placement = Placement(variant_id, report.device_class)
                    rows.setdefault(placement, []).append(report.worker_id)
        placements = tuple(rows)
        sets: dict[tuple[str, ...], int] = {}
        workers_of = [sets.setdefault(tuple(workers), len(sets)) for workers in rows.values()]
        holders = [self._index[name] for workers in sets for name in workers]
        hops_s = [[self._reports[name].hop_s for name in workers] for workers in sets]
        nearest_s = [min(hops) for hops in hops_s]
        detour_s = column(
            hop - nearest for hops, nearest in zip(hops_s, nearest_s, strict=True) for hop in hops
        )
        sizes = [len(workers) for workers in sets]
        return _ScopeTable(
            placements,
            column(self.variants[p.variant_id].accuracy.percent for p in placements),
            column(self._price_usd_per_s[p.device_class] for p in placements),
            column(nearest_s[number] for number in workers_of),
            np.array(workers_of, dtype=np.intp),
            np.array(holders, dtype=np.intp),
            detour_s if detour_s.any() else None,
            np.cumsum([0, *sizes], dtype=np.intp)[:-1],
        )

    def _predict(self, table: _ScopeTable, items: int, size: int) -> _Predicted:
        raw = self.cost_model.estimate(table.placements, items, self._load, size)
        cost_usd = table.price_usd_per_s * raw.p50_s
        cost_usd.flags.writeable = False
        estimates = plus(raw, table.hop_s)
        shortlist = find_shortlist(table.accuracy_percent, cost_usd, estimates, table.workers_of)
        return _Predicted(estimates, cost_usd, shortlist, {})

    def _build_residents(self, group: WorkerGroup, size: int) -> Mapping[str, ResidentView]:
        held = [self.variants[name] for name in group.variant_ids if name in self.variants]
        return build_residents(
            held, group.device_class, group.hop_s, self.cost_model, self._load, self.max_batch, size
        )
