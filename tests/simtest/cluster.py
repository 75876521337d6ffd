"""A simulated cluster: its processes, who starts and ends them, its clients and its faults."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from math import inf

from modelless.controller.control.messages import Entry
from modelless.controller.control.pools import GATEWAYS
from modelless.policies.scopes import in_scope
from modelless.variants.registry.versions import name_of
from tests.simtest import fleet
from tests.simtest.control import ControlProcess, Store
from tests.simtest.invariants import Checks
from tests.simtest.members import LIMITS, Asked, Gateway, LocalDevice, Member, Worker
from tests.simtest.schedule import WORKERS, Item, Schedule, settings_of
from tests.simtest.world import Process, World

RECONCILE_S = 0.2
START_S = (0.3, 1.5)
HEALTH_S = 6.0
"""A member that hangs for so long is ended."""

REST_S = 40.0
"""The cluster comes to rest within this time after load and faults have ended."""

UPGRADE_S = 60.0
"""Or in so much more, if there was an upgrade."""

PROBE_S = 20.0
"""And then a client who tries again and again has an answer within this time."""


class Serve:
    """Starts and ends the members, as Ray Serve does, and tells routers who is there.

    Args:
        cluster: that it serves.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._world = cluster, cluster.world
        self._rng = cluster.world.rng("serve")
        setup = cluster.setup
        self.wanted = {GATEWAYS: setup.gateways, WORKERS: setup.workers}
        if not setup.max_workers:
            del self.wanted[WORKERS]
        self._rollouts = dict.fromkeys(self.wanted, 1)
        self._starting: dict[str, int] = dict.fromkeys(self.wanted, 0)
        self._started = 0
        self.members: dict[str, Member] = {}
        self.fronts: list[Gateway] = []  # that clients reach
        self._routes: dict[str, frozenset[str]] = {}
        self._news = 0
        self._told: dict[str, int] = {}

    def start(self) -> None:
        """Begin to look after the members."""
        self._reconcile()

    def scale(self, pool: str, count: int) -> None:
        """Bring a pool to so many workers."""
        self.wanted[pool] = count

    def upgrade(self) -> None:
        """Replace all members, one after the other: workers first."""
        for pool in self.wanted:
            self._rollouts[pool] += 1

    def is_old(self, member: Member) -> bool:
        """Whether it is of an earlier rollout than its pool's latest."""
        return member.rollout != self._rollout_of(member.pool)

    def _rollout_of(self, pool: str) -> str:
        return f"{pool}/{self._rollouts[pool]}"

    def routable(self, gateway: Member) -> frozenset[str]:
        """The workers that a gateway's router knows."""
        return self._routes.get(gateway.name, frozenset())

    def on_ready(self, member: Member) -> None:
        """The member serves from now on."""
        if isinstance(member, Gateway):
            self.fronts.append(member)
        self._publish()

    def on_end(self, member: Member) -> None:
        """The member has ended."""
        self.members.pop(member.name, None)
        self._drop(member)

    def _drop(self, member: Member) -> None:
        if isinstance(member, Gateway) and member in self.fronts:
            self.fronts.remove(member)
        self._publish()

    def _publish(self) -> None:
        names = frozenset(
            each.name
            for each in self.members.values()
            if isinstance(each, Worker) and not each.is_starting and not each.is_leaving
        )
        self._news += 1
        for gateway in self.members.values():
            if isinstance(gateway, Gateway):
                delay_s = self._rng.uniform(0.0, 0.3)
                gateway.after(delay_s, partial(self._tell, gateway, names, self._news))

    def _tell(self, gateway: Gateway, names: frozenset[str], number: int) -> None:
        if number > self._told.get(gateway.name, 0):
            self._told[gateway.name] = number
            self._routes[gateway.name] = names
            gateway.on_routes()

    def _reconcile(self) -> None:
        self._world.plan(self._world.now_s + RECONCILE_S, self._reconcile)
        for member in list(self.members.values()):
            if not member.is_alive:
                self.on_end(member)
            elif member.hangs_s > HEALTH_S:
                self._world.injected["ended for want of health"] += 1
                self._cluster.crash(member)
        is_busy = False  # one pool is upgraded at a time
        for pool in reversed(list(self.wanted)):
            is_busy = self._reconcile_pool(pool, may_replace=not is_busy) or is_busy

    def _reconcile_pool(self, pool: str, *, may_replace: bool) -> bool:
        """Start or end one member at most; returns whether an upgrade is under way."""
        members = [e for e in self.members.values() if e.pool == pool and not e.is_leaving]
        wanted = self.wanted[pool]
        old = [each for each in members if self.is_old(each)]
        count = len(members) + self._starting[pool]
        is_upgrading = bool(old) and may_replace
        if count < wanted + is_upgrading:
            self._start(pool)
        elif is_upgrading:
            ready = [each for each in members if each not in old and not each.is_starting]
            if len(ready) + len(old) > wanted:
                self._stop(old[0])
        elif len(members) > wanted:
            self._stop(max(members, key=lambda each: (each.is_starting, each.began_s, each.name)))
        return bool(old)

    def _start(self, pool: str) -> None:
        self._starting[pool] += 1
        delay_s = self._rng.uniform(*START_S)
        self._world.plan(self._world.now_s + delay_s, partial(self._begin, pool))

    def _begin(self, pool: str) -> None:
        self._starting[pool] -= 1
        cluster = self._cluster
        knowledge = cluster.store.read()
        if knowledge is None:
            return
        self._started += 1
        make, role = (Gateway, "gateway") if pool == GATEWAYS else (Worker, "worker")
        name = f"{role}-{self._started}"
        device_class = pool if pool != GATEWAYS else cluster.settings.gateways.device_class or ""
        rollout = self._rollout_of(pool)
        member = make(cluster, name, pool, rollout, knowledge, device_class)
        self.members[name] = member
        if isinstance(member, Gateway):
            cluster.gateways.append(member)
        if member.device is not None:
            cluster.devices.append(member.device)
        self._publish()
        member.start()

    def _stop(self, member: Member) -> None:
        """Take the member out of the routers, and let it leave."""
        member.is_leaving = True
        self._drop(member)
        member.after(0.5, member.begin_to_leave)


