"""A world in the hand of a test: set latencies, workers, manual time, and books that are checked.

Nothing here is patched: the cost model is a fake at its own seam, and the driver is a small one
that carries out effects and refuses those no driver could carry out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from modelless.controller.dispatch.dispatcher import Dispatcher
from modelless.controller.dispatch.limits import DispatchLimits
from modelless.controller.dispatch.messages import (
    BatchDone,
    BatchFailed,
    BatchReturned,
    Complete,
    DispatchEffect,
    Execute,
    QueryArrived,
    QueryCancelled,
    Refuse,
    ShutDown,
    Tick,
    WakeAt,
    WorkerLost,
    WorkerReport,
    WorkerReported,
)
from modelless.controller.dispatch.ready_instances import ReadyInstances
from modelless.policies.reasons import AnyReason
from modelless.policies.scopes import base_of, in_scope, own_of
from modelless.policies.seams import SelectionPolicy
from modelless.policies.selection.most_accurate_feasible import MostAccurateFeasible
from modelless.policies.views import QueryView
from modelless.variants.estimates import Estimates, Load
from modelless.variants.vocabulary import (
    Accuracy,
    DeviceClass,
    Engine,
    Placement,
    Precision,
    Provenance,
    Variant,
)

CPU = DeviceClass("cpu-1", "cpu", 1, 1 << 30, 0.05, 8.0)
GPU = DeviceClass("h200", "gpu", 1, 1 << 36, 3.50, 700.0)
DEVICES = {device.name: device for device in (CPU, GPU)}

LADDER = {
    "imagenet/lite0/int8@1": (0.010, 70.0),
    "imagenet/lite0/fp32@1": (0.020, 75.0),
    "imagenet/lite2/fp32@1": (0.040, 80.0),
}
"""Three variants of one task: p50 in seconds of a batch of one, and accuracy in per cent."""


def make_variant(variant_id: str, accuracy_percent: float = 75.0) -> Variant:
    """A variant from its id ``task/model/name@version``."""
    task, model, rest = variant_id.split("/")
    name, version = rest.split("@")
    return Variant(
        task=task,
        model=model,
        name=name,
        version=int(version),
        precision=Precision.FP32,
        resolution_px=None,
        engine=Engine.ONNXRUNTIME_CPU,
        artifact_sha256="0" * 64,
        artifact_bytes=1,
        accuracy=Accuracy(accuracy_percent, "top-1", Provenance.PUBLISHED, "a test"),
    )


@dataclass
class FakeCostModel:
    """A ``CostModel`` that says what it is told to.

    A batch of b items takes ``latency_s * (fixed_share + (1 - fixed_share) * b)`` at the median,
    1.1 of that at p90 and ``tail`` of it at p99. Latencies that are not in ``latency_s`` are inf.
    ``observed`` keeps what it was told.
    """

    latency_s: dict[str, float]
    fixed_share: float = 0.5
    tail: float = 1.2
    speed: dict[str, float] = field(default_factory=dict)
    observed: list[tuple[Placement, int, Load, float]] = field(default_factory=list)
    observed_sizes: list[int] = field(default_factory=list)
    calls: int = 0

    def p50_s(self, placement: Placement, batch: int, size: int = 0) -> float:
        """The median of one placement, seconds; items of a size take ``size / 100`` as long."""
        one_s = self.latency_s.get(placement.variant_id, math.inf)
        one_s *= size / 100.0 if size else 1.0
        speed = self.speed.get(placement.device_class, 1.0)
        return one_s / speed * (self.fixed_share + (1.0 - self.fixed_share) * batch)

    def estimate(
        self, placements: Sequence[Placement], batch: int, load: Load, size: int = 0
    ) -> Estimates:
        """See ``CostModel.estimate``; ``load`` slows everything by its busy neighbours' number."""
        self.calls += 1
        slowed = 1.0 + load.busy_neighbours
        one = [self.p50_s(placement, batch, size) for placement in placements]
        p50_s = np.array(one, dtype=np.float64) * slowed
        known = np.where(np.isfinite(p50_s), 1.0, np.inf)
        return Estimates(p50_s, p50_s * 1.1, p50_s * self.tail, known * 1e6, known * 0.5)

    def observe(
        self, placement: Placement, batch: int, load: Load, latency_s: float, size: int = 0
    ) -> bool:
        """See ``CostModel.observe``."""
        self.observed.append((placement, batch, load, latency_s))
        self.observed_sizes.append(size)
        return False

    def doubt(self) -> None:
        """See ``CostModel.doubt``; it has none."""


