"""Every query and every control decision, once, into the summary and the log."""

from __future__ import annotations

from typing import Any

from modelless.controller.dispatch.receipts import Receipt
from modelless.controller.sim.devices import SimulatedBatch
from modelless.controller.sim.log import CONTROL_COLUMNS, Log
from modelless.controller.sim.summary import Summary, Tally
from modelless.controller.sim.worlds.query_streams import Asked
from modelless.policies.plan_quality import PlanQuality
from modelless.policies.reasons import AnyReason
from modelless.variants.vocabulary import DeviceClass, Variant

SERVED = "served"
SERVED_LATE = "served-late"
REFUSED = "refused"
UNREACHABLE = "unreachable"


class Recorder:
    """Keeps the books.

    Args:
        log: rows; None for none.
        receipts: takes the receipt of each query that came to the gateway; None for none.

    Attributes:
        needs_receipts: whether anybody will read why a query was answered as it was.
    """

    def __init__(
        self,
        summary: Summary,
        log: Log | None,
        variants: dict[str, Variant],
        device_classes: dict[str, DeviceClass],
        receipts: list[Receipt] | None = None,
    ) -> None:
        self.summary = summary
        self._log = log
        self.receipts = receipts
        self.needs_receipts = log is not None or receipts is not None
        self._accuracy = {name: variant.accuracy.percent for name, variant in variants.items()}
        self._usd_per_s = {name: kind.cost_usd(1.0) for name, kind in device_classes.items()}
        self._tallies_of: dict[tuple[str, str], tuple[Tally, ...]] = {}

    def answer(
        self,
        query_id: int,
        asked: Asked,
        running: SimulatedBatch,
        answered_s: float,
        reason: AnyReason | None,
        reached: bool,
    ) -> None:
        """A batch has run the query; the answer came to its client, or did not (``reached``)."""
        arrival_s, task, client, _ = asked
        slo, summary = client.slo, self.summary
        deadline_s = arrival_s + client.latency_s
        accuracy = self._accuracy[running.variant_id]
        cost_usd = running.cost_usd * slo.items / running.items
        is_late = answered_s > deadline_s
        kind = "late" if is_late else "inaccurate" if accuracy < slo.min_accuracy else ""
        is_dear = slo.max_cost_usd is not None and cost_usd > slo.max_cost_usd
        tallies = self._tallies_of.get((task, slo.tenant)) or self._tallies(task, slo.tenant)
        if reached:
            summary.latency.add(answered_s - arrival_s)
            for tally in tallies:
                tally.serve(accuracy, kind, cost_usd, is_dear)
        else:
            for tally in tallies:
                tally.fail(UNREACHABLE)
                tally.cost_usd += cost_usd
        if summary.series is not None:
            percent = accuracy if reached else None
            summary.series.add(arrival_s, percent, is_good=reached and not kind, cost_usd=cost_usd)
        if self._log is not None:
            outcome = UNREACHABLE if not reached else SERVED_LATE if is_late else SERVED
            ran = (
                running.variant_id,
                running.settings.name,
                running.worker.worker_id,
                running.dispatch_s,
                running.start_s,
                running.finish_s,
                running.batch_id,
                running.items,
                accuracy,
            )
            why = (outcome, reason.value if reason is not None else "")
            self._write(query_id, asked, ran, why, answered_s if reached else None, cost_usd)

    def fail(self, query_id: int, asked: Asked, at_s: float, outcome: str, reason: str) -> None:
        """The query was refused, or never came to anybody who could refuse it."""
        for tally in self._tallies(asked.task, asked.client.slo.tenant):
            tally.fail(reason if outcome == REFUSED else outcome)
        if self.summary.series is not None:
            self.summary.series.add(asked.arrival_s, None, is_good=False)
        answered_s = at_s if outcome == REFUSED else None
        self._write(query_id, asked, (None,) * 9, (outcome, reason), answered_s, None)

    def batch(self, running: SimulatedBatch) -> None:
        """A device has run a batch, whoever still waits for it."""
        summary, name = self.summary, running.settings.name
        busy_s = running.finish_s - running.start_s
        summary.batches += 1
        summary.items += running.items
        summary.busy_s[name] = summary.busy_s.get(name, 0.0) + busy_s
        running.cost_usd = busy_s * self._usd_per_s[name]
        summary.busy_cost_usd += running.cost_usd
        summary.energy_j += busy_s * running.settings.power_w

    def presence(self, device: str, from_s: float, until_s: float) -> None:
        """A worker was there for so long, and is not any more."""
        summary, alive_s = self.summary, until_s - from_s
        summary.alive_s[device] = summary.alive_s.get(device, 0.0) + alive_s
        summary.rent_usd += alive_s * self._usd_per_s[device]
        if summary.series is not None:
            summary.series.rent(from_s, until_s, self._usd_per_s[device])

    def plan(self, at_s: float, quality: PlanQuality) -> None:
        """The scaling policy has planned anew."""
        self.summary.plans.add(quality)
        self.control(at_s, "plan", reason=quality.words())

    def control(self, at_s: float, action: str, **columns: str | int | None) -> None:
        """A control decision, or what came of one; see ``log.CONTROL_COLUMNS``."""
        if self._log is not None:
            row = dict.fromkeys(CONTROL_COLUMNS) | {"at_s": at_s, "action": action} | columns
            self._log.control.add(tuple(row.values()))

    def _write(
        self,
        query_id: int,
        asked: Asked,
        ran: tuple[Any, ...],
        why: tuple[str, str],
        answered_s: float | None,
        cost_usd: float | None,
    ) -> None:
        """Log a query; see ``log.QUERY_COLUMNS``.

        Args:
            ran: from the variant to its accuracy.
            why: outcome and reason.
        """
        if self._log is not None:
            arrival_s, task, client, _ = asked
            slo = client.slo
            asked_for = (query_id, task, arrival_s, arrival_s + client.latency_s, slo.min_accuracy)
            limits = (slo.items, slo.tenant, slo.max_cost_usd)
            self._log.queries.add((*asked_for, *ran, *why, answered_s, *limits, cost_usd))

    def _tallies(self, task: str, tenant: str) -> tuple[Tally, ...]:
        key = (task, tenant)
        tallies = self._tallies_of.get(key)
        if tallies is None:
            summary = self.summary
            tallies = (summary.total, summary.tasks.setdefault(task, Tally()))
            if tenant:
                tallies += (summary.tenants.setdefault(tenant, Tally()),)
            self._tallies_of[key] = tallies
        return tallies