class Cluster:
    """A cluster on which a schedule's items happen.

    Args:
        schedule: what it is, and what happens.
        keep, hashes: see ``World``.
    """

    def __init__(self, schedule: Schedule, keep: int = 0, *, hashes: bool = False) -> None:
        self.setup = schedule.setup
        self.world = World(str(schedule.seed), self.setup.clocks_differ, keep, hashes)
        self.world.network.hop_s = max(self.setup.hop_s / 2.0, 0.0002)
        self.settings = settings_of(self.setup)
        self.store = Store(self.setup.profiled)
        self.checks = Checks(self)
        self.history: list[Entry] = []
        self.asked: list[Asked] = []
        self.gateways: list[Gateway] = []  # all that there ever were
        self.devices: list[LocalDevice] = []
        self.control_name = ""
        self.controls: list[ControlProcess] = []
        self._bad_loads: dict[str, float] = {}
        self._bad_batches: dict[str, float] = {}
        self._rng = self.world.rng("faults")
        self.serve = Serve(self)
        self._items = schedule.items
        for item in schedule.items:
            self.world.plan(item.at_s, partial(self._happen, item))
        self._start_control()
        self.serve.start()

    def run(self) -> None:
        """Let everything happen, and check that the cluster comes to rest.

        Raises:
            Violation: an invariant does not hold.
        """
        self._pass(self.setup.end_s)
        self._mend()
        most_s = REST_S + UPGRADE_S * any(item.kind == "upgrade" for item in self._items)
        self._pass(2.0)
        self._pass_until(self.checks.is_at_rest, most_s)
        self.checks.check_rest()
        probes = [Probe(self, gateway, task) for gateway in self.serve.fronts
                  for task in ("alpha", "beta")]  # fmt: skip
        self._pass_until(lambda: all(each.is_answered for each in probes), PROBE_S)
        self.checks.check_probes(probes)
        if self.setup.scaling == "on-demand" and self.serve.fronts:
            self._ask_while_reports_are_lost(self.serve.fronts[0])
        self._pass(3.0)
        self.checks.check_books()

    def _ask_while_reports_are_lost(self, gateway: Gateway) -> None:
        """A query that waits is loaded for, though the report of its arrival does not arrive."""
        devices = [each.device for each in self.serve.members.values() if each.device is not None]
        held = {name_of(each) for device in devices for each in device.machine.ready}
        near = [
            gateway.device,
            *(e.device for e in self.serve.members.values() if not e.is_gateway),
        ]
        free = [e.machine.memory_bytes - e.machine.used_bytes for e in near if e is not None]
        better = [
            (name.partition("/")[0], percent)
            for name, (_, percent, mib) in fleet.LADDER.items()
            if mib * fleet.MIB * 1.5 < max(free, default=0)
            and all(accuracy(each) < percent for each in held if each[0] == name[0])
        ]
        if not better:
            return
        task, percent = better[0]
        pair = frozenset((gateway.name, self.control_name))
        self.world.network.cut[pair] += 1
        self.world.plan(self.world.now_s + 0.3, lambda: self.world.network.cut.subtract([pair]))
        asked = Asked(-1, task, 1, 15.0, percent, inf, 0, "", False, True)
        gateway.take(asked)
        self._pass(LIMITS.max_hold_s + 1.0)
        if [kind for kind, _, _ in asked.ends] != ["answered"]:
            self.world.fail("a query that waits is known", f"{asked}")

    def _pass(self, length_s: float) -> None:
        end_s = self.world.now_s + length_s
        while self.world.now_s < end_s:
            self.world.run(min(self.world.now_s + 0.5, end_s))
            self.checks.check_now()

    def _pass_until(self, is_so: Callable[[], bool], most_s: float) -> None:
        end_s = self.world.now_s + most_s
        while self.world.now_s < end_s and not is_so():
            self._pass(0.5)

    def _mend(self) -> None:
        network = self.world.network
        network.loss = network.repeat = network.spike = 0.0
        network.cut.clear()
        for process in self.world.processes.values():
            process.slow = 1.0
        self._bad_loads.clear()
        self._bad_batches.clear()
        self.store.is_away = False

    # -- processes ----------------------------------------------------------------------------

    def _start_control(self) -> None:
        process = ControlProcess(self, f"control-{len(self.controls) + 1}")
        self.controls.append(process)
        self.control_name = process.name

    def crash(self, process: Process) -> None:
        """End a process at once; what started it starts another one after a while."""
        if not process.is_alive:
            return
        if isinstance(process, Gateway):
            for asked in process.open.values():
                asked.ends.append(("gateway died", self.world.now_s, ""))
            process.open.clear()
        is_control = process.name == self.control_name
        process.end()
        if isinstance(process, Member):
            process.world.plan(self.world.now_s + self._rng.uniform(0.0, 0.5),
                               partial(self.serve.on_end, process))  # fmt: skip
        elif is_control:
            self.world.plan(self.world.now_s + self._rng.uniform(0.3, 2.0), self._start_control)

    def find(self, target: str) -> Process | None:
        """The process that an item means, such as ``worker:1``; None if there is none."""
        role, _, number = target.partition(":")
        if role == "control":
            return self.world.processes.get(self.control_name)
        alive = [each for each in self.serve.members.values() if each.is_alive and each.is_a(role)]
        return alive[int(number) % len(alive)] if alive else None

    # -- what happens -------------------------------------------------------------------------

    def due_accuracy(self, probe: Probe) -> float:
        """The accuracy that an idle system owes: of any device, or of the one that is asked."""
        owes = {"most-accurate-feasible": max, "best-value": min}.get(self.setup.selection)
        devices = [each.device for each in (probe.gateway, *self.serve.members.values())
                   if each is probe.gateway or isinstance(each, Worker)]  # fmt: skip
        served = [probe.gateway.service.serving(each.machine.ready) for each in devices if each]
        best = [max(mine) for ready in served
                if (mine := [accuracy(n) for n in ready if n.startswith(probe.task)])]  # fmt: skip
        return owes(best) if owes is not None and best else 0.0

    def fails_to_load(self, variant_id: str, rng: random.Random) -> bool:
        """Whether this load fails."""
        return rng.random() < _likelihood(self._bad_loads, variant_id)

    def fails_batch(self, variant_id: str, rng: random.Random) -> bool:
        """Whether this batch fails in the engine."""
        return rng.random() < _likelihood(self._bad_batches, variant_id)

    def _happen(self, item: Item) -> None:
        self.world.injected[item.kind] += 1
        self.world.note("fault", item)
        getattr(self, "_do_" + item.kind.replace(" ", "_"))(item)

    def _later(self, item: Item, action: Callable[[], object]) -> None:
        self.world.plan(self.world.now_s + item.length_s, action)

    def _do_crash(self, item: Item) -> None:
        """Crash a process; of one that loads, resizes or starts, the first one that does."""
        process = self.find(item.target)
        if process is not None:
            self.crash(process)
        elif item.length_s > 0.0:
            again = item._replace(length_s=item.length_s - 0.1)
            self.world.plan(self.world.now_s + 0.1, lambda: self._do_crash(again))

    def _do_hang(self, item: Item) -> None:
        process = self.find(item.target)
        if process is not None:
            process.hang(item.length_s)

    def _do_slow(self, item: Item) -> None:
        process = self.find(item.target)
        if process is not None:
            process.slow = item.value
            self._later(item, lambda: setattr(process, "slow", 1.0))

    def _do_cut(self, item: Item) -> None:
        ends = [self.find(target) for target in item.target.split("|")]
        if None in ends or ends[0] is ends[1]:
            return
        pair = frozenset(each.name for each in ends if each is not None)
        self.world.network.cut[pair] += 1
        self._later(item, lambda: self.world.network.cut.subtract([pair]))

    def _do_second_control(self, item: Item) -> None:
        """A control process that only seems to be dead goes on beside its successor."""
        old = self.world.processes.get(self.control_name)
        if old is None:
            return
        network = self.world.network
        cut = [frozenset((old.name, each)) for each in self.serve.members
               if self._rng.random() < 0.5]  # fmt: skip
        network.cut.update(cut)
        self._start_control()
        self.world.plan(self.world.now_s + item.length_s / 2.0, lambda: network.cut.subtract(cut))
        self._later(item, lambda: self.crash(old))

    def _do_store_away(self, item: Item) -> None:
        self.store.is_away = True
        self._later(item, lambda: setattr(self.store, "is_away", False))

    def _do_bad_loads(self, item: Item) -> None:
        self._bad_loads[item.target] = item.value
        self._later(item, lambda: self._bad_loads.pop(item.target, None))

    def _do_bad_batches(self, item: Item) -> None:
        self._bad_batches[item.target] = item.value
        self._later(item, lambda: self._bad_batches.pop(item.target, None))

    def _do_lossy(self, item: Item) -> None:
        self.world.network.loss = item.value
        self._later(item, lambda: setattr(self.world.network, "loss", 0.0))

    def _do_repeats(self, item: Item) -> None:
        self.world.network.repeat = item.value
        self._later(item, lambda: setattr(self.world.network, "repeat", 0.0))

    def _do_late_messages(self, item: Item) -> None:
        self.world.network.spike = item.value
        self._later(item, lambda: setattr(self.world.network, "spike", 0.0))

    def _do_upgrade(self, item: Item) -> None:
        """The control process is replaced first, then the members."""
        control = self.find("control")
        if control is not None:
            self.crash(control)
        self.serve.upgrade()

    def _do_register(self, item: Item) -> None:
        self.store.newest = 3

    def _do_canary(self, item: Item) -> None:
        version = min(int(item.value), self.store.newest)
        self.store.begin_trial(item.target, version, self.world.now_s)

    def _do_promote(self, item: Item) -> None:
        self.store.promote(item.target, min(int(item.value), self.store.newest))

    def _do_roll_back(self, item: Item) -> None:
        self.store.roll_back(item.target)

    # -- clients ------------------------------------------------------------------------------

    def _do_load(self, item: Item) -> None:
        self._next_query(item, self.world.rng("load", item.at_s), self.world.now_s + item.length_s)

    def _next_query(self, item: Item, rng: random.Random, end_s: float) -> None:
        at_s = self.world.now_s + rng.expovariate(item.value)
        if at_s < end_s:
            self.world.plan(at_s, partial(self._ask, item, rng, end_s))

    def _ask(self, item: Item, rng: random.Random, end_s: float) -> None:
        self._next_query(item, rng, end_s)
        tasks = ("alpha", "beta") if item.target == "both" else (item.target,)
        asked = self._draw_query(rng.choice(tasks), rng)
        self.asked.append(asked)
        fronts = self.serve.fronts
        if fronts:
            gateway = fronts[rng.randrange(len(fronts))]
            gateway.after(0.0, partial(gateway.take, asked))
            if "cancel" in self.setup.limits and rng.random() < 0.1:
                gateway.after(rng.uniform(0.0, 0.3), partial(gateway.cancel, asked))

    def _draw_query(self, task: str, rng: random.Random) -> Asked:
        on = self.setup.limits
        names = [name for name in (*fleet.LADDER, *fleet.TRIED) if name.startswith(task)]
        has_deadline = "deadline" in on and rng.random() < 0.8
        return Asked(
            len(self.asked),
            rng.choice(names) if "scope" in on and rng.random() < 0.5 else task,
            rng.choice((1, 2, 3, 4)) if "items" in on else 1,
            rng.choice((0.05, 0.2, 0.6, 1.0, 15.0)) if has_deadline else 2.0,
            rng.choice((0.0, 65.0, 75.0, 80.0)) if "accuracy" in on else 0.0,
            rng.choice((inf, 8e-7, 2e-6)) if "cost" in on else inf,
            rng.choice((0, 0, 3, 9)) if "priority" in on else 0,
            rng.choice(("", "one", "two")) if "tenants" in on else "",
            rng.random() < 0.5 if "late" in on else False,
            not has_deadline,
        )


