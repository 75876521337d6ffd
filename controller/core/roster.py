"""Who can serve what: the ready instances, and what each is expected to cost.

Turns the workers' reports and the cost model's estimates into the views that policies read. What
does not change from query to query is computed once and kept until the roster changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from modelless.policies.views import Candidates, FloatArray, ResidentView
from modelless.variants.estimates import CostModel, Estimates, Load
from modelless.variants.vocabulary import DeviceClass, Placement, Variant


class WorkerReport(NamedTuple):
    """What a worker says it is and holds.

    Attributes:
        worker_id, device_class: who and what.
        variant_ids: ready to run.
        hop_s: price of reaching it from here, a batch: 0 for the device in this process.
    """

    worker_id: str
    device_class: str
    variant_ids: tuple[str, ...]
    hop_s: float = 0.0


@dataclass(slots=True)
class _ScopeTable:
    """The rows of one scope: everything that does not depend on the queues."""

    placements: tuple[Placement, ...]
    accuracy_percent: FloatArray
    price_usd_per_s: FloatArray
    hop_s: FloatArray
    holders: NDArray[np.intp]  # (n, most holders): worker indices, padded with the last, inf, slot
    by_items: dict[int, tuple[Estimates, FloatArray]] = field(default_factory=dict)


class Roster:
    """Ready instances by scope, and their estimates.

    Args:
        variants: every variant that may be served, by id.
        device_classes: by name.
        cost_model: what predicts.
        max_batch: the largest batch that will be asked about.
    """

    def __init__(
        self,
        variants: Mapping[str, Variant],
        device_classes: Mapping[str, DeviceClass],
        cost_model: CostModel,
        max_batch: int,
    ) -> None:
        self.variants = variants
        self.cost_model = cost_model
        self.max_batch = max_batch
        self._device_classes = device_classes
        self._reports: dict[str, WorkerReport] = {}
        self._index: dict[str, int] = {}
        self._scopes: dict[str, _ScopeTable] = {}
        self._residents: dict[str, dict[str, ResidentView]] = {}
        self._free_at_s: FloatArray = np.full(1, np.inf)
        self._load = Load()

    @property
    def reports(self) -> Mapping[str, WorkerReport]:
        """The workers by id."""
        return self._reports

    def update(self, report: WorkerReport) -> bool:
        """Take in a worker's report; True if it changed anything."""
        if self._reports.get(report.worker_id) == report:
            return False
        self._reports[report.worker_id] = report
        self._rebuild()
        return True

    def remove(self, worker_id: str) -> None:
        """Forget a worker."""
        if self._reports.pop(worker_id, None) is not None:
            self._rebuild()

    def refresh(self, load: Load) -> None:
        """Ask the cost model anew: it has learned since, and the load is another."""
        self._load = load
        self._scopes.clear()
        self._residents.clear()

    def set_free_at(self, worker_id: str, free_at_s: float) -> None:
        """When the worker is predicted to fall idle."""
        self._free_at_s[self._index[worker_id]] = free_at_s

    def holders(self, placement: Placement) -> list[str]:
        """The workers on which the placement is ready."""
        return [
            report.worker_id
            for report in self._reports.values()
            if report.device_class == placement.device_class
            and placement.variant_id in report.variant_ids
        ]

    def residents(self, worker_id: str) -> Mapping[str, ResidentView]:
        """The worker's ready variants with their predicted latency by batch size."""
        known = self._residents.get(worker_id)
        if known is None:
            known = self._residents[worker_id] = self._build_residents(self._reports[worker_id])
        return known

    def serves(self, worker_id: str, scope: str) -> bool:
        """Whether the worker holds a ready variant of the scope."""
        report = self._reports[worker_id]
        return any(
            name in self.variants and in_scope(self.variants[name], scope)
            for name in report.variant_ids
        )

    def candidates(self, scope: str, items: int, now_s: float) -> Candidates:
        """The rows for a query of ``items`` items; no rows if nothing is ready."""
        table = self._scopes.get(scope)
        if table is None:
            table = self._build_scope(scope)
            if table.placements:  # an unheard-of scope must not grow the cache
                self._scopes[scope] = table
        known = table.by_items.get(items)
        if known is None:
            known = self._estimate(table, items)
            if len(table.by_items) < 64:
                table.by_items[items] = known
        estimates, cost_usd = known
        free_at_s = np.maximum(self._free_at_s, now_s)
        if table.holders.shape[1] == 1:
            free_at_s = free_at_s[table.holders[:, 0]]
        else:
            free_at_s = free_at_s[table.holders].min(axis=1)
        return Candidates(
            table.placements, table.accuracy_percent, cost_usd, estimates, free_at_s, now_s
        )

    def _rebuild(self) -> None:
        free_at_s = {name: self._free_at_s[i] for name, i in self._index.items()}
        self._index = {name: i for i, name in enumerate(self._reports)}
        self._free_at_s = np.array(
            [free_at_s.get(name, -np.inf) for name in self._index] + [np.inf], dtype=np.float64
        )
        self._scopes.clear()
        self._residents.clear()

    def _build_scope(self, scope: str) -> _ScopeTable:
        rows: dict[Placement, list[int]] = {}
        hops: dict[Placement, float] = {}
        for report in self._reports.values():
            for variant_id in report.variant_ids:
                variant = self.variants.get(variant_id)
                if variant is not None and in_scope(variant, scope):
                    placement = Placement(variant_id, report.device_class)
                    rows.setdefault(placement, []).append(self._index[report.worker_id])
                    hops[placement] = min(report.hop_s, hops.get(placement, np.inf))
        placements = tuple(rows)
        most = max((len(workers) for workers in rows.values()), default=1)
        holders = np.full((len(rows), most), len(self._free_at_s) - 1, dtype=np.intp)
        for row, workers in enumerate(rows.values()):
            holders[row, : len(workers)] = workers
        return _ScopeTable(
            placements,
            _column(self.variants[p.variant_id].accuracy.percent for p in placements),
            _column(self._device_classes[p.device_class].cost_usd(1.0) for p in placements),
            _column(hops[p] for p in placements),
            holders,
        )

    def _estimate(self, table: _ScopeTable, items: int) -> tuple[Estimates, FloatArray]:
        raw = self.cost_model.estimate(table.placements, items, self._load)
        cost_usd = table.price_usd_per_s * raw.p50_s
        cost_usd.flags.writeable = False
        return _plus(raw, table.hop_s), cost_usd

    def _build_residents(self, report: WorkerReport) -> dict[str, ResidentView]:
        ids = [name for name in report.variant_ids if name in self.variants]
        placements = [Placement(name, report.device_class) for name in ids]
        p50_s, p99_s = [np.zeros(len(ids))], [np.zeros(len(ids))]
        for batch in range(1, self.max_batch + 1):
            estimates = self.cost_model.estimate(placements, batch, self._load)
            p50_s.append(estimates.p50_s + report.hop_s)
            p99_s.append(estimates.p99_s + report.hop_s)
        return {
            name: ResidentView(name, self.variants[name].accuracy.percent, typical, upper)
            for name, typical, upper in zip(
                ids, np.stack(p50_s, axis=1).tolist(), np.stack(p99_s, axis=1).tolist(), strict=True
            )
        }


def in_scope(variant: Variant, scope: str) -> bool:
    """Whether ``scope`` (``task[/model[/name[@version]]]``) takes the variant in."""
    parts = scope.split("/")
    return (
        parts[0] == variant.task
        and (len(parts) < 2 or parts[1] == variant.model)
        and (len(parts) < 3 or parts[2] in (variant.name, f"{variant.name}@{variant.version}"))
        and len(parts) <= 3
    )


def _column(values: Iterable[float]) -> FloatArray:
    column = np.fromiter(values, dtype=np.float64)
    column.flags.writeable = False
    return column


def _plus(estimates: Estimates, hop_s: FloatArray) -> Estimates:
    p50_s, p90_s, p99_s = (
        estimates.p50_s + hop_s,
        estimates.p90_s + hop_s,
        estimates.p99_s + hop_s,
    )
    for column in (p50_s, p90_s, p99_s):
        column.flags.writeable = False
    return Estimates(p50_s, p90_s, p99_s, estimates.memory_bytes, estimates.load_s)
