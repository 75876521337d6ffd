"""The seams: what a researcher swaps. One abstract method or two, one signature each.

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
        """Form a batch from one of ``queues`` (bound ones only), or wait."""


class SelectionPolicy(ABC):
    """Chooses the variant and the device class that serve a query.

    A policy that binds on arrival overrides ``on_arrival`` and leaves batching to a BatchingPolicy.
    One that binds late leaves ``on_arrival`` alone and overrides ``on_idle``.
    """

    def __init__(self, batching: BatchingPolicy) -> None:
        self.batching = batching

    def on_arrival(
        self, query: QueryView, candidates: Candidates, rng: np.random.Generator
    ) -> Choice:
        """Bind the query now, defer to ``on_idle``, or reject it. Defers unless overridden."""
        del query, candidates, rng
        return Defer(Reason.DEFERRED)

    def on_late(self, query: QueryView, candidates: Candidates, rng: np.random.Generator) -> Choice:
        """A bound query can no longer be in time with what it is bound to: bind anew, or reject.

        Rejects unless overridden, which is what binding for good means.
        """
        del query, candidates, rng
        return Reject(Reason.DEADLINE_PASSED)

    def on_idle(
        self,
        worker: WorkerView,
        queues: Sequence[QueueView],
        now_s: float,
        rng: np.random.Generator,
    ) -> Run | Wait:
        """Give the idle worker a batch, or let it wait. Asks the batching policy unless overridden.

        ``queues`` holds the worker's bound queues and every deferred queue it could serve.
        """
        del rng
        return self.batching.next_batch(worker, queues, now_s)

    def on_plan(self, shares: Mapping[str, Mapping[Placement, float]]) -> None:
        """The control loop's plan: see ``Targets.shares``. Ignored unless overridden."""
        del shares


class Forecaster(ABC):
    """Predicts demand from past demand."""

    @abstractmethod
    def observe(self, now_s: float, arrivals_per_s: Mapping[str, float]) -> None:
        """Learn the rates by scope since the last call."""

    @abstractmethod
    def forecast(self, horizon_s: float) -> Mapping[str, float]:
        """Rates by scope expected over the next ``horizon_s`` seconds, a second."""

    def awakenings(self, horizon_s: float) -> Mapping[str, float]:
        """Queries expected within ``horizon_s`` seconds of scopes that are silent now, but not for
        long: the planner loads ahead for them. Nothing unless overridden: to foresee that takes
        more than to know how much there is."""
        del horizon_s
        return {}


class ScalingPolicy(ABC):
    """Decides how many workers and instances there should be."""

    @abstractmethod
    def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
        """What is wanted now."""


class PlacementPolicy(ABC):
    """Ranks the workers on which a wanted instance may be loaded."""

    @abstractmethod
    def rank(
        self, variant_id: str, memory_bytes: int, workers: Sequence[WorkerState]
    ) -> Sequence[WorkerState]:
        """The workers of the right class that do not hold it yet, best first."""


class EvictionPolicy(ABC):
    """Ranks the instances to evict when memory is short. The core decides how many are evicted, and
    never evicts one that is in use or pinned."""

    @abstractmethod
    def rank(self, residents: Sequence[Instance], view: ClusterView) -> Sequence[Instance]:
        """A permutation of ``residents``: the first leaves first."""

    def observe(self, view: ClusterView) -> None:
        """Learn from a view; every one is shown, once, before anything is ranked on it.

        Nothing unless overridden: most policies need no more than they are asked about.
        """
        del view

    def admits(self, newcomer: Instance, victims: Sequence[Instance], view: ClusterView) -> bool:
        """Whether ``newcomer`` is to be loaded on demand though ``victims`` leave for it.

        Always unless overridden. Asked only for what is wanted on demand (``Targets.on_demand``):
        what a scaling policy plans is not judged twice.
        """
        del newcomer, victims, view
        return True


class Clairvoyant(ABC):
    """What a policy derives from besides its seam if it must know the future.

    Such a policy bounds what others can reach. Only the simulator can build one.
    """

    @abstractmethod
    def reveal(self, arrivals_s: Mapping[str, NDArray[np.float64]]) -> None:
        """All arrivals to come by scope, ascending, seconds; once, before the first decision."""
