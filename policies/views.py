"""What policies see. Frozen: a policy reads these and returns decisions, and changes nothing.

Rows of arrays stand for placements, in no particular order; every array is read-only.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from modelless.policies.plan_quality import PlanQuality
from modelless.policies.reasons import Reason
from modelless.variants.estimates import Estimates
from modelless.variants.vocabulary import DeviceClass, Placement

FloatArray = NDArray[np.float64]

_MEMORY_BYTES = attrgetter("memory_bytes")


class QueryView(NamedTuple):
    """One query, without its tensors.

    Attributes:
        query_id: unique in its dispatcher.
        scope: the task, or the part of it the client narrowed to: ``task/model[/variant]``.
        arrival_s, deadline_s: on the driver's clock, seconds; deadline ``inf`` if none was given.
        min_accuracy_percent: 0 if none was given.
        max_cost_usd: inf if none was given.
        priority: 0 to 9; more is more urgent.
        items: items in the query's tensors, 1 or more.
        batch_key: only queries with equal keys may share a batch (their tensors' shapes).
        tenant: who asks.
        serve_late: rather late than not at all: what is late is served when nobody is kept waiting
            who can still be in time.
        demoted: goes behind all others of its priority: it is late already, or beyond its
            tenant's fair share while there is too much to do. The core says so, not the client.
        has_default_deadline: the client named none, and got the server's.
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


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """The placements that are ready to serve a query, as columns of shape (n,).

    Attributes:
        placements: variant and device class of each row.
        accuracy_percent: float64.
        cost_usd: price of the device time the query's items take, float64.
        estimates: latency quantiles for the query's items as one batch, hop included.
        free_at_s: when the least busy worker holding the row is predicted to fall idle; never
            before ``now_s``.
        now_s: the time of asking.
        shortlist: rows worth looking at for a policy that minds only accuracy, cost, latency and
            the wait: every row left out is no better in any of these than one of them. None: all.
    """

    placements: tuple[Placement, ...]
    accuracy_percent: FloatArray
    cost_usd: FloatArray
    estimates: Estimates
    free_at_s: FloatArray
    now_s: float
    shortlist: NDArray[np.intp] | None = None

    def row_of(self, variant_id: str, device_class: str) -> int | None:
        """The row of a placement; None if it is not among them."""
        try:
            return self.placements.index(Placement(variant_id, device_class))
        except ValueError:
            return None


class Bind(NamedTuple):
    """Serve the query with row ``row`` of the candidates."""

    row: int
    reason: Reason


class Defer(NamedTuple):
    """Choose when a worker falls idle."""

    reason: Reason = Reason.DEFERRED


class Reject(NamedTuple):
    """Refuse the query now."""

    reason: Reason


Choice = Bind | Defer | Reject


class ResidentView(NamedTuple):
    """A variant that is ready on the worker being asked about.

    Attributes:
        variant_id: its id.
        accuracy_percent: its accuracy.
        p50_s, p99_s: max_batch + 1 figures: predicted seconds of a batch of b items at index b;
            index 0 is 0.
    """

    variant_id: str
    accuracy_percent: float
    p50_s: Sequence[float]
    p99_s: Sequence[float]


class QueueView(NamedTuple):
    """Queries that may share a batch, earliest deadline first.

    Attributes:
        scope: of all its queries.
        variant_id: what they are bound to; None if they were deferred.
        batch_key: equal for all.
        queries: sorted by (priority, demoted or not, deadline): the most urgent first.
        head: the first one's ``urgency``, where that is known: there may be dozens of queues.
    """

    scope: str
    variant_id: str | None
    batch_key: Hashable
    queries: Sequence[QueryView]
    head: tuple[int, float, int] | None = None


class WorkerView(NamedTuple):
    """The worker that has fallen idle.

    Attributes:
        worker_id: its id.
        device_class: what it owns.
        residents: its ready variants by id.
        max_batch: most items it takes in one batch.
        lead_s: how long before a batch of its is expected back it is asked for the next, which is
            on its way there meanwhile. It has two at most: a batch keeps it for so much less than
            its latency, and half of that at least.
    """

    worker_id: str
    device_class: str
    residents: Mapping[str, ResidentView]
    max_batch: int
    lead_s: float = 0.0


class Run(NamedTuple):
    """Run these queries as one batch with this variant.

    Attributes:
        dropped: queries of the queues shown that are given up: they are refused at once.
    """

    variant_id: str
    queries: tuple[QueryView, ...]
    reason: Reason
    dropped: tuple[QueryView, ...] = ()


class Wait(NamedTuple):
    """Stay idle until ``until_s`` or the next arrival, whichever is first; but see ``for_alike``.

    Attributes:
        dropped: as in ``Run``.
        for_alike: none of the queues shown is anything for any worker of its device class that
            holds the same of the queue's scope, until ``until_s`` or until a query comes that is
            the first of its queue: of these they need not be asked before. Only if ``until_s`` is
            finite.
    """

    reason: Reason
    until_s: float = float("inf")
    dropped: tuple[QueryView, ...] = ()
    for_alike: bool = False


@dataclass(frozen=True, slots=True)
class Instance:
    """A variant loaded in a worker.

    Attributes:
        worker_id, variant_id: where and what.
        memory_bytes: measured.
        load_s: what loading it again would take.
        last_used_s, use_count: when and how often it served a batch.
        in_use: a batch runs or is queued on it, or it is still loading: it may not be unloaded.
        pinned: an operator wants it kept.
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
        """Whether it is still to come, as far as one can see: in use, and never used."""
        return self.in_use and self.use_count == 0


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker as the control plane sees it.

    Attributes:
        memory_bytes: its budget.
        instances: loaded or loading.
        busy_share: of the time since the last view, how much it was busy with batches; 0 to 1.
        slowdowns: by variant id, how many times as long it would take there beside what the other
            devices of the host hold, were they busy; what is not named is not known to be slowed.
        pool: whose it is; by default the one called like its device class.
        resizing_to: the device class that it is about to become; empty if it stays what it is.
        barred: variants that could not be loaded there lately: not to be tried again just now.
        unmet: of a device that one gateway alone reaches: by scope that its clients asked
            for in vain since the last view, their strictest minimum accuracy, percent.
        free_bytes: memory budget less what its instances take.
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
        """The device class that it is, or is about to become."""
        return self.resizing_to or self.device_class

    def __post_init__(self) -> None:
        object.__setattr__(self, "pool", self.pool or self.device_class)
        taken = sum(map(_MEMORY_BYTES, self.instances))  # a plan makes a state for each load
        object.__setattr__(self, "free_bytes", self.memory_bytes - taken)


@dataclass(frozen=True, slots=True)
class Pool:
    """Workers that are alike, and what may be done with them.

    Attributes:
        name: that of the device class its workers start as; a pool of any other name (that of the
            gateways) has as many workers as it has.
        sizes: device classes that its workers may be, the one they start as first: one may be
            resized from one to another while it serves.
        min_workers, max_workers: how many it may have.
        max_cores: CPU cores that all its workers together may use; None for no bound.
        start_s: from wanting one more worker to having it.
    """

    name: str
    sizes: tuple[str, ...]
    min_workers: int
    max_workers: int
    max_cores: int | None = None
    start_s: float = 0.0


@dataclass(frozen=True, slots=True)
class VariantFacts:
    """What planning needs to know of a variant that could be loaded.

    Attributes:
        variant_id, task: names.
        accuracy_percent: 0 to 100.
        memory_bytes, load_s, latency_s: by device class name; absent where it cannot run.
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
    """Queries of one kind: who asks for the same within the same limits.

    Attributes:
        scope: as in ``QueryView``.
        latency_s: from arrival to deadline; inf if none was given.
        min_accuracy_percent: 0 if none was given.
        rate_per_s: such queries since the last view, a second.
        items: of one of them, on average.
    """

    scope: str
    latency_s: float
    min_accuracy_percent: float
    rate_per_s: float
    items: float = 1.0


@dataclass(frozen=True, slots=True)
class ClusterView:
    """All that the control plane decides on, at one instant.

    Attributes:
        now_s: the driver's clock.
        device_classes: by name.
        workers: alive and reporting.
        variants: what may be served.
        arrivals_per_s: measured by scope since the last view.
        unmet_per_s: queries by scope that found nothing ready, since the last view.
        demands: the arrivals by kind: their rates add up to ``arrivals_per_s``.
        open_queries: waiting or running now, by scope.
        pools: what can be changed about the workers.
        missed_per_s: queries refused or answered late, a second, since the last view.
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


@dataclass(frozen=True, slots=True)
class Targets:
    """What a scaling policy wants.

    Attributes:
        instances: wanted instances by placement; what is not named is not wanted.
            In order of importance: when memory is short the first are served first.
        workers: wanted workers by device class; a class that is not named is left alone.
        reason: why.
        shares: by scope, the share of its queries that each placement should serve, for selection
            policies that are told (``SelectionPolicy.on_plan``).
        on_demand: the instances are what clients just asked for, rather than a plan: the eviction
            policy may decline them (``EvictionPolicy.admits``).
        quality: how good the plan is known to be, of policies that optimise; one object a plan, so
            that a plan that is kept is not counted again.
    """

    instances: Mapping[Placement, int]
    workers: Mapping[str, int]
    reason: Reason
    shares: Mapping[str, Mapping[Placement, float]] = field(default_factory=dict)
    on_demand: bool = False
    quality: PlanQuality | None = None
