"""The kinds of faults of a world: their settings, and what each does to the cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from modelless.controller.sim.worlds.section import Section

if TYPE_CHECKING:
    from modelless.controller.sim.cluster import SimulatedCluster
    from modelless.controller.sim.devices import SimulatedBatch
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


def plan_faults(
    faults: Sequence[FaultSettings],
    cluster: SimulatedCluster,
    events: Events,
    deliver: Callable[[SimulatedBatch], None],
) -> None:
    """Plan a world's faults; failing loads are the cluster's own affair.

    Args:
        deliver: takes the batches that finished while their site was cut off.
    """

    def die(fault: WorkerDies) -> None:
        for worker in cluster.named(fault.worker):
            cluster.die(worker)
            if fault.back_s is not None:
                events.at(fault.back_s, cluster.come_back, worker)

    def slow(fault: WorkerSlows) -> None:
        slowed = cluster.named(fault.worker)
        for worker in slowed:
            worker.slowness *= fault.factor

        def recover(_: None) -> None:
            for worker in slowed:
                worker.slowness /= fault.factor

        events.at(fault.until_s, recover)

    def cut(fault: SiteCut) -> None:
        cluster.cut(fault.site)
        events.at(fault.until_s, mend, fault)

    def mend(fault: SiteCut) -> None:
        for worker in cluster.mend(fault.site):
            undelivered, worker.undelivered = worker.undelivered, []
            for running in undelivered:
                deliver(running)

    acts: dict[type, Callable[[Any], None]] = {WorkerDies: die, WorkerSlows: slow, SiteCut: cut}
    for fault in faults:
        if (act := acts.get(type(fault))) is not None:
            events.at(fault.at_s, act, fault)
