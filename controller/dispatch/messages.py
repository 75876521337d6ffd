"""The events that the dispatcher handles and the effects that it returns, as plain values.

All times are seconds on the driver's clock. The driver passes each event to ``Dispatcher.handle``
with the time at which it happened, and carries out the effects in order. Messages can be recorded,
compared and replayed; see ``controller/replay``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from modelless.controller.dispatch.exploration import Exploration
from modelless.policies.advisory import Advisory
from modelless.policies.reasons import AnyReason
from modelless.policies.seams import SelectionPolicy
from modelless.policies.views import QueryView
from modelless.variants.estimates import CostModel, Load
from modelless.variants.vocabulary import Placement, Variant

# Events: what happens to the dispatcher.


class QueryArrived(NamedTuple):
    """A query arrived. Its id must be new."""

    query: QueryView


class CacheHit(NamedTuple):
    """A query arrived whose answer is in the cache: no worker runs it, and no plan reckons with it.

    Attributes:
        query: its id must be new.
        variant_id: the variant that gave the answer.
    """

    query: QueryView
    variant_id: str


class QueryCancelled(NamedTuple):
    """The client of a query closed its connection and needs no answer."""

    query_id: int


class BatchDone(NamedTuple):
    """A worker finished a batch.

    An unknown batch (one given up earlier, or of a lost worker) shows only that the worker is
    alive.

    Attributes:
        busy_s: how long the device was busy with the batch, seconds.
        others_s: for how long other gateways' batches still occupy the worker, seconds.
        waited_s: how long other gateways' batches kept this batch waiting, seconds.
    """

    batch_id: int
    busy_s: float
    others_s: float = 0.0
    waited_s: float = 0.0


class BatchFailed(NamedTuple):
    """A batch could not be run.

    Attributes:
        worker_lost: the worker itself is gone, so its queries are tried elsewhere once.
    """

    batch_id: int
    worker_lost: bool


class BatchReturned(NamedTuple):
    """A shared worker did not accept a batch, which therefore counts as no attempt.

    Attributes:
        others_s: for how long other gateways' batches still occupy the worker, seconds.
    """

    batch_id: int
    others_s: float


class WorkerReport(NamedTuple):
    """The state that a worker reports of itself.

    Attributes:
        hop_s: time that a batch travels to the worker and back, seconds: 0 for the device in this
            process.
    """

    worker_id: str
    device_class: str
    variant_ids: tuple[str, ...]
    hop_s: float = 0.0


class WorkerReported(NamedTuple):
    """A worker appeared, or reported its present state again.

    Attributes:
        lead_s: how long before its batch is expected back the worker accepts the next one, seconds;
            see ``workers.EarlyStarts``.
    """

    report: WorkerReport
    lead_s: float = 0.0


class WorkerLost(NamedTuple):
    """A worker died or left."""

    worker_id: str


class LoadChanged(NamedTuple):
    """The cluster's load was measured anew: estimates are made for this load from now on.

    Attributes:
        starting_s: by device class that scaling starts workers of, how soon a new worker is ready,
            seconds.
    """

    load: Load
    starting_s: Mapping[str, float] = MappingProxyType({})


class Advised(NamedTuple):
    """The scaling policy's plan says which share of a scope's queries each placement serves.

    Attributes:
        shares: by scope and placement, 0 to 1 each.
    """

    shares: Mapping[str, Mapping[Placement, float]]


class CatalogChanged(NamedTuple):
    """Variants were registered or profiled. This event holds a cost model: it cannot be recorded.

    Attributes:
        variants: every variant that may be served, by id; workers hold no others.
    """

    variants: Mapping[str, Variant]
    cost_model: CostModel


class AccuraciesRevised(NamedTuple):
    """Feedback demoted variants, or restored some.

    Attributes:
        percent: the accuracies that demoted variants count for, by id; all others have their own.
    """

    percent: Mapping[str, float]


class SelectionChanged(NamedTuple):
    """Operators changed the selection policy, or the share of queries that explore.

    Attributes:
        selection: the policy from now on, also for the queries that wait.
        exploration, advisory: see ``Dispatcher``.
        shares: as in ``Advised``.
    """

    selection: SelectionPolicy
    exploration: Exploration | None
    shares: Mapping[str, Mapping[Placement, float]] = MappingProxyType({})
    advisory: Advisory[SelectionPolicy] | None = None


class Tick(NamedTuple):
    """Time passed: deadlines may have expired, and batches may hang."""


class ShutDown(NamedTuple):
    """The server stops: queries that wait or come later are refused; running batches complete."""


DispatchEvent = (
    QueryArrived
    | CacheHit
    | QueryCancelled
    | BatchDone
    | BatchFailed
    | BatchReturned
    | WorkerReported
    | WorkerLost
    | LoadChanged
    | Advised
    | CatalogChanged
    | AccuraciesRevised
    | SelectionChanged
    | Tick
    | ShutDown
)


# Effects: what the driver must do.


class Execute(NamedTuple):
    """Run these queries, in this order, as one batch on this worker."""

    batch_id: int
    worker_id: str
    variant_id: str
    query_ids: tuple[int, ...]


class Complete(NamedTuple):
    """Answer the query with its part of the batch's output; batch 0 stands for the cache."""

    query_id: int
    batch_id: int


class Refuse(NamedTuple):
    """Answer the query with an error.

    Attributes:
        message: the reason, for people: with the nearest feasible limits where no placement fits.
        retry_after_s: after how many seconds another try makes sense; None if it never does.
    """

    query_id: int
    reason: AnyReason
    message: str
    retry_after_s: float | None = None


class WakeAt(NamedTuple):
    """Send a ``Tick`` at this time, unless a later ``WakeAt`` names an earlier one."""

    at_s: float


class AskForLoad(NamedTuple):
    """Tell the control loop at once, and not with the next report, that queries wait for a load.

    Attributes:
        scope: the scope that no ready variant serves accurately enough.
    """

    scope: str
    min_accuracy_percent: float


class PolicyFailed(NamedTuple):
    """Report that a policy raised an error while it was told the plan's shares.

    A policy that fails on a query costs that query: see ``Refuse`` and ``Reason.POLICY_FAILED``.

    Attributes:
        message: names the policy and the error, for people.
    """

    message: str


DispatchEffect = Execute | Complete | Refuse | WakeAt | AskForLoad | PolicyFailed
