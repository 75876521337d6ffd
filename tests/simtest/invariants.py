"""What must hold, in every run: checked as it happens, twice a second, and at the end."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from modelless.controller.control.messages import ScalePool
from modelless.controller.device.messages import (
    ChangeKind,
    Free,
    LoadInstance,
    ResizeWorker,
    StartBatch,
    StartLoad,
    UnloadInstance,
)
from modelless.controller.dispatch.messages import Complete, Refuse
from modelless.controller.dispatch.receipts import Receipt
from modelless.controller.live.messages import Orders
from modelless.policies.scopes import in_scope
from modelless.variants.registry.versions import name_of
from modelless.variants.vocabulary import Placement
from tests.simtest import fleet
from tests.simtest.schedule import RESTLESS
from tests.simtest.world import Violation

if TYPE_CHECKING:
    from tests.simtest.cluster import Cluster, Probe
    from tests.simtest.control import ControlProcess
    from tests.simtest.members import Asked, Gateway, LocalDevice, Member

LOOK_S = 0.3
"""A query that waits is refused so long after its deadline at the latest; its gateway looks ten
times a second."""

RUNS_S = 4.5
"""And one that runs: its batch is given up ``overdue_factor`` x p99 + ``overdue_s`` after its start
(3.4 s here), and it may have begun just before its deadline."""


SETTLES = ("fixed", RESTLESS)
"""Scaling policies that want the same at every tick, once the load has ended."""

HEARD_S = 6.0
"""A member that was undisturbed for so long has reported to the control process."""

LATE_BINDING = ("clockwork", "slack-fit")
"""These choose for whole batches, and hold to a maximum cost on arrival only; see
``policies/selection/late_binding``."""


class Checks:
    """The invariants of one run. Each method raises ``Violation``.

    Args:
        cluster: that is checked.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._fail = cluster.world.fail
        self._scaled_by = 0

    # -- queries ------------------------------------------------------------------------------

    def check_end(
        self,
        gateway: Gateway,
        asked: Asked | None,
        receipt: Receipt | None,
        effect: Complete | Refuse,
    ) -> None:
        """A query ends once, with a receipt, within its limits."""
        if asked is None:
            self._fail("a query ends once", f"{effect} at {gateway.name} is of no open query")
            return
        if receipt is None:
            self._fail("an ended query has a receipt", f"{asked}")
            return
        if isinstance(effect, Refuse):
            return
        placement = Placement(receipt.variant_id, receipt.device_class)
        accuracy = fleet.LADDER[name_of(placement.variant_id)][1]
        if accuracy < asked.min_accuracy_percent:
            self._fail("minimum accuracy", f"{asked} was answered by {placement}")
        cost = fleet.CLASSES[placement.device_class].cost_usd(fleet.p50_s(placement, asked.items))
        is_held_to = self._cluster.setup.selection not in LATE_BINDING
        if is_held_to and cost > asked.max_cost_usd * (1.0 + 1e-9):
            self._fail("maximum cost", f"{asked} was answered by {placement} for {cost}")
        if not in_scope(placement.variant_id, asked.scope):
            self._fail("scope", f"{asked} was answered by {placement}")

    def _check_waiting(self, gateway: Gateway) -> None:
        """No query stays beyond its deadline."""
        world = self._cluster.world
        if gateway.hung_until_s > world.now_s - LOOK_S:
            return
        for asked in gateway.open.values():
            receipt = gateway.dispatcher.receipt(asked.query_id)
            if receipt is None or receipt.query.query_id not in gateway.open:
                self._fail("an open query has a receipt", f"{asked}")
                continue
            waits = receipt.standing or receipt.query
            late_s = gateway.now_s - waits.deadline_s
            most_s = LOOK_S if receipt.outcome == "waiting" else RUNS_S
            if late_s > most_s:
                self._fail("deadline", f"{asked} is {receipt.outcome}, late by {late_s:.2f} s")

    # -- devices ------------------------------------------------------------------------------

    def check_device(self, device: LocalDevice) -> None:
        """Loaded, draining and reserved copies fit into memory."""
        loading = device.loading
        used = sum(fleet.memory_bytes(each) for each in device.engines.values())
        used += loading.memory_bytes if loading is not None else 0
        machine = device.machine
        if used > machine.used_bytes:
            self._fail("account of memory", f"{machine.worker_id}: {used}, {machine.used_bytes}")
        if used > machine.memory_bytes and self._cluster.setup.profiled >= 1.0:
            self._fail("memory", f"{machine.worker_id} uses {used / fleet.MIB} MiB")
        held = {each for copy_id, each in device.engines.items() if copy_id not in device.freeing}
        ready = {Placement(each, machine.device_class) for each in machine.ready}
        if not ready <= held:
            self._fail("ready variants are loaded", f"{machine.worker_id}: {ready - held}")

    def check_batch_start(self, device: LocalDevice, effect: StartBatch) -> None:
        """A batch runs on a copy that is loaded, and not about to be freed."""
        if effect.copy_id not in device.engines or effect.copy_id in device.freeing:
            self._fail("a batch runs on a loaded copy", f"{device.machine.worker_id}: {effect}")

    def check_free(self, device: LocalDevice, effect: Free) -> None:
        """Nothing in use is freed, and nothing twice."""
        in_use = {job.copy_id for job in device.jobs if isinstance(job, StartBatch)}
        if effect.copy_id not in device.engines or effect.copy_id in in_use | device.freeing:
            self._fail("nothing in use is freed", f"{device.machine.worker_id}: {effect}")

    def check_load_start(self, device: LocalDevice, effect: StartLoad) -> None:
        """One load at a time, and none of what is there."""
        there = [each for copy_id, each in device.engines.items() if copy_id not in device.freeing]
        wanted = Placement(effect.variant_id, effect.device_class)
        if device.loading is not None or wanted in there:
            self._fail("one load a variant", f"{device.machine.worker_id}: {effect}")
        least = fleet.memory_bytes(wanted) * min(self._cluster.setup.profiled, 1.0)
        if effect.memory_bytes < int(least):
            self._fail("memory is set aside", f"{device.machine.worker_id}: {effect}, not {least}")

    # -- control ------------------------------------------------------------------------------

    def check_obeyed(self, member: Member, orders: Orders) -> None:
        """A member that has obeyed a newer control process obeys no older one."""
        epoch = orders.status["epoch"]
        if epoch < member.epoch:
            self._fail("one control process", f"{member.name} obeys {epoch} after {member.epoch}")
        member.epoch = epoch

    def check_orders(self, control: ControlProcess) -> None:
        """No order that may be regretted is given by one who does not know all members."""
        cluster, now_s = self._cluster, self._cluster.world.now_s
        regretted = [each for each in control.plan
                     if isinstance(each, (UnloadInstance, ResizeWorker, ScalePool))]  # fmt: skip
        beside_s = max(control.started_s, now_s - HEARD_S)
        others = [each for each in cluster.controls if each is not control]
        if any(each.is_alive or each.ended_s > beside_s for each in others):
            return  # some members may obey another one that was alive beside it
        if not regretted or control.hung_until_s > now_s - HEARD_S:
            return
        known = {report.member_id for report in control.control.reports}
        lost_s = cluster.world.network.lost_s
        for member in cluster.serve.members.values():
            disturbed_s = max(
                member.started_s, member.hung_until_s, lost_s[member.name], lost_s[control.name]
            )
            if (
                member.name not in known
                and member.is_alive
                and not member.is_leaving
                and disturbed_s < now_s - HEARD_S
            ):
                self._fail(
                    "a partial view", f"{control.name} orders {regretted} without {member.name}"
                )

    def check_scale(self, effect: ScalePool, epoch: int) -> None:
        """A pool stays within its bounds, and obeys no earlier control process."""
        if epoch < self._scaled_by:
            self._fail("one control process", f"{effect} of {epoch} after {self._scaled_by}")
        self._scaled_by = epoch
        setup = self._cluster.setup
        if not setup.min_workers <= effect.workers <= setup.max_workers:
            self._fail("bounds of the pool", f"{effect}")

    # -- now and then -------------------------------------------------------------------------

    def check_now(self) -> None:
        """Twice a second."""
        for member in self._cluster.serve.members.values():
            if member.is_gateway and member.is_alive:
                self._check_waiting(member)

    def is_at_rest(self) -> bool:
        """Whether ``check_rest`` finds nothing."""
        try:
            self.check_rest()
        except Violation:
            return False
        return True

    def check_rest(self) -> None:
        """Load and faults ended some seconds ago: everything is still, and all know all."""
        cluster = self._cluster
        members = [each for each in cluster.serve.members.values() if each.is_alive]
        names = {each.name for each in members}
        workers = {each.name for each in members if not each.is_gateway}
        control = cluster.controls[-1]
        if control.control is None:
            self._fail("rest: control", f"{control.name} has not begun")
            return
        for member in members:
            if member.is_starting or member.is_leaving:
                self._fail("rest: members", f"{member.name} still starts or leaves")
            device = member.device
            if device is not None and (device.jobs or device.loading or device.machine.batches):
                self._fail("rest: devices", f"{member.name}: {device.jobs} {device.loading}")
            machine = device.machine if device is not None else None
            if machine is not None and machine.used_bytes > machine.memory_bytes:
                self._fail("rest: memory", f"{member.name} uses {machine.used_bytes}")
            barred = machine.state((), 0.0, member.now_s).barred if machine is not None else ()
            if barred:
                self._fail("rest: barred", f"{member.name}: {barred}")
            if device is not None and device.machine.resizing_to:
                self._fail("rest: devices", f"{member.name} is being resized")
            if not member.is_gateway:
                continue
            if member.open or member.dispatcher.open_queries:
                self._fail("rest: queries", f"{member.name}: {list(member.open.values())[:3]}")
            if member.dispatcher.quarantined:
                self._fail("rest: quarantine", f"{member.name}: {member.dispatcher.quarantined}")
            if set(member.directory) != workers:
                self._fail("rest: directory", f"{member.name}: {set(member.directory)}")
            known = set(member.dispatcher.instances.reports)
            if known != workers | ({member.name} if device is not None else set()):
                self._fail("rest: workers of dispatch", f"{member.name}: {known}, not {workers}")
        wanted = cluster.serve.wanted
        for pool, count in wanted.items():
            there = sum(each.pool == pool for each in members)
            if any(cluster.serve.is_old(each) for each in members):
                self._fail("rest: upgrade", f"{[each.rollout for each in members]}")
            if there != count:
                self._fail("rest: pools", f"{pool} has {there} members, wanted {count}")
        reported = {report.member_id for report in control.control.reports}
        if reported != names:
            self._fail("rest: members known", f"{reported}, not {names}")
        self._check_versions(members)
        todo = [each for each in control.plan
                if isinstance(each, (LoadInstance, UnloadInstance, ResizeWorker))]  # fmt: skip
        if todo and cluster.setup.scaling in SETTLES:
            self._fail("rest: plan", f"{todo}")

    def _check_versions(self, members: list[Member]) -> None:
        """No rolled-back version is held, and a current version is where an earlier one is."""
        store, setup = self._cluster.store, self._cluster.setup
        has_room = setup.scaling in SETTLES and setup.profiled <= 1.0
        for member in members:
            ready = member.device.machine.ready if member.device is not None else ()
            for variant_id in ready:
                line = store.line(name_of(variant_id))
                known = (
                    line.current,
                    *line.earlier[-1:],
                    *((line.trial.version,) if line.trial else ()),
                )
                if int(variant_id.partition("@")[2]) not in known:
                    self._fail("rest: versions", f"{member.name} holds {variant_id}: {line}")
                if has_room and line.current_id not in ready:
                    self._fail("rest: current versions", f"{member.name} holds {ready}: {line}")

    def check_probes(self, probes: list[Probe]) -> None:
        """Whoever asks without limits, again and again, has an answer."""
        for probe in probes:
            if not probe.is_answered:
                tries = [asked.ends for asked in probe.tries]
                self._fail("an answer at the end", f"{probe.gateway.name}, {probe.task}: {tries}")

    def check_books(self) -> None:
        """Clients, receipts, counters and changes agree."""
        cluster = self._cluster
        for asked in cluster.asked:
            if asked.gateway and len(asked.ends) != 1:
                self._fail("a query ends once", f"{asked}")
        for member in cluster.serve.members.values():
            if member.is_gateway:
                self._check_counts(member)
            if member.device is not None:
                self._check_changes(member.device)
        self._check_told()

    def _check_counts(self, gateway: Gateway) -> None:
        counted = Counter(gateway.counted)
        counted.update(gateway.dispatcher.take_counters().outcomes)
        ends = Counter(asked.ends[0][0] for asked in gateway.taken if asked.ends)
        answered = counted["served"] + counted["served-late"]
        mine = (answered, counted["refused"], counted["cancelled"])
        theirs = (ends["answered"], ends["refused"], ends["cancelled"])
        if mine != theirs:
            self._fail("counters", f"{gateway.name} counts {mine}, its clients {theirs}")

    def _check_told(self) -> None:
        """What control counted and noted has happened, and once; a lost report may be missing."""
        cluster = self._cluster
        counted: Counter[str] = Counter()
        reported: Counter[str] = Counter()
        for control in cluster.controls:
            counted.update(control.totals)
        for gateway in cluster.gateways:
            reported.update(gateway.counted)
        if any(counted[each] > reported[each] for each in counted):
            self._fail("control's totals", f"{counted}, members reported {reported}")
        noted = Counter(
            (entry.details["worker"], entry.subject, entry.kind)
            for entry in cluster.history
            if entry.kind in (ChangeKind.LOADED, ChangeKind.UNLOADED)
        )
        happened = Counter(
            (device.machine.worker_id, change.variant_id, change.kind)
            for device in cluster.devices
            for change in device.all_changes
        )
        for key, count in noted.items():
            if count > happened[key]:
                self._fail("history", f"{key} is noted {count} times, happened {happened[key]}")

    def _check_changes(self, device: LocalDevice) -> None:
        held: Counter[str] = Counter()
        for change in device.all_changes:
            held[change.variant_id] += change.kind is ChangeKind.LOADED
            held[change.variant_id] -= change.kind is ChangeKind.UNLOADED
        there = {name for name, count in held.items() if count == 1}
        ready = set(device.machine.ready)
        leaving = {each.variant_id for each in device.engines.values()} - ready
        if set(held.values()) - {0, 1} or not ready <= there <= ready | leaving:
            self._fail("changes", f"{device.machine.worker_id}: {held}, {device.machine.ready}")
