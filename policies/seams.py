"""The seams: the abstract classes that a researcher replaces.

Policies are pure: time and randomness come in as arguments, views are frozen, decisions go out.
Settings are keyword arguments of ``__init__``; they come from YAML and are checked by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from modelless.policies.reasons import Reason
from modelless.policies.views import (
    Candidates,
    Choice,
    ClusterView,
    Defer,
    Instance,
    QueryView,
    QueueView,
    Reject,
    Run,
    Targets,
    Wait,
    WorkerState,
    WorkerView,
)
from modelless.variants.vocabulary import Placement


class BatchingPolicy(ABC):
    """Chooses the queued queries that an idle worker runs next, in one batch."""

    @abstractmethod
    def next_batch(
        self, worker: WorkerView, queues: Sequence[QueueView], now_s: float
    ) -> Run | Wait:
        """Returns a batch from one of ``queues``, which holds bound ones only, or a wait."""


class SelectionPolicy(ABC):
    """Chooses the variant and the device class that serve a query.

    A policy that binds on arrival overrides ``on_arrival`` and leaves batching to a BatchingPolicy.
    One that binds late leaves ``on_arrival`` alone and overrides ``on_idle``; it needs no batching.

    Args:
        batching: how bound queries share batches; None: earliest deadline first.

    Attributes:
        quantile: of the latency that a query's deadline is compared with; one of ``QUANTILES`` of
            ``feasibility``. ``select`` and receipts say by it what is too slow.
    """

    quantile: str = "p50"

    def __init__(self, batching: BatchingPolicy | None = None) -> None:
        from modelless.policies.batching.earliest_deadline_first import EarliestDeadlineFirst

        self.batching = batching or EarliestDeadlineFirst()

    def on_arrival(
        self, query: QueryView, candidates: Candidates, rng: np.random.Generator
    ) -> Choice:
        """Returns whether to bind the query, defer it to ``on_idle`` (the default) or reject it."""
        del query, candidates, rng
        return Defer(Reason.DEFERRED)

    def on_late(self, query: QueryView, candidates: Candidates, rng: np.random.Generator) -> Choice:
        """Returns a new choice for a bound query that would be late; rejects it by default."""
        del query, candidates, rng
        return Reject(Reason.DEADLINE_PASSED)

    def on_idle(
        self,
        worker: WorkerView,
        queues: Sequence[QueueView],
        now_s: float,
        rng: np.random.Generator,
    ) -> Run | Wait:
        """Returns a batch for the idle worker, or a wait; asks the batching policy by default.

        ``queues`` holds the worker's bound queues and every deferred queue it could serve.
        """
        del rng
        return self.batching.next_batch(worker, queues, now_s)

    def on_plan(self, shares: Mapping[str, Mapping[Placement, float]]) -> None:
        """Take in the control loop's plan, see ``Targets.shares``; does nothing by default."""
        del shares


class Forecaster(ABC):
    """Predicts demand from past demand."""

    @abstractmethod
    def observe(self, now_s: float, arrivals_per_s: Mapping[str, float]) -> None:
        """Learn the rates by scope since the last call."""

    @abstractmethod
    def forecast(self, horizon_s: float) -> Mapping[str, float]:
        """Returns the expected rates by scope over the next ``horizon_s`` seconds, a second."""

    def awakenings(self, horizon_s: float) -> Mapping[str, float]:
        """Returns the queries expected within ``horizon_s`` seconds of scopes that are silent now.

        The planner loads ahead for them. By default there are none: to foresee that takes more than
        to forecast a rate.
        """
        del horizon_s
        return {}


class ScalingPolicy(ABC):
    """Decides the number of workers and instances."""

    @abstractmethod
    def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
        """Returns the workers and instances that are wanted now."""


class PlacementPolicy(ABC):
    """Ranks the workers on which a wanted instance may be loaded."""

    @abstractmethod
    def rank(
        self, variant_id: str, memory_bytes: int, workers: Sequence[WorkerState]
    ) -> Sequence[WorkerState]:
        """Returns the workers of the right class that do not hold the instance yet, best first."""


class EvictionPolicy(ABC):
    """Ranks the instances to evict when memory is short.

    The core decides how many are evicted, and never evicts one that is in use or pinned.
    """

    @abstractmethod
    def rank(self, residents: Sequence[Instance], view: ClusterView) -> Sequence[Instance]:
        """Returns a permutation of ``residents``; the first one is evicted first."""

    def observe(self, view: ClusterView) -> None:
        """Learn from a view; does nothing by default.

        Every view is passed once, before anything is ranked on it.
        """
        del view

    def admits(self, newcomer: Instance, victims: Sequence[Instance], view: ClusterView) -> bool:
        """Returns whether to load ``newcomer`` on demand though ``victims`` are evicted for it.

        True by default. It is asked only for instances that are wanted on demand
        (``Targets.on_demand``), not for those that a scaling policy plans.
        """
        del newcomer, victims, view
        return True


class Clairvoyant(ABC):
    """Base of policies that must know the future, besides their seam.

    Such a policy bounds what others can reach. Only the simulator can build one.
    """

    @abstractmethod
    def reveal(self, arrivals_s: Mapping[str, NDArray[np.float64]]) -> None:
        """Take in all future arrivals by scope, ascending, seconds, once before any decision."""