def make_query(
    query_id: int,
    now_s: float,
    *,
    scope: str = "imagenet",
    latency_ms: float | None = None,
    min_accuracy: float = 0.0,
    max_cost_usd: float = math.inf,
    priority: int = 0,
    items: int = 1,
    batch_key: object = None,
    tenant: str = "",
    serve_late: bool = False,
    has_default_deadline: bool = False,
    size: int = 0,
) -> QueryView:
    """A query that arrives now."""
    return QueryView(
        query_id=query_id,
        scope=scope,
        arrival_s=now_s,
        deadline_s=now_s + latency_ms / 1e3 if latency_ms is not None else math.inf,
        min_accuracy_percent=min_accuracy,
        max_cost_usd=max_cost_usd,
        priority=priority,
        items=items,
        batch_key=batch_key,  # type: ignore[arg-type]
        tenant=tenant,
        serve_late=serve_late,
        has_default_deadline=has_default_deadline,
        size=size,
    )


class World:
    """A dispatcher and its driver.

    ``asked``, ``completed``, ``refused``, ``cancelled`` are the books by query id; ``running`` is
    the batch of each worker, ``early`` one that a worker with a lead was given beside that. What no
    driver could carry out fails here and at once: a busy worker
    given a batch, a query answered twice, mixed shapes, a variant that is not there.
    """

    def __init__(
        self,
        selection: SelectionPolicy | None = None,
        variants: Mapping[str, tuple[float, float]] | None = None,
        limits: DispatchLimits | None = None,
        seed: int = 0,
    ) -> None:
        ladder = LADDER if variants is None else variants
        self.now_s = 100.0
        self.variants = {name: make_variant(name, value[1]) for name, value in ladder.items()}
        self.cost_model = FakeCostModel({name: value[0] for name, value in ladder.items()})
        self.limits = limits or DispatchLimits()
        self.instances = ReadyInstances(
            self.variants, DEVICES, self.cost_model, self.limits.max_batch
        )
        self.dispatcher = Dispatcher(
            self.instances,
            selection or MostAccurateFeasible(),
            np.random.default_rng(seed),
            self.limits,
        )
        self.residents: dict[str, set[str]] = {}
        self.asked: dict[int, QueryView] = {}
        self.completed: dict[int, Complete] = {}
        self.refused: dict[int, Refuse] = {}
        self.cancelled: set[int] = set()
        self.served_by: dict[int, Execute] = {}
        self.answered_s: dict[int, float] = {}
        self.running: dict[str, Execute] = {}
        self.early: dict[str, Execute] = {}
        self.leads_s: dict[str, float] = {}
        self.executed: list[Execute] = []
        self.wakes: list[float] = []
        self.turned_back: Counter[int] = Counter()
        self.happened: Counter[str] = Counter()

    # -- events -------------------------------------------------------------------------------

    def add_worker(
        self,
        worker_id: str = "w0",
        variant_ids: Iterable[str] | None = None,
        device_class: str = "cpu-1",
        hop_s: float = 0.0,
        lead_s: float = 0.0,
    ) -> list[DispatchEffect]:
        """A worker reports what it holds; by default, everything."""
        held = tuple(self.variants if variant_ids is None else variant_ids)
        self.residents[worker_id] = set(held)
        self.leads_s[worker_id] = lead_s
        report = WorkerReport(worker_id, device_class, held, hop_s)
        return self._carry_out(self.dispatcher.handle(WorkerReported(report, lead_s), self.now_s))

    def ask(self, **limits: object) -> int:
        """A query with these limits (see ``make_query``) comes in; returns its id."""
        query = make_query(len(self.asked) + 1, self.now_s, **limits)  # type: ignore[arg-type]
        return self.send(query)

    def send(self, query: QueryView) -> int:
        """This very query comes in."""
        self.asked[query.query_id] = query
        self.happened[f"arrived {query.scope}"] += 1
        self._carry_out(self.dispatcher.handle(QueryArrived(query), self.now_s))
        return query.query_id

    def finish(
        self,
        worker_id: str = "w0",
        after_s: float | None = None,
        others_s: float = 0.0,
        waited_s: float = 0.0,
    ) -> list[DispatchEffect]:
        """The worker's batch is done, ``after_s`` seconds from now; by default its median, or 1.

        It waited ``waited_s`` seconds before, for another gateway's.
        """
        batch = self._take(worker_id)
        expected_s = self.expected_s(batch)
        busy_s = after_s if after_s is not None else expected_s if expected_s < math.inf else 1.0
        self.now_s += waited_s + busy_s
        return self._carry_out(
            self.dispatcher.handle(
                BatchDone(batch.batch_id, busy_s, others_s, waited_s), self.now_s
            )
        )

    def turn_back(
        self, worker_id: str = "w0", others_s: float = 0.0, *, early: bool = False
    ) -> list[DispatchEffect]:
        """The worker does not take its batch, or its early one: others keep it for so long."""
        batch = self.early.pop(worker_id) if early else self._take(worker_id)
        self.turned_back.update(batch.query_ids)
        return self._carry_out(
            self.dispatcher.handle(BatchReturned(batch.batch_id, others_s), self.now_s)
        )

    def fail(
        self, worker_id: str = "w0", *, worker_lost: bool = False, early: bool = False
    ) -> list[DispatchEffect]:
        """The worker's batch, or its early one, could not be run."""
        batch = self.early.pop(worker_id) if early else self._take(worker_id)
        if worker_lost and not early:
            del self.residents[worker_id]
            self.running.pop(worker_id, None)
        return self._carry_out(
            self.dispatcher.handle(BatchFailed(batch.batch_id, worker_lost), self.now_s)
        )

    def lose(self, worker_id: str = "w0") -> list[DispatchEffect]:
        """The worker is gone, and what it ran with it."""
        self.running.pop(worker_id, None)
        self.early.pop(worker_id, None)
        self.residents.pop(worker_id, None)
        return self._carry_out(self.dispatcher.handle(WorkerLost(worker_id), self.now_s))

    def cancel(self, query_id: int) -> None:
        """The client of an open query goes away."""
        if query_id in self.open_ids:
            self.cancelled.add(query_id)
        assert self.dispatcher.handle(QueryCancelled(query_id), self.now_s) == []

    def tick(self, after_s: float = 0.0) -> list[DispatchEffect]:
        """Time passes."""
        self.now_s += after_s
        effects = self.dispatcher.handle(Tick(), self.now_s)
        alive = self.instances.reports
        for worker_id in [name for name in self.residents if name not in alive]:  # given up
            self.running.pop(worker_id, None)
            self.early.pop(worker_id, None)
            del self.residents[worker_id]
        return self._carry_out(effects)

    def shut_down(self) -> list[DispatchEffect]:
        """The server stops."""
        return self._carry_out(self.dispatcher.handle(ShutDown(), self.now_s))

    def drain(self) -> None:
        """Let everything that can run do so, then let deadlines pass, then shut down."""
        for _ in range(10_000):
            if not self.running:
                break
            self.finish(min(self.running))
        self.tick(1.0)  # whom others kept is free by then
        self.shut_down()
        while self.running:
            self.finish(min(self.running))

    # -- questions ----------------------------------------------------------------------------

    @property
    def open_ids(self) -> set[int]:
        """Queries that are neither answered nor cancelled."""
        return set(self.asked) - set(self.completed) - set(self.refused) - self.cancelled

    def waiting(self) -> list[QueryView]:
        """Queries in queues, by what their receipts say."""
        receipts = [self.dispatcher.receipt(query_id) for query_id in self.open_ids]
        return [r.standing or r.query for r in receipts if r is not None and r.outcome == "waiting"]

    def predicted_wait_s(self, worker_id: str) -> float:
        """How long the worker is predicted to be busy from now, seconds."""
        ready = sorted(self.residents[worker_id])
        if not ready:
            return 0.0
        device_class = self.instances.reports[worker_id].device_class
        candidates = self.instances.candidates(
            ready[0].replace("@", "/").rpartition("/")[0], 1, self.now_s
        )
        row = candidates.placements.index(Placement(ready[0], device_class))
        return float(candidates.free_at_s[row]) - self.now_s

    def expected_s(self, batch: Execute) -> float:
        """The median of the batch, seconds."""
        queries = [self.asked[query_id] for query_id in batch.query_ids]
        items = sum(query.items for query in queries)
        device_class = self.instances.reports[batch.worker_id].device_class
        placement = Placement(batch.variant_id, device_class)
        return self.cost_model.p50_s(placement, items, queries[0].size)

    def variant_of(self, query_id: int) -> str:
        """What the query is bound to or ran on."""
        receipt = self.dispatcher.receipt(query_id)
        assert receipt is not None
        return receipt.variant_id

    def reason_of(self, query_id: int) -> AnyReason | None:
        """Why it was decided so."""
        receipt = self.dispatcher.receipt(query_id)
        assert receipt is not None
        return receipt.reason

    # -- effects ------------------------------------------------------------------------------

    def _carry_out(self, effects: list[DispatchEffect]) -> list[DispatchEffect]:
        for effect in effects:
            if isinstance(effect, Execute):
                self._execute(effect)
            elif isinstance(effect, Complete):
                self._answer(effect.query_id)
                self.completed[effect.query_id] = effect
                self.served_by[effect.query_id] = self._batch_of(effect)
                self.answered_s[effect.query_id] = self.now_s
            elif isinstance(effect, Refuse):
                self._answer(effect.query_id)
                assert isinstance(effect.reason, AnyReason)
                assert effect.message
                self.refused[effect.query_id] = effect
            elif isinstance(effect, WakeAt):
                assert effect.at_s > self.now_s, "a driver would wake at once, for ever"
                self.wakes.append(effect.at_s)
        assert self.dispatcher.open_queries == len(self.open_ids)
        return effects

    def _execute(self, batch: Execute) -> None:
        is_early = batch.worker_id in self.running
        if is_early:
            assert self.leads_s[batch.worker_id] > 0.0, "a worker runs one batch at a time"
            assert batch.worker_id not in self.early, "one beside the one that runs"
        assert batch.variant_id in self.residents[batch.worker_id], "the variant is not there"
        assert len(set(batch.query_ids)) == len(batch.query_ids) > 0
        queries = [self.asked[query_id] for query_id in batch.query_ids]
        assert len({query.batch_key for query in queries}) == 1, "shapes are mixed"
        assert sum(query.items for query in queries) <= self.limits.max_batch
        for query in queries:
            assert query.query_id in self.open_ids, "run after it was answered"
            held = [name for names in self.residents.values() for name in names]
            is_gone = not any(in_scope(name, own_of(query.scope)) for name in held)
            scope = base_of(query.scope) if is_gone else query.scope
            assert in_scope(batch.variant_id, scope)
        (self.early if is_early else self.running)[batch.worker_id] = batch
        self.executed.append(batch)

    def _take(self, worker_id: str) -> Execute:
        """The worker's batch, which runs no more; the one beside it does."""
        batch = self.running.pop(worker_id)
        if worker_id in self.early:
            self.running[worker_id] = self.early.pop(worker_id)
        return batch

    def _answer(self, query_id: int) -> None:
        assert query_id in self.asked
        assert query_id not in self.completed, "answered twice"
        assert query_id not in self.refused, "answered twice"
        assert query_id not in self.cancelled, "answered after it was cancelled"

    def _batch_of(self, effect: Complete) -> Execute:
        batch = self.executed[effect.batch_id]
        assert batch.batch_id == effect.batch_id
        assert effect.query_id in batch.query_ids
        return batch
