"""The kinds of faults of a world: their settings, and what each does to the cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from modelless.controller.sim.worlds.section import Section

if TYPE_CHECKING:
    from modelless.controller.sim.cluster import SimulatedCluster
    from modelless.controller.sim.devices import SimulatedBatch, SimulatedWorker
    from modelless.controller.sim.events import Events


class WorkerDies(Section):
    """A worker dies, with all it holds, and may come back empty."""

    kind: Literal["worker-dies"]
    worker: str = Field(description="name or pattern, e.g. cpu-1/0")
    at_s: float = Field(ge=0, description="when")
    back_s: float | None = Field(None, ge=0, description="when it comes back; default: never")


class WorkerSlows(Section):
    """A worker takes longer for everything for a while."""

    kind: Literal["worker-slows"]
    worker: str = Field(description="name or pattern")
    at_s: float = Field(ge=0, description="from")
    until_s: float = Field(ge=0, description="to")
    factor: float = Field(gt=0, le=1e4, description="times as long")


class LoadFails(Section):
    """Loads fail for a while, after the time they take."""

    kind: Literal["load-fails"]
    variant: str = Field("*", description="pattern of variant ids")
    worker: str = Field("*", description="pattern of workers")
    at_s: float = Field(ge=0, description="from")
    until_s: float = Field(ge=0, description="to")


class SiteCut(Section):
    """A site cannot be reached for a while; its workers keep what they hold."""

    kind: Literal["site-cut"]
    site: str = Field(description="which; not the gateway's")
    at_s: float = Field(ge=0, description="from")
    until_s: float = Field(ge=0, description="to")


FaultSettings = Annotated[
    WorkerDies | WorkerSlows | LoadFails | SiteCut, Field(discriminator="kind")
]


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
