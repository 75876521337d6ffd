"""A simulated cluster: its processes, what starts and ends them, its clients and its faults."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from math import inf

from modelless.controller.control.messages import Entry
from modelless.controller.control.pools import GATEWAYS
from modelless.policies.scopes import in_scope
from modelless.policies.views import QueryView
from tests.simtest import fleet
from tests.simtest.control import ControlProcess, Store
from tests.simtest.invariants import Checks
from tests.simtest.members import LIMITS, Asked, Gateway, LocalDevice, Member, Worker, ask
from tests.simtest.schedule import WORKERS, Item, Schedule, settings_of
from tests.simtest.world import Process, Task, World

RECONCILE_S = 0.2
START_S = (0.3, 1.5)
HEALTH_S = 6.0
"""A member that hangs for so long is ended."""

REST_S, UPGRADE_S = 40.0, 60.0
"""The cluster comes to rest within this time after load and faults have ended; after an upgrade it
may take so much longer."""

PROBE_S, TIGHT_S = 30.0, 0.2
"""And then a client who tries again and again, with so little time in the end, has the answer of an
idle system within this time."""


class Serve:
    """Starts and ends the members, as Ray Serve does, and tells routers who is there."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._world = cluster, cluster.world
        self._rng = cluster.world.rng("serve")
        setup = cluster.setup
        self.wanted = {GATEWAYS: setup.gateways}  # how many, by pool
        if setup.max_workers:
            self.wanted[WORKERS] = setup.workers
        self._rollouts = dict.fromkeys(self.wanted, 1)
        self._starting = dict.fromkeys(self.wanted, 0)
        self._started = self._news = 0
        self.members: dict[str, Member] = {}
        self.fronts: list[Gateway] = []  # that clients reach
        self._routes: dict[str, tuple[int, frozenset[str]]] = {}  # that each gateway knows

    @property
    def alive(self) -> list[Member]:
        """The members that have not ended."""
        return [each for each in self.members.values() if each.is_alive]

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
        return self._routes.get(gateway.name, (0, frozenset()))[1]

    def on_ready(self, member: Member) -> None:
        """The member serves from now on."""
        if member.is_gateway:
            self.fronts.append(member)
        self._publish()

    def on_end(self, member: Member) -> None:
        """The member has ended."""
        self.members.pop(member.name, None)
        self._drop(member)

    def _drop(self, member: Member) -> None:
        if member in self.fronts:
            self.fronts.remove(member)
        self._publish()

    def _publish(self) -> None:
        members = self.members.values()
        serving = [each for each in members if not (each.is_starting or each.is_leaving)]
        names = frozenset(each.name for each in serving if not each.is_gateway)
        self._news += 1
        for gateway in members:
            if gateway.is_gateway:
                delay_s = self._rng.uniform(0.0, 0.3)
                gateway.after(delay_s, partial(self._tell, gateway, self._news, names))

    def _tell(self, gateway: Gateway, number: int, names: frozenset[str]) -> None:
        if number > self._routes.get(gateway.name, (0,))[0]:
            self._routes[gateway.name] = number, names
            gateway.inputs.tell_of_others()

    def reconcile(self) -> Task:
        """Look after the members, again and again."""
        while True:
            now_s = self._world.now_s
            for member in list(self.members.values()):
                hung_s = now_s - member.hung_from_s
                if not member.is_alive:
                    self.on_end(member)
                elif member.hung_until_s > now_s and hung_s > HEALTH_S:
                    self._world.injected["ended for want of health"] += 1
                    self._cluster.crash(member)
            is_busy = False  # one pool is upgraded at a time
            for pool in reversed(list(self.wanted)):
                is_busy = self._reconcile_pool(pool, may_replace=not is_busy) or is_busy
            yield RECONCILE_S

    def _reconcile_pool(self, pool: str, *, may_replace: bool) -> bool:
        """Start or end one member at most; returns whether an upgrade is under way."""
        members = [e for e in self.members.values() if e.pool == pool and not e.is_leaving]
        wanted = self.wanted[pool]
        old = [each for each in members if self.is_old(each)]
        count = len(members) + self._starting[pool]
        is_upgrading = bool(old) and may_replace
        if count < wanted + is_upgrading:
            self._starting[pool] += 1
            self._world.plan(self._rng.uniform(*START_S), partial(self._begin, pool))
        elif is_upgrading:
            ready = [each for each in members if each not in old and not each.is_starting]
            if len(ready) + len(old) > wanted:
                self._stop(old[0])
        elif len(members) > wanted:
            self._stop(max(members, key=lambda each: (each.is_starting, each.began_s, each.name)))
        return bool(old)

    def _begin(self, pool: str) -> None:
        self._starting[pool] -= 1
        cluster = self._cluster
        knowledge = cluster.store.read()
        if knowledge is None:
            return
        self._started += 1
        make, role, device_class = Worker, "worker", pool
        if pool == GATEWAYS:
            make, role, device_class = Gateway, "gateway", cluster.settings.gateways.device_class
        name = f"{role}-{self._started}"
        member = make(cluster, name, pool, self._rollout_of(pool), knowledge, device_class)
        self.members[name] = member
        if member.is_gateway:
            cluster.gateways.append(member)
        if member.device is not None:
            cluster.devices.append(member.device)
        self._publish()
        member.start()

    def _stop(self, member: Member) -> None:
        """Take the member out of the routers, and let it leave."""
        member.is_leaving = True
        self._drop(member)
        member.after(0.5, lambda: member.spawn(member.leave()))


