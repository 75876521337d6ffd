"""The simulator's driver of the control machine."""

from __future__ import annotations

from collections.abc import Mapping

from modelless.controller.control.machine import Control, ControlTimes
from modelless.controller.control.messages import (
    Advise,
    ControlEffect,
    FactsChanged,
    LoadInstance,
    MemberLeft,
    MemberReport,
    MemberReported,
    Order,
    Planned,
    ScalePool,
    Tick,
    UnloadInstance,
)
from modelless.controller.control.planner import Planner
from modelless.controller.dispatch.dispatcher import Dispatcher
from modelless.controller.sim.floor import Floor
from modelless.controller.sim.recorder import Recorder
from modelless.controller.sim.worlds.profiles import Fleet


class ControlDriver:
    """Hands the reports of the gateway and the workers to the machine, and carries its effects out.

    All members report together, right before each tick. The machine learns that a worker is lost
    when the gateway does. The world says how long workers take to start, and starts them reliably.

    Args:
        planner: decides on loads and on the number of workers.
        fleet: the variants that could be loaded.
        floor: the workers.
        recorder: records what happens.
        dispatcher: the gateway's.
        interval_s: between two ticks.
    """

    def __init__(
        self,
        planner: Planner,
        fleet: Fleet,
        floor: Floor,
        recorder: Recorder,
        dispatcher: Dispatcher,
        interval_s: float,
    ) -> None:
        times = ControlTimes(interval_s, settle_s=0.0, scale_again_s=0.0)
        workers = {pool.name: pool.min_workers for pool in floor.pools}
        self._control = Control(planner, floor.pools, workers, 0.0, times, start_weight=0.0)
        self._control.handle(FactsChanged(fleet.facts, fleet.device_classes), 0.0)
        self._floor = floor
        self._recorder = recorder
        self._dispatcher = dispatcher
        self._interval_s = interval_s

    @property
    def starting_s(self) -> Mapping[str, float]:
        """See ``Control``."""
        return self._control.starting_s

    def tick(self, now_s: float, *, at_once: bool = False) -> None:
        """Decide and carry out; ``at_once``: loads have ended before."""
        self._control.handle(MemberReported(self._gateway_report()), now_s)
        for worker in self._floor.workers.values():
            if worker.is_reachable and not worker.is_leaving:
                state = worker.state(self._dispatcher.in_use(worker.worker_id), now_s)
                report = MemberReport(
                    worker.worker_id, False, state, interval_s=self._interval_s, pool=worker.pool
                )
                self._control.handle(MemberReported(report), now_s)
        effects = self._control.handle(Tick(), now_s)
        for problem in self._control.problems:
            self._recorder.summary.complain(problem)
            self._recorder.control(now_s, "policy-problem", reason=problem)
        for effect in effects:
            self._carry_out(effect, now_s, at_once=at_once)

    def lose(self, worker_id: str, now_s: float) -> None:
        """The worker is gone."""
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
            open_queries=self._dispatcher.open_by_scope(),
            queued=self._dispatcher.queued,
        )

    def _carry_out(self, effect: ControlEffect, now_s: float, *, at_once: bool) -> None:
        floor = self._floor
        if isinstance(effect, Order):
            worker = floor.workers.get(effect.worker_id)
            if worker is None or not worker.is_reachable or worker.is_leaving:
                return  # and nobody has noticed yet
            reason = effect.reason.value
            if isinstance(effect, LoadInstance):
                floor.load(effect.worker_id, effect.variant_id, reason, at_once=at_once)
            elif isinstance(effect, UnloadInstance):
                floor.unload(effect.worker_id, effect.variant_id, reason, effect.for_variant_id)
            else:
                in_use = self._dispatcher.in_use(effect.worker_id)
                floor.resize(effect.worker_id, effect.device_class, in_use)
        elif isinstance(effect, ScalePool):
            name, workers = effect.device_class, effect.workers
            reason = effect.reason.value
            self._recorder.control(now_s, "scale", device=name, count=workers, reason=reason)
            floor.scale(name, workers)
        elif isinstance(effect, Planned):
            self._recorder.plan(now_s, effect.quality)
        elif isinstance(effect, Advise):
            shares = {scope: dict(given) for scope, given in effect.shares}
            problem = self._dispatcher.advise(shares)
            if problem is not None:
                self._recorder.summary.complain(problem)
