"""What must hold, in every run: checked as it happens, twice a second, and at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from modelless.controller.control.messages import ScalePool
from modelless.controller.device.messages import (
    ChangeKind,
    Free,
    LoadInstance,
    ResizeWorker,
    StartLoad,
    UnloadInstance,
)
from modelless.controller.dispatch.messages import Refuse
from modelless.policies.scopes import in_scope
from modelless.variants.registry.versions import name_of
from modelless.variants.vocabulary import Placement
from tests.simtest import fleet
from tests.simtest.schedule import RESTLESS

LOOK_S = 0.3
"""A query that waits is refused so long after its deadline at the latest; its gateway looks ten
times a second."""

RUNS_S = 4.5
"""And one that runs: its batch is given up ``overdue_factor`` x p99 + ``overdue_s`` after its start
(3.4 s here), and it may have begun just before its deadline. A gateway that learns takes a larger
p99 from slow workers, so there it may be twice as long."""

SETTLES = ("fixed", RESTLESS)
"""Scaling policies that want the same at every tick, once the load has ended."""

HEARD_S = 6.0
"""A member that was undisturbed for so long has reported to the control process."""

LATE_BINDING = ("clockwork", "slack-fit")
"""These choose for whole batches, and hold to a maximum cost on arrival only; see
``policies/selection/late_binding``."""


class Checks:
    """The invariants of one run. Each method raises ``Violation``."""

    def __init__(self, cluster) -> None:
        self._cluster, self._setup = cluster, cluster.setup
        self._fail = cluster.world.fail
        self._scaled_by = 0

    # -- queries ------------------------------------------------------------------------------

    def check_end(self, gateway, asked, receipt, effect: Any) -> None:
        """A query ends once, with a receipt, within its limits."""
        if asked is None or receipt is None:
            self._fail("a query ends once", f"{effect} at {gateway.name} is of no open query")
        if isinstance(effect, Refuse):
            return
        placement, query = Placement(receipt.variant_id, receipt.device_class), asked.query
        seen = f"{asked} was answered by {placement}"
        if fleet.accuracy(placement.variant_id) < query.min_accuracy_percent:
            self._fail("minimum accuracy", seen)
        cost = fleet.CLASSES[placement.device_class].cost_usd(fleet.p50_s(placement, query.items))
        if self._setup.learns:  # by what the gateway knew when the query came, or learned since
            now = gateway.dispatcher.instances.candidates(query.scope, query.items, gateway.now_s)
            row = now.row_of(*placement)
            known = receipt.predicted_cost_usd, None if row is None else float(now.cost_usd[row])
            cost = min([cost, *(each for each in known if each is not None)])
        is_held_to = self._setup.selection not in LATE_BINDING
        if is_held_to and cost > query.max_cost_usd * (1.0 + 1e-9):
            self._fail("maximum cost", f"{seen} for {cost}")
        if not in_scope(placement.variant_id, query.scope):
            self._fail("scope", seen)

    def check_now(self) -> None:
        """No query stays beyond its deadline."""
        runs_s = 2.0 * RUNS_S if self._setup.learns else RUNS_S
        for gateway in self._cluster.gateways:
            if not gateway.is_alive or gateway.hung_until_s > gateway.world.now_s - LOOK_S:
                continue
            for query_id, asked in gateway.open.items():
                receipt = gateway.dispatcher.receipt(query_id)
                late_s = gateway.now_s - (receipt.standing or receipt.query).deadline_s
                if late_s > (LOOK_S if receipt.outcome == "waiting" else runs_s):
                    self._fail("deadline", f"{asked} is {receipt.outcome}, late by {late_s:.2f} s")

    # -- devices ------------------------------------------------------------------------------

    def check_device(self, device) -> None:
        """Loaded, draining and reserved copies fit into memory."""
        machine = device.machine
        used = sum(fleet.memory_bytes(each) for each in device.engines.values())
        used += device.loading.memory_bytes if device.loading is not None else 0
        if used > machine.used_bytes:
            self._fail("account of memory", f"{machine.worker_id}: {used}, {machine.used_bytes}")
        if used > machine.memory_bytes and self._setup.profiled >= 1.0:
            self._fail("memory", f"{machine.worker_id} uses {used / fleet.MIB} MiB")
        ready = {Placement(each, machine.device_class) for each in machine.ready}
        if not ready <= _held(device):
            seen = f"{machine.worker_id}: {ready - _held(device)}"
            self._fail("ready variants are loaded", seen)

    def check_free(self, device, effect: Free) -> None:
        """Nothing in use is freed, and nothing twice. (No batch finds its copy gone: the driver
        would raise.)"""
        if effect.copy_id in {job.copy_id for job, *_ in device.jobs}:
            self._fail("nothing in use is freed", f"{device.machine.worker_id}: {effect}")

    def check_load_start(self, device, effect: StartLoad) -> None:
        """One load at a time, and none of what is there; with the memory that it takes."""
        wanted = Placement(effect.variant_id, effect.device_class)
        seen = f"{device.machine.worker_id}: {effect}"
        if device.loading is not None or wanted in _held(device):
            self._fail("one load a variant", seen)
        least = fleet.memory_bytes(wanted) * min(self._setup.profiled, 1.0)
        if effect.memory_bytes < int(least):
            self._fail("memory is set aside", f"{seen}, not {least}")

    # -- control ------------------------------------------------------------------------------

    def check_obeyed(self, member, orders) -> None:
        """A member that has obeyed a newer control process obeys no older one."""
        epoch = orders.status["epoch"]
        if epoch < member.epoch:
            self._fail("one control process", f"{member.name} obeys {epoch} after {member.epoch}")
        member.epoch = epoch

    def check_scale(self, effect: ScalePool, epoch: int) -> None:
        """A pool stays within its bounds, and obeys no earlier control process."""
        if epoch < self._scaled_by:
            self._fail("one control process", f"{effect} of {epoch} after {self._scaled_by}")
        self._scaled_by = epoch
        if not self._setup.min_workers <= effect.workers <= self._setup.max_workers:
            self._fail("bounds of the pool", effect)

    def check_orders(self, control) -> None:
        """No order that may be regretted is given by one who does not know all members."""
        cluster, since_s = self._cluster, self._cluster.world.now_s - HEARD_S
        regretted = [each for each in control.plan
                     if isinstance(each, (UnloadInstance, ResizeWorker, ScalePool))]  # fmt: skip
        beside_s = max(control.started_s, since_s)
        if not regretted or control.hung_until_s > since_s or any(
            each.is_alive or each.ended_s > beside_s
            for each in cluster.controls if each is not control
        ):  # fmt: skip
            return  # some members may obey another one that was alive beside it
        known = {report.member_id for report in control.control.reports}
        lost_s = cluster.world.network.lost_s
        for each in cluster.serve.alive:
            disturbed_s = max(
                each.started_s, each.hung_until_s, lost_s[each.name], lost_s[control.name]
            )
            if each.name not in known and not each.is_leaving and disturbed_s < since_s:
                seen = f"{control.name} orders {regretted} without {each.name}"
                self._fail("a partial view", seen)

    # -- at rest ------------------------------------------------------------------------------

    def is_at_rest(self) -> bool:
        """Whether ``check_rest`` finds nothing."""
        return not any(seen for _, seen in self._unrest())

    def check_rest(self) -> None:
        """Load and faults ended some seconds ago: everything is still, and all know all."""
        for name, seen in self._unrest():
            if seen:
                self._fail(f"rest: {name}", seen)

    def _unrest(self) -> Iterator[tuple[str, object]]:
        """Name what should be nothing, with what there is."""
        cluster = self._cluster
        control, members = cluster.controls[-1], cluster.serve.alive
        yield "control", control.control is None and control.name
        workers = {each.name for each in members if not each.is_gateway}
        for member in members:
            yield "members", (member.is_starting or member.is_leaving) and member.name
            own = {member.name} if member.device is not None else set()
            if member.device is not None:
                machine = member.device.machine
                doing = list(member.device.jobs), member.device.loading, machine.resizing_to
                yield "devices", (any(doing) or machine.batches) and (member.name, *doing)
                yield "memory", machine.used_bytes > machine.memory_bytes and member.name
                yield "barred", machine.state((), 0.0, member.now_s).barred
                yield from self._unrest_of_versions(member.name, machine.ready)
            if member.is_gateway:
                yield "queries", member.open or member.dispatcher.open_queries
                yield "quarantine", member.dispatcher.quarantined
                known = set(member.dispatcher.instances.reports)
                yield "workers of dispatch", known ^ (workers | own)
        yield "upgrade", [each.name for each in members if cluster.serve.is_old(each)]
        there = Counter(each.pool for each in members)
        wanted = cluster.serve.wanted
        yield "pools", any(there[pool] != n for pool, n in wanted.items()) and (there, wanted)
        reported = {report.member_id for report in control.control.reports}
        yield "members known", reported ^ {each.name for each in members}
        orders = LoadInstance, UnloadInstance, ResizeWorker
        todo = [each for each in control.plan if isinstance(each, orders)]
        yield "plan", self._setup.scaling in SETTLES and todo

    def _unrest_of_versions(self, name: str, ready: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        """No withdrawn version is held, and a current version is where an earlier one is. One that
        stands in for the current one, until that is loaded there, is not withdrawn."""
        has_room = self._setup.scaling in SETTLES and self._setup.profiled <= 1.0
        for variant_id in ready:
            line = self._cluster.store.line(name_of(variant_id))
            may_be = {*line.in_service, *line.serving(ready)}
            may_be.update(f"{line.name}@{n}" for n in line.earlier[-1:])
            may_be = set() if line.retired else may_be
            seen = f"{name} holds {ready}: {line}"
            yield "versions", variant_id not in may_be and seen
            is_wanted = has_room and not line.retired
            yield "current versions", is_wanted and line.current_id not in ready and seen

    # -- at the end ---------------------------------------------------------------------------

    def check_probes(self, probes) -> None:
        """A client who asks again and again has the most accurate answer that is in time."""
        for probe in probes:
            if not probe.is_content:
                tries = [asked.ends for asked in probe.tries]
                self._fail("an answer at the end", f"{probe.gateway.name}, {probe.task}: {tries}")

    def check_books(self) -> None:
        """Clients, receipts, counters and changes agree."""
        cluster = self._cluster
        for asked in cluster.asked:
            if asked.query_id and len(asked.ends) != 1:
                self._fail("a query ends once", asked)
        for member in cluster.serve.members.values():
            if member.is_gateway:
                self._check_counts(member)
            if member.device is not None:
                self._check_changes(member.device)
        self._check_told()

    def _check_counts(self, gateway) -> None:
        counted = gateway.counted + Counter(gateway.dispatcher.take_counters().outcomes)
        for outcome in ("served", "served-late", "refused", "cancelled"):
            counted[outcome] += counted[f"offline-{outcome}"]
        ends = Counter(asked.ends[0][0] for asked in gateway.taken if asked.ends)
        answered = counted["served"] + counted["served-late"]
        mine = (answered, counted["refused"], counted["cancelled"])
        theirs = (ends["answered"], ends["refused"], ends["cancelled"])
        if mine != theirs:
            self._fail("counters", f"{gateway.name} counts {mine}, its clients {theirs}")

    def _check_changes(self, device) -> None:
        held: Counter[str] = Counter()
        for change in device.changes:
            held[change.variant_id] += change.kind is ChangeKind.LOADED
            held[change.variant_id] -= change.kind is ChangeKind.UNLOADED
        there = {name for name, count in held.items() if count == 1}
        ready = set(device.machine.ready)
        leaving = {each.variant_id for each in device.engines.values()}
        if set(held.values()) - {0, 1} or not ready <= there <= ready | leaving:
            self._fail("changes", f"{device.machine.worker_id}: {held}, {device.machine.ready}")

    def _check_told(self) -> None:
        """What control counted and noted has happened, and once; a lost report may be missing."""
        cluster = self._cluster
        counted = sum((each.totals for each in cluster.controls), Counter())
        reported = sum((each.counted for each in cluster.gateways), Counter())
        if counted - reported:
            self._fail("control's totals", f"{counted}, members reported {reported}")
        noted = Counter(
            (entry.details["worker"], entry.subject, entry.kind)
            for entry in cluster.history
            if entry.kind in (ChangeKind.LOADED, ChangeKind.UNLOADED)
        )
        happened = Counter(
            (device.machine.worker_id, change.variant_id, change.kind)
            for device in cluster.devices
            for change in device.changes
        )
        if noted - happened:
            self._fail("history", f"{noted - happened} are noted more often than they happened")


def _held(device) -> set[Placement]:
    """Return the loaded instances without those that are being freed."""
    return {each for copy_id, each in device.engines.items() if copy_id not in device.freeing}