def accuracy(variant_id: str) -> float:
    """Per cent."""
    return fleet.LADDER[name_of(variant_id)][1]


def _likelihood(shares: dict[str, float], variant_id: str) -> float:
    """How likely the variant fails, by scope."""
    return max(
        (share for scope, share in shares.items() if in_scope(variant_id, scope)), default=0.0
    )


class Probe:
    """A client who tries again and again, without limits, at one gateway.

    Args:
        cluster: that it asks.
        gateway: whom.
        task: what for.
    """

    def __init__(self, cluster: Cluster, gateway: Gateway, task: str) -> None:
        self.gateway, self.task = gateway, task
        self.tries: list[Asked] = []
        self._cluster, self._is_content = cluster, False
        self._try()

    @property
    def is_answered(self) -> bool:
        """Whether it had an answer that is as accurate as an idle system's should be."""
        answers = [name for asked in self.tries for kind, _, name in asked.ends
                   if kind == "answered"]  # fmt: skip
        self._is_content = self._is_content or (
            bool(answers) and accuracy(answers[-1]) >= self._cluster.due_accuracy(self)
        )
        return self._is_content

    def _try(self) -> None:
        if self.is_answered or not self.gateway.is_alive:
            return
        asked = Asked(-1, self.task, 1, 10.0, 0.0, inf, 0, "", False, True)  # in time for a load
        self.tries.append(asked)
        self.gateway.take(asked)
        self.gateway.after(1.0, self._try)
