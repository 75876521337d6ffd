"""What goes wrong in a world, and when."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from modelless.controller.sim.cluster import SimulatedCluster
from modelless.controller.sim.devices import SimulatedBatch, SimulatedWorker
from modelless.controller.sim.events import Events
from modelless.controller.sim.worlds.world import FaultSettings, SiteCut, WorkerDies, WorkerSlows


class Faults:
    """Plans a world's faults; failing loads are the cluster's own affair.

    Args:
        deliver: takes the batches that finished while their site was cut off.
    """

    def __init__(
        self,
        faults: Sequence[FaultSettings],
        cluster: SimulatedCluster,
        events: Events,
        deliver: Callable[[SimulatedBatch], None],
    ) -> None:
        self._faults = faults
        self._cluster = cluster
        self._events = events
        self._deliver = deliver

    def plan(self) -> None:
        for fault in self._faults:
            if isinstance(fault, WorkerDies):
                self._events.at(fault.at_s, self._die, fault)
            elif isinstance(fault, WorkerSlows):
                self._events.at(fault.at_s, self._slow, fault)
            elif isinstance(fault, SiteCut):
                self._events.at(fault.at_s, self._cut, fault)

    def _die(self, fault: WorkerDies) -> None:
        for worker in self._cluster.named(fault.worker):
            self._cluster.die(worker)
            if fault.back_s is not None:
                self._events.at(fault.back_s, self._cluster.come_back, worker)

    def _slow(self, fault: WorkerSlows) -> None:
        slowed = self._cluster.named(fault.worker)
        for worker in slowed:
            worker.slowness *= fault.factor
        self._events.at(fault.until_s, self._recover, (slowed, fault.factor))

    def _recover(self, what: tuple[list[SimulatedWorker], float]) -> None:
        slowed, factor = what
        for worker in slowed:
            worker.slowness /= factor

    def _cut(self, fault: SiteCut) -> None:
        self._cluster.cut(fault.site)
        self._events.at(fault.until_s, self._mend, fault)

    def _mend(self, fault: SiteCut) -> None:
        for worker in self._cluster.mend(fault.site):
            undelivered, worker.undelivered = worker.undelivered, []
            for running in undelivered:
                self._deliver(running)
