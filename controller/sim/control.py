"""The simulator's driver of the control machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from modelless.controller.control.machine import Control, ControlTimes
from modelless.controller.control.messages import (
    Advise,
    ControlEffect,
    FactsChanged,
    MemberLeft,
    MemberReport,
    MemberReported,
    Planned,
    ScalePool,
    Tick,
)
from modelless.controller.control.planner import Planner
from modelless.controller.device.messages import LoadInstance, Order, ResizeWorker, UnloadInstance
from modelless.controller.dispatch.dispatcher import Dispatcher
from modelless.controller.dispatch.messages import Advised, DispatchEvent
from modelless.controller.sim.cluster import SimulatedCluster
from modelless.controller.sim.recorder import Recorder
from modelless.controller.sim.worlds.profiles import Fleet
from modelless.policies.views import VariantFacts


class ControlDriver:
    """Hands the reports of the gateway and the workers to the machine, and carries its effects out.

    All members report together, right before each tick. The machine learns that a worker is lost
    when the gateway does. The world says how long workers take to start, and starts them reliably.

    Args:
        planner: decides on loads and on the number of workers.
    """

    def __init__(
        self,
        planner: Planner,
        fleet: Fleet,
        cluster: SimulatedCluster,
        recorder: Recorder,
        dispatcher: Dispatcher,
        decide: Callable[[DispatchEvent], None],
        interval_s: float,
    ) -> None:
        times = ControlTimes(interval_s, settle_s=0.0, cooldown_s=0.0)
        workers = {pool.name: pool.min_workers for pool in cluster.pools}
        self._control = Control(planner, cluster.pools, workers, 0.0, times, start_weight=0.0)
        self._fleet = fleet
        self._tell_facts(0.0, fleet.facts)
        self._cluster = cluster
        self._recorder = recorder
        self._dispatcher = dispatcher
        self._decide = decide
        self._interval_s = interval_s

    @property
    def starting_s(self) -> Mapping[str, float]:
        return self._control.starting_s

    def tick(self, now_s: float, *, at_once: bool = False) -> None:
        """Decide and carry out; ``at_once``: loads have ended before."""
        self._control.handle(MemberReported(self._gateway_report()), now_s)
        for worker in self._cluster.workers.values():
            if worker.is_reachable and not worker.is_leaving:
                state = worker.state(self._dispatcher.in_use(worker.worker_id), now_s)
                report = MemberReport(
                    worker.worker_id, False, state, interval_s=self._interval_s, pool=worker.pool
                )
                self._control.handle(MemberReported(report), now_s)
        if at_once:
            self._tell_facts(now_s, tuple([_loaded_at_once(facts) for facts in self._fleet.facts]))
        effects = self._control.handle(Tick(), now_s)
        if at_once:
            self._tell_facts(now_s, self._fleet.facts)
        for problem in self._control.problems:
            self._recorder.summary.complain(problem)
            self._recorder.control(now_s, "policy-problem", reason=problem)
        orders: dict[str, list[Order]] = {}
        for effect in effects:
            if isinstance(effect, (LoadInstance, UnloadInstance, ResizeWorker)):
                orders.setdefault(effect.worker_id, []).append(effect)
            else:
                self._carry_out(effect, now_s)
        for worker_id, ordered in orders.items():
            ordered_to = self._cluster.workers.get(worker_id)
            if ordered_to is None or not ordered_to.is_reachable or ordered_to.is_leaving:
                continue  # and nobody has noticed yet
            in_use = self._dispatcher.in_use(worker_id)
            self._cluster.order(ordered_to, ordered, in_use, at_once=at_once)

    def _tell_facts(self, now_s: float, facts: tuple[VariantFacts, ...]) -> None:
        self._control.handle(FactsChanged(facts, self._fleet.device_classes), now_s)

    def lose(self, worker_id: str, now_s: float) -> None:
        self._control.handle(MemberLeft(MemberReport(worker_id, False, None)), now_s)

    def _gateway_report(self) -> MemberReport:
        counters = self._dispatcher.take_counters()
        return MemberReport(
            "gateway",
            is_gateway=True,
            state=None,
            interval_s=self._interval_s,
            arrivals=counters.arrivals,
            unmet=counters.unmet,
            outcomes=counters.outcomes,
            kinds=counters.kinds,
            held=self._dispatcher.held,
            open_queries=self._dispatcher.open_by_scope(),
            queued=self._dispatcher.queued,
        )

    def _carry_out(self, effect: ControlEffect, now_s: float) -> None:
        if isinstance(effect, ScalePool):
            name, workers = effect.device_class, effect.workers
            reason = effect.reason.value
            self._recorder.control(now_s, "scale", device=name, count=workers, reason=reason)
            self._cluster.scale(name, workers)
        elif isinstance(effect, Planned):
            self._recorder.plan(now_s, effect.quality)
        elif isinstance(effect, Advise):
            self._decide(Advised({scope: dict(shares) for scope, shares in effect.shares}))


def _loaded_at_once(facts: VariantFacts) -> VariantFacts:
    return replace(facts, load_s=dict.fromkeys(facts.load_s, 0.0))
