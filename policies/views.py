"""The frozen views that policies read; policies return decisions and change nothing.

Rows of arrays represent placements, in no particular order; every array is read-only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from modelless.policies.plan_quality import PlanQuality
from modelless.policies.reasons import AnyReason, Reason
from modelless.variants.estimates import Estimates
from modelless.variants.vocabulary import DeviceClass, Placement

FloatArray = NDArray[np.float64]

_MEMORY_BYTES = attrgetter("memory_bytes")
_UNKNOWN: Mapping[str, int] = {}


class QueryView(NamedTuple):
    """One query without its tensors.

    Attributes:
        query_id: unique in its dispatcher.
        scope: the task, or the part of it that the client chose: ``task/model[/variant]``.
        arrival_s, deadline_s: on the driver's clock, seconds; the deadline is ``inf`` if none was
            given.
        min_accuracy_percent: 0 if none was given.
        max_cost_usd: inf if none was given.
        priority: 0 to 9; a higher one is more urgent. Policies never see -1, offline queries.
        items: items in the query's tensors, 1 or more.
        batch_key: only queries with equal keys may share a batch (their tensors' shapes).
        tenant: name of the client's tenant.
        serve_late: whether a late answer is better than none; late queries are served when no query
            waits that can still be in time.
        demoted: whether the core serves it after all others of its priority, because it is late or
            beyond its tenant's fair share during overload.
        has_default_deadline: whether the client gave no deadline and got the server's.
        size: numbers in one item's inputs together, as ``round_size`` rounds them, where the task
            leaves sizes free; else 0. Queries of equal ``batch_key`` have equal sizes. Estimates
            that a policy is given are for the size of the queries that it is given.
        request_id, traceparent: the client's names for it, for people; empty if there is none.
    """

    query_id: int
    scope: str
    arrival_s: float
    deadline_s: float
    min_accuracy_percent: float = 0.0
    max_cost_usd: float = float("inf")
    priority: int = 0
    items: int = 1
    batch_key: Hashable = None
    tenant: str = ""
    serve_late: bool = False
    demoted: bool = False
    has_default_deadline: bool = False
    size: int = 0
    request_id: str = ""
    traceparent: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """The placements that are ready to serve a query, as columns of shape (n,).

    Attributes:
        placements: variant and device class of each row.
        accuracy_percent: float64.
        cost_usd: price of the device time of the query's items, float64.
        estimates: latency quantiles for the query's items as one batch, network hop included.
        free_at_s: predicted time when the least busy worker with the row becomes idle, at least
            ``now_s``.
        now_s: time of the request.
        shortlist: rows that a policy needs that uses only accuracy, cost, latency and wait: no row
            that is left out is better than all of these in any of them. None for all rows.
        worker_counts: number of live workers by device class; empty if unknown.
    """

    placements: tuple[Placement, ...]
    accuracy_percent: FloatArray
    cost_usd: FloatArray
    estimates: Estimates
    free_at_s: FloatArray
    now_s: float
    shortlist: NDArray[np.intp] | None = None
    worker_counts: Mapping[str, int] = field(default_factory=dict)

    def row_of(self, variant_id: str, device_class: str) -> int | None:
        """Returns the row of a placement; None if it is not among them."""
        try:
            return self.placements.index(Placement(variant_id, device_class))
        except ValueError:
            return None


class Bind(NamedTuple):
    """Serve the query with row ``row`` of the candidates."""

    row: int
    reason: AnyReason


class Defer(NamedTuple):
    """Choose later, when a worker becomes idle."""

    reason: AnyReason = Reason.DEFERRED


class Reject(NamedTuple):
    """Refuse the query now."""

    reason: AnyReason


Choice = Bind | Defer | Reject


class ResidentView(NamedTuple):
    """A variant that is ready on the idle worker.

    Attributes:
        variant_id: its id.
        accuracy_percent: its accuracy.
        p50_s, p99_s: predicted seconds of a batch of b items at index b, max_batch + 1 figures;
            index 0 is 0.
    """

    variant_id: str
    accuracy_percent: float
    p50_s: Sequence[float]
    p99_s: Sequence[float]


class QueueView(NamedTuple):
    """Queries that may share a batch, the most urgent first.

    Attributes:
        scope: scope of all its queries.
        variant_id: the variant they are bound to; None if they were deferred.
        batch_key: equal for all.
        queries: sorted by (priority, demoted or not, deadline).
        head: ``urgency`` of the first query, where known; it saves time with dozens of queues.
    """

    scope: str
    variant_id: str | None
    batch_key: Hashable
    queries: Sequence[QueryView]
    head: tuple[int, float, int] | None = None


class WorkerView(NamedTuple):
    """The worker that has become idle.

    Attributes:
        worker_id: its id.
        device_class: its device class.
        residents: its ready variants by id.
        max_batch: most items in one batch.
        lead_s: how long before the end of a batch it is asked for the next one, which travels
            meanwhile. It has two batches at most: a batch occupies it for its latency less
            ``lead_s``, and for half of its latency at least.
        worker_counts: number of live workers by device class, this one included; empty if unknown.
    """

    worker_id: str
    device_class: str
    residents: Mapping[str, ResidentView]
    max_batch: int
    lead_s: float = 0.0
    worker_counts: Mapping[str, int] = _UNKNOWN


class Run(NamedTuple):
    """Run these queries as one batch with this variant.

    Attributes:
        dropped: queries of the given queues to refuse now.
    """

    variant_id: str
    queries: tuple[QueryView, ...]
    reason: AnyReason
    dropped: tuple[QueryView, ...] = ()


class Wait(NamedTuple):
    """Stay idle until ``until_s`` or the next arrival, whichever is first.

    Attributes:
        dropped: as in ``Run``.
    """

    reason: AnyReason
    until_s: float = float("inf")
    dropped: tuple[QueryView, ...] = ()


@dataclass(frozen=True, slots=True)
class Instance:
    """A variant loaded in a worker.

    Attributes:
        worker_id, variant_id: the worker and the variant.
        memory_bytes: measured memory.
        load_s: time to load it again, seconds.
        last_used_s, use_count: time of its last batch, and number of its batches.
        in_use: whether a batch runs or is queued on it, or it is still loading; then it may not be
            unloaded.
        pinned: whether an operator wants to keep it.
    """

    worker_id: str
    variant_id: str
    memory_bytes: int
    load_s: float
    last_used_s: float
    use_count: int
    in_use: bool = False
    pinned: bool = False

    @property
    def is_loading(self) -> bool:
        """Whether it seems to be loading: in use and never used."""
        return self.in_use and self.use_count == 0


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker as the control plane sees it.

    Attributes:
        memory_bytes: memory budget.
        instances: loaded or loading instances.
        busy_share: share of the time since the last view in which it ran batches, 0 to 1.
        slowdowns: slowdown of variants, by id, beside the instances of the host's other devices if
            these are busy; missing where unknown.
        pool: its pool; by default the one with the name of its device class.
        resizing_to: the device class that it changes to; empty if it does not change.
        barred: variants that recently failed to load there and are not tried again now.
        unmet: for a device that only one gateway reaches: strictest minimum accuracy, per cent, of
            the queries since the last view that nothing could serve, by scope.
        free_bytes: memory budget less the memory of its instances.
    """

    worker_id: str
    device_class: str
    memory_bytes: int
    instances: tuple[Instance, ...]
    busy_share: float = 0.0
    slowdowns: Mapping[str, float] = field(default_factory=dict, repr=False, compare=False)
    pool: str = ""
    resizing_to: str = ""
    barred: frozenset[str] = frozenset()
    unmet: Mapping[str, float] = field(default_factory=dict, repr=False, compare=False)
    free_bytes: int = field(init=False, repr=False, compare=False)

    @property
    def size(self) -> str:
        """The device class that it has or changes to."""
        return self.resizing_to or self.device_class

    def __post_init__(self) -> None:
        object.__setattr__(self, "pool", self.pool or self.device_class)
        # map with attrgetter is fast: a plan makes a state for each load.
        taken = sum(map(_MEMORY_BYTES, self.instances))
        object.__setattr__(self, "free_bytes", self.memory_bytes - taken)


@dataclass(frozen=True, slots=True)
class Pool:
    """A group of equal workers, and what may be changed about them.

    Attributes:
        name: device class with which its workers start; a pool with another name (that of the
            gateways) keeps its number of workers.
        sizes: device classes that its workers may have, the initial one first; a worker may change
            from one to another while it serves.
        min_workers, max_workers: bounds of their number.
        max_cores: most CPU cores of all its workers together; None for no bound.
        start_s: time from the decision for one more worker until it is there, seconds.
    """

    name: str
    sizes: tuple[str, ...]
    min_workers: int
    max_workers: int
    max_cores: int | None = None
    start_s: float = 0.0


@dataclass(frozen=True, slots=True)
class VariantFacts:
    """Facts of a variant that could be loaded, for planning.

    Attributes:
        variant_id, task: names.
        accuracy_percent: 0 to 100.
        memory_bytes, load_s, latency_s: by device class name, missing where it cannot run;
            latency_s is the p50 of a batch of one item.
        batch_s: p50 by device class name: that of a batch of b items at index b; index 0 is 0.
    """

    variant_id: str
    task: str
    accuracy_percent: float
    memory_bytes: Mapping[str, float]
    load_s: Mapping[str, float]
    latency_s: Mapping[str, float]
    batch_s: Mapping[str, Sequence[float]] = field(default_factory=dict)


class Demand(NamedTuple):
    """Queries of one kind, which ask for the same scope within the same limits.

    Attributes:
        scope: as in ``QueryView``.
        latency_s: from arrival to deadline, seconds; inf if none was given.
        min_accuracy_percent: 0 if none was given.
        rate_per_s: such queries a second since the last view, those that wait for a load included.
        items: mean number of items in a query.
        waiting_per_s: of the rate, the queries that came before: they still wait for a load.
    """

    scope: str
    latency_s: float
    min_accuracy_percent: float
    rate_per_s: float
    items: float = 1.0
    waiting_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ClusterView:
    """All that the control plane decides on, at one time.

    Attributes:
        now_s: time on the driver's clock.
        device_classes: by name.
        workers: workers that are alive and report.
        variants: variants that may be served.
        arrivals_per_s: measured rate by scope since the last view.
        unmet_per_s: rate by scope of queries that found nothing ready, since the last view.
        demands: arrivals by kind; their rates add up to ``arrivals_per_s``.
        open_queries: queries that wait or run now, by scope.
        pools: pools of workers and their bounds.
        missed_per_s: queries refused or answered late, a second, since the last view.
        pinned: scopes that operators pinned: the core loads a variant of each, and evicts none.
    """

    now_s: float
    device_classes: Mapping[str, DeviceClass]
    workers: tuple[WorkerState, ...]
    variants: tuple[VariantFacts, ...]
    arrivals_per_s: Mapping[str, float]
    unmet_per_s: Mapping[str, float]
    demands: tuple[Demand, ...] = ()
    open_queries: Mapping[str, int] = field(default_factory=dict)
    pools: tuple[Pool, ...] = ()
    missed_per_s: float = 0.0
    pinned: tuple[str, ...] = ()

    def count_instances(self) -> Counter[Placement]:
        """Returns the number of loaded or loading instances by placement."""
        return Counter(
            Placement(instance.variant_id, worker.device_class)
            for worker in self.workers
            for instance in worker.instances
        )


@dataclass(frozen=True, slots=True)
class Targets:
    """The wishes of a scaling policy.

    Attributes:
        instances: wanted instances by placement, the most important first: when memory is short the
            first are loaded first. Placements that are not named are not wanted.
        workers: wanted workers by device class; classes that are not named are left alone.
        reason: the reason.
        shares: by scope, the share of its queries that each placement should serve, for selection
            policies (``SelectionPolicy.on_plan``).
        on_demand: whether the instances are what clients just asked for rather than a plan; then
            the eviction policy may decline them (``EvictionPolicy.admits``).
        quality: quality of the plan, of policies that optimise; one object for each plan, so that a
            plan that is kept is not counted again.
    """

    instances: Mapping[Placement, int]
    workers: Mapping[str, int]
    reason: Reason
    shares: Mapping[str, Mapping[Placement, float]] = field(default_factory=dict)
    on_demand: bool = False
    quality: PlanQuality | None = None