class Cluster:
    """A cluster on which a schedule's items happen; ``keep`` and ``hashes`` as in ``World``."""

    def __init__(self, schedule: Schedule, keep: int = 0, *, hashes: bool = False) -> None:
        self.setup = setup = schedule.setup
        self.world = World(str(schedule.seed), setup.clocks_differ, keep, hashes)
        self.world.network.hop_s = max(setup.hop_s / 2.0, 0.0002)
        self.settings = settings_of(setup)
        self.store = Store(setup.profiled)
        self.checks = Checks(self)
        self.history: list[Entry] = []
        self.asked: list[Asked] = []
        self.gateways: list[Gateway] = []  # all that there ever were
        self.devices: list[LocalDevice] = []
        self.controls: list[ControlProcess] = []
        self.bad_loads: dict[str, float] = {}  # how likely they fail, by scope
        self.bad_batches: dict[str, float] = {}
        self._rng = self.world.rng("faults")
        self.serve = Serve(self)
        self._items = schedule.items
        for item in schedule.items:
            self.world.spawn(self._happen(item))
        self._start_control()
        self.world.spawn(self.serve.reconcile())

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
        fronts = self.serve.fronts
        asks = [(gateway, task) for gateway in fronts for task in fleet.TASKS]
        probes = [Probe(self, *each, n / len(asks)) for n, each in enumerate(asks)]
        self._pass_until(lambda: all(each.is_content for each in probes), PROBE_S)
        self.checks.check_probes(probes)
        if self.setup.scaling == "on-demand" and fronts:
            self._ask_while_reports_are_lost(fronts[0])
        self._pass(3.0)
        self.checks.check_books()

    def _ask_while_reports_are_lost(self, gateway: Gateway) -> None:
        """A query that waits is loaded for, though the report of its arrival does not arrive."""
        members = self.serve.members.values()
        held = {n for each in members if each.device for n in each.device.machine.ready}
        near = [each.device.machine for each in members
                if each.device and (each is gateway or not each.is_gateway)]  # fmt: skip
        free = max((each.memory_bytes - each.used_bytes for each in near), default=0)
        for name, (_, percent, mib) in fleet.LADDER.items():
            task = name.partition("/")[0]
            is_better = all(fleet.accuracy(e) < percent for e in held if in_scope(e, task))
            if is_better and mib * fleet.MIB * 1.5 < free:
                break
        else:
            return
        self.world.spawn(self._cut(0.3, gateway, self.controls[-1]))
        asked = ask(task, 15.0, percent)
        gateway.take(asked)
        self._pass(LIMITS.max_hold_s + 1.0)
        if [kind for kind, _, _ in asked.ends] != ["answered"]:
            self.world.fail("a query that waits is known", asked)

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
        self.bad_loads.clear()
        self.bad_batches.clear()
        self.store.is_away = False

    # -- processes ----------------------------------------------------------------------------

    def _start_control(self) -> None:
        self.controls.append(ControlProcess(self, len(self.controls) + 1))
        self.control_name = self.controls[-1].name

    def crash(self, process: Process | None) -> None:
        """End a process at once; what started it starts another one after a while."""
        if process is None or not process.is_alive:
            return
        if isinstance(process, Gateway):
            process.abandon("gateway died")
        process.end()
        if isinstance(process, Member):
            self.world.plan(self._rng.uniform(0.0, 0.5), partial(self.serve.on_end, process))
        elif process.name == self.control_name:
            self.world.plan(self._rng.uniform(0.3, 2.0), self._start_control)

    def find(self, target: str) -> Process | None:
        """The process that an item means, such as ``worker:1``; None if there is none."""
        role, _, number = target.partition(":")
        if role == "control":
            return self.world.processes.get(self.control_name)
        alive = [each for each in self.serve.alive if each.is_a(role)]
        return alive[int(number) % len(alive)] if alive else None

    def due_accuracy(self, probe: Probe) -> float:
        """The accuracy that an idle system owes: of any device, or of the one that is asked."""
        owes = {"most-accurate-feasible": max, "best-value": min}.get(self.setup.selection)
        gateway = probe.gateway
        near = [gateway, *(each for each in self.serve.members.values() if not each.is_gateway)]
        best = []
        for ready in [each.device.machine.ready for each in near if each.device is not None]:
            served = [n for n in gateway.service.serving(ready) if in_scope(n, probe.task)]
            best += [max(map(fleet.accuracy, served))] if served else []
        return owes(best) if owes is not None and best else 0.0

    def fails(self, bad: Mapping[str, float], variant_id: str, rng: random.Random) -> bool:
        """Whether this load or batch fails."""
        shares = [share for scope, share in bad.items() if in_scope(variant_id, scope)]
        return rng.random() < max(shares, default=0.0)

    # -- what happens -------------------------------------------------------------------------

    def _happen(self, item: Item) -> Task:
        yield item.at_s
        world, network, store = self.world, self.world.network, self.store
        world.injected[item.kind] += 1
        world.note("fault", item)
        length_s, value, target = item.length_s, item.value, item.target
        process = self.find(target) if item.kind in ("crash", "hang", "slow") else None
        spells = {
            "slow": (process, "slow", 1.0),
            "lossy": (network, "loss", 0.0),
            "repeats": (network, "repeat", 0.0),
            "late messages": (network, "spike", 0.0),
            "store away": (store, "is_away", False),
        }
        match item.kind:
            case "slow" if process is None:
                pass
            case kind if kind in spells:
                owner, name, usual = spells[kind]
                setattr(owner, name, value or True)
                yield length_s
                setattr(owner, name, usual)
            case "load":
                yield from self._ask_for_a_while(item, world.rng("load", item.at_s))
            case "crash":  # of those that load, resize, start or leave, the first one that does
                while process is None and length_s > 0.0:
                    yield 0.1
                    length_s -= 0.1
                    process = self.find(target)
                self.crash(process)
            case "hang" if process is not None:
                process.hang(length_s)
            case "cut":
                ends = [self.find(each) for each in target.split("|")]
                if None not in ends and ends[0] is not ends[1]:
                    yield from self._cut(length_s, ends[0], ends[1])
            case "second control" if old := self.find("control"):  # it only seems to be dead
                rng = self._rng
                cut = [each for each in self.serve.members.values() if rng.random() < 0.5]
                self._start_control()
                yield from self._cut(length_s / 2.0, old, *cut)
                yield length_s / 2.0
                self.crash(old)
            case "bad loads" | "bad batches":
                shares = self.bad_loads if item.kind == "bad loads" else self.bad_batches
                shares[target] = value
                yield length_s
                shares.pop(target, None)
            case "upgrade":  # of the control process first, then of the members
                self.crash(self.find("control"))
                self.serve.upgrade()
            case "register":
                store.newest = 3
            case "canary":
                store.begin_trial(target, int(value), world.now_s)
            case "promote":
                store.promote(target, int(value))
            case "roll back":
                store.roll_back(target)
            case "retire":  # for a while
                store.set_retired(target, is_retired=True)
                yield length_s
                store.set_retired(target, is_retired=False)

    def _cut(self, length_s: float, one: Process, *others: Process) -> Task:
        """Let a process and others not reach each other."""
        cut, pairs = self.world.network.cut, [frozenset((one.name, e.name)) for e in others]
        cut.update(pairs)
        yield length_s
        cut.subtract(pairs)

    # -- clients ------------------------------------------------------------------------------

    def _ask_for_a_while(self, item: Item, rng: random.Random) -> Task:
        end_s = self.world.now_s + item.length_s
        gap_s = rng.expovariate(item.value)
        while self.world.now_s + gap_s < end_s:
            yield gap_s
            gap_s = rng.expovariate(item.value)
            tasks = fleet.TASKS if item.target == "both" else (item.target,)
            asked = Asked(self._draw_query(rng.choice(tasks), rng))
            self.asked.append(asked)
            if self.serve.fronts:
                gateway = self.serve.fronts[rng.randrange(len(self.serve.fronts))]
                gateway.after(0.0, partial(gateway.take, asked))
                if "cancel" in self.setup.limits and rng.random() < 0.1:
                    gateway.after(rng.uniform(0.0, 0.3), partial(gateway.cancel, asked))

    def _draw_query(self, task: str, rng: random.Random) -> QueryView:
        on = self.setup.limits
        names = [name for name in (*fleet.LADDER, *fleet.TRIED) if name.startswith(task)]
        has_deadline = "deadline" in on and rng.random() < 0.8
        return QueryView(
            0,
            scope=rng.choice(names) if "scope" in on and rng.random() < 0.5 else task,
            items=rng.choice((1, 2, 3, 4)) if "items" in on else 1,
            arrival_s=0.0,
            deadline_s=rng.choice((0.05, 0.2, 0.6, 1.0, 15.0)) if has_deadline else 2.0,
            min_accuracy_percent=rng.choice((0.0, 65.0, 75.0, 80.0)) if "accuracy" in on else 0.0,
            max_cost_usd=rng.choice((inf, 8e-7, 2e-6)) if "cost" in on else inf,
            priority=rng.choice((0, -1, 3, 9)) if "priority" in on else 0,
            tenant=rng.choice(("", "one", "two")) if "tenants" in on else "",
            serve_late=rng.random() < 0.5 if "late" in on else False,
            has_default_deadline=not has_deadline,
        )


class Probe:
    """A client who tries again and again, at one gateway: with time for a load until the first
    answer, and then with 1.4 times the p99 of the slowest variant. No two clients ask at once."""

    def __init__(self, cluster: Cluster, gateway: Gateway, task: str, begins_s: float) -> None:
        self.gateway, self.task = gateway, task
        self.tries: list[Asked] = []
        self.is_content = False
        self._cluster = cluster
        gateway.spawn(self._try(begins_s))

    def _try(self, begins_s: float) -> Task:
        """Stop after an answer that is as accurate as an idle system's should be."""
        yield begins_s
        latency_s = 10.0
        while not self.is_content:
            asked = ask(self.task, latency_s)
            self.tries.append(asked)
            self.gateway.take(asked)
            yield 1.0
            for kind, _, name in asked.ends:
                best = self._cluster.due_accuracy(self)
                is_best = kind == "answered" and fleet.accuracy(name) >= best
                self.is_content = is_best and latency_s == TIGHT_S
            if any(end[0] == "answered" for each in self.tries for end in each.ends):
                latency_s = TIGHT_S
