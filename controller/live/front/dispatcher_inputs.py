"""The dispatcher's view of the cluster: workers, versions, load and shares, and the reports of it.

Plain Python without I/O: the fault simulation's gateways use it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from modelless.controller.control.served_versions import Service
from modelless.controller.dispatch.dispatcher import Dispatcher
from modelless.controller.dispatch.messages import (
    Advised,
    DispatchEvent,
    LoadChanged,
    WorkerLost,
    WorkerReport,
    WorkerReported,
)
from modelless.controller.dispatch.trials import TrialArms
from modelless.controller.live.orders import Orders
from modelless.variants.estimates import Load
from modelless.variants.vocabulary import Placement


class OtherWorkers(Protocol):
    """The way to the pools' workers; see ``RemoteWorkers``."""

    def reaches(self, worker_id: str) -> bool: ...
    def still_there(self, worker_ids: Collection[str]) -> set[str]: ...
    def hop_s(self, worker_id: str) -> float: ...


class DispatcherInputs:
    """Turns the control process's orders, and what changes on the way to workers, into events.

    Args:
        decide: passes an event to the dispatcher.
        arms: add the arms of trials to the plan's shares.
        others: the way to the pools' workers.
        clock: returns the time in seconds.

    Attributes:
        service: the versions in service; workers are told of with these alone.
        shares: the plan's.
    """

    def __init__(
        self,
        decide: Callable[[DispatchEvent], None],
        arms: TrialArms,
        others: OtherWorkers,
        clock: Callable[[], float],
    ) -> None:
        self.service = Service()
        self.shares: Mapping[str, Mapping[Placement, float]] = {}
        self._decide = decide
        self._arms = arms
        self._others = others
        self._clock = clock
        self._busy_neighbours = 0.0
        self._starting_s: Mapping[str, float] = {}
        self._directory: dict[str, WorkerReport] = {}

    def obey(self, orders: Orders) -> None:
        """Tell the dispatcher what the control process says of other workers."""
        self._busy_neighbours = orders.busy_neighbours
        if orders.shares != self.shares and (orders.shares or orders.is_settled):
            self.shares = orders.shares
            self.advise()
        if orders.starting_s != self._starting_s:  # before it is ready for want of work
            self._starting_s = orders.starting_s
            self.tell_load()
        directory = {report.worker_id: report for report in orders.directory}
        if not orders.is_settled:
            directory = self._directory | directory
        there = self._others.still_there(directory)
        directory = {name: report for name, report in directory.items() if name in there}
        for gone in [name for name in self._directory if name not in directory]:
            self._decide(WorkerLost(gone))
        self._directory = directory
        self.tell_of_others()

    def correct(self, report: WorkerReport) -> None:
        """Believe what a worker that turned a batch back says that it holds."""
        if report.worker_id in self._directory:
            self._directory[report.worker_id] = report
            self.tell_of_others()

    def tell_of_others(self) -> None:
        """Report the pools' workers: what they serve, and the time of a hop.

        A worker that is out of reach holds nothing.
        """
        for report in list(self._directory.values()):
            worker_id = report.worker_id
            if not self._others.reaches(worker_id):
                report = report._replace(variant_ids=())
            hop_s = self._others.hop_s(worker_id)
            self.tell(report, hop_s, lead_s=hop_s)

    def tell(self, report: WorkerReport, hop_s: float, lead_s: float = 0.0) -> None:
        """Report a worker, with the versions that are in service."""
        serving = self.service.serving(report.variant_ids)
        report = report._replace(variant_ids=serving, hop_s=hop_s)
        self._decide(WorkerReported(report, lead_s))

    def tell_load(self) -> None:
        """Tell of the load, and how soon scaling has new workers."""
        self._decide(LoadChanged(Load(self._busy_neighbours, self._clock()), self._starting_s))

    def advise(self) -> None:
        """Tell of the plan's shares."""
        self._decide(Advised(self._arms.add_arms(self.shares)))


def report_fields(dispatcher: Dispatcher) -> dict[str, Any]:
    """Return what a ``MemberReport`` says of its dispatcher; its counts begin anew."""
    counters = dispatcher.take_counters()
    return {
        "arrivals": counters.arrivals,
        "unmet": counters.unmet,
        "outcomes": counters.outcomes,
        "served": counters.served,
        "kinds": counters.kinds,
        "held": dispatcher.held,
        "open_queries": dispatcher.open_by_scope(),
        "queued": dispatcher.queued,
        "meters": counters.meters,
        "quarantined": {name: str(sign) for name, sign in dispatcher.quarantined.items()},
    }
