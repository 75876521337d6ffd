"""Policies that misbehave, each in its own way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np

from modelless.policies.batching.earliest_deadline_first import EarliestDeadlineFirst
from modelless.policies.reasons import Reason
from modelless.policies.seams import EvictionPolicy, ScalingPolicy, SelectionPolicy
from modelless.policies.selection.most_accurate_feasible import MostAccurateFeasible
from modelless.policies.views import (
    Bind,
    Candidates,
    Choice,
    ClusterView,
    Instance,
    QueryView,
    QueueView,
    Run,
    Targets,
    Wait,
    WorkerView,
)
from modelless.variants.vocabulary import Placement


class Raising(MostAccurateFeasible):
    """Raises for every seventh query."""

    def on_arrival(
        self, query: QueryView, candidates: Candidates, rng: np.random.Generator
    ) -> Choice:
        if query.query_id % 7 == 0:
            raise RuntimeError("seven")
        return super().on_arrival(query, candidates, rng)


class Nonsense(MostAccurateFeasible):
    """Binds rows that are not there."""

    def on_arrival(
        self, query: QueryView, candidates: Candidates, rng: np.random.Generator
    ) -> Choice:
        return Bind(10_000, Reason.CHEAPEST_FEASIBLE)


class Lazy(SelectionPolicy):
    """Defers everything and runs nothing."""

    def __init__(self) -> None:
        super().__init__(EarliestDeadlineFirst())

    def on_idle(
        self,
        worker: WorkerView,
        queues: Sequence[QueueView],
        now_s: float,
        rng: np.random.Generator,
    ) -> Run | Wait:
        return Wait(Reason.NOTHING_QUEUED, now_s + 0.001)


class Late(Lazy):
    """Binds late: any resident variant of the scope for the first query of the first queue."""

    def on_idle(
        self,
        worker: WorkerView,
        queues: Sequence[QueueView],
        now_s: float,
        rng: np.random.Generator,
    ) -> Run | Wait:
        queue = queues[0]
        mine = [name for name in worker.residents if name.startswith(f"{queue.scope}/")]
        return Run(sorted(mine)[0], tuple(queue.queries[:2]), Reason.DEFERRED)


class Endless(Late):
    """From the 100th time on never returns, and lets nothing stop it that it can."""

    asked = 0

    def on_idle(
        self,
        worker: WorkerView,
        queues: Sequence[QueueView],
        now_s: float,
        rng: np.random.Generator,
    ) -> Run | Wait:
        self.asked += 1
        while self.asked >= 100:
            with suppress(Exception):
                self._think()
        return super().on_idle(worker, queues, now_s, rng)

    def _think(self) -> None:
        sum(range(1000))


class RaisingScaling(ScalingPolicy):
    """Raises from the third tick on."""

    def __init__(self) -> None:
        self.ticks = 0

    def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
        self.ticks += 1
        if self.ticks > 2:
            raise RuntimeError("no more")
        wanted = {
            Placement(facts.variant_id, name): 9
            for facts in view.variants
            for name in facts.latency_s
        }
        return Targets(wanted, {}, Reason.FIXED_SIZE)


class Growing(ScalingPolicy):
    """Wants every variant everywhere, and one worker more each second, then fewer."""

    def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
        wanted = {
            Placement(facts.variant_id, name): 99
            for facts in view.variants
            for name in facts.latency_s
        }
        count = 4 if view.now_s < 5.0 else 1
        return Targets(wanted, {"cpu-1": count}, Reason.FIXED_SIZE)


class Backwards(EvictionPolicy):
    """Returns what it was not given."""

    def rank(self, residents: Sequence[Instance], view: ClusterView) -> Sequence[Instance]:
        return [*residents, *residents]


class Talkative(MostAccurateFeasible):
    """Prints, as people do who look for what is wrong."""

    def on_arrival(
        self, query: QueryView, candidates: Candidates, rng: np.random.Generator
    ) -> Choice:
        print("look at me")  # noqa: T201 - what it is about
        return super().on_arrival(query, candidates, rng)


class Quitting(MostAccurateFeasible):
    """Calls ``sys.exit``, as scripts do."""

    def on_arrival(
        self, query: QueryView, candidates: Candidates, rng: np.random.Generator
    ) -> Choice:
        raise SystemExit(3)


class QuittingAtOnce(MostAccurateFeasible):
    """Calls ``sys.exit`` when it is built."""

    def __init__(self) -> None:
        raise SystemExit(3)
