"""The store, and the control process as a thin driver of the control machine.

It says and does the same as ``live/control/control_loop`` and ``live/control/version_store``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from modelless.controller.assembly import build_control
from modelless.controller.control import messages
from modelless.controller.control.machine import Control
from modelless.controller.control.messages import KeepEvidence, MemberReport, PromoteVersion
from modelless.controller.control.served_versions import Retirements, Service
from modelless.controller.device.messages import LoadInstance, Order, ResizeWorker, UnloadInstance
from modelless.controller.live.orders import Orders
from modelless.variants.registry.versions import Line, Trial, TrialRules
from tests.simtest import fleet
from tests.simtest.fleet import Knowledge, knowledge_of
from tests.simtest.schedule import settings_of
from tests.simtest.world import EPOCH_S, Process, Respond, Timer

LOOK_S, WATCH_VERSIONS_S, WATCH_CALLS_S = 0.2, 3.0, 2.0
RULES = TrialRules(
    alpha=0.4,
    error_tolerance=0.4,
    latency_tolerance=0.6,
    min_queries=5,
    max_queries=200,
    max_s=12.0,
)


class StoreAwayError(Exception):
    """The store cannot be read."""


class Store:
    """The registered versions and those in service. It may be away.

    Attributes:
        newest: the newest version that is registered of the names that have several.
        lines: by name, those that somebody changed.
        change: the number of the latest change.
    """

    def __init__(self, profiled: float) -> None:
        self.is_away = False
        self._profiled = profiled
        self.newest = 2
        self.lines: dict[str, Line] = {}
        self.change = 0
        self.evidence: dict[int, Mapping[str, Any]] = {}

    def read(self) -> Knowledge | None:
        """Return what is registered; None if the store is away."""
        return None if self.is_away else knowledge_of(self.newest, self._profiled)

    def line(self, name: str) -> Line:
        """Return the versions of a name that are in service: the first unless it was changed."""
        return self.lines.get(name) or Line(name, 1)

    def _set(self, line: Line) -> None:
        self.change += 1
        self.lines[line.name] = line

    def promote(self, name: str, version: int) -> None:
        """Let a version be the current one, unless another one is on trial."""
        line, version = self.line(name), min(version, self.newest)
        if line.current != version and (line.trial is None or line.trial.version == version):
            self._set(Line(name, version, (*line.earlier, line.current)))

    def set_retired(self, name: str, *, is_retired: bool) -> None:
        """Take a variant out of service, or back into it."""
        self._set(replace(self.line(name), retired=is_retired))

    def roll_back(self, name: str) -> None:
        """Take the latest change of a line back."""
        line = self.line(name)
        if line.trial is not None:
            self._set(replace(line, trial=None))
        elif line.earlier:
            self._set(Line(name, line.earlier[-1], line.earlier[:-1]))

    def begin_trial(self, name: str, version: int, now_s: float) -> None:
        """Try a version on a part of the queries."""
        line, version = self.line(name), min(version, self.newest)
        task = name.partition("/")[0]
        trials = [each.trial for each in self.lines.values() if each.trial is not None]
        if line.current != version and all(each.task != task for each in trials):
            trial = Trial(name, version, line.current, 0.4, self.change + 1, EPOCH_S + now_s, RULES)
            self._set(replace(line, trial=trial))

    def write(self, effect: Any) -> None:
        """Keep the evidence of a trial, or end it, unless somebody ended it before."""
        trial = effect.trial
        line = self.line(trial.name)
        if isinstance(effect, KeepEvidence):
            self.evidence[trial.number] = effect.evidence
        elif line.trial is not None and line.trial.number == trial.number:
            if isinstance(effect, PromoteVersion):
                self._set(Line(line.name, trial.version, (*line.earlier, line.current)))
            else:
                self._set(replace(line, trial=None))


class ControlProcess(Process):
    """One run of the control process.

    Attributes:
        epoch: a later process has a higher one, whichever begins first.
        control: the machine; None until the store was read.
        plan: the effects of the last tick.
    """

    def __init__(self, cluster, epoch: int) -> None:
        super().__init__(cluster.world, f"control-{epoch}")
        self.cluster, self.epoch = cluster, epoch
        self.control: Control | None = None
        self.totals: Counter[str] = Counter()
        self.plan: list[object] = []
        self._mailboxes: dict[str, list[Order]] = {}
        self._shares: Mapping[str, Any] = {}
        self._called: set[str] = set()
        self._waiting_calls: defaultdict[str, list[Respond]] = defaultdict(list)
        self._waiting_versions: list[Respond] = []
        self._departed: set[str] = set()
        self._wake: Timer | None = None
        self._service = Service()
        self._change = -1
        self._retirements = Retirements()
        self._to_write: list[Any] = []

    def answer(self, method: str, arguments: tuple[Any, ...], respond: Respond) -> None:
        """See ``ControlLoop.answer``. The first call lets the machine begin."""
        if self.control is None and method != "called":
            knowledge = self.cluster.store.read()
            if knowledge is None:
                respond(StoreAwayError())
                return
            self._begin(knowledge)
        getattr(self, f"_answer_{method}")(*arguments, respond)

    def _begin(self, knowledge: Knowledge) -> None:
        settings = settings_of(self.cluster.setup, self.offset_s)
        preload = settings.residency.preload
        self.control = build_control(settings, fleet.CLASSES, preload, self.now_s)
        self._knowledge = knowledge
        self._handle(messages.FactsChanged(knowledge.facts, fleet.CLASSES))
        self._read_versions()
        self._look()

    def _answer_exchange(self, report: MemberReport, respond: Respond) -> None:
        name, control = report.member_id, self.control
        self._mailboxes.setdefault(name, [])
        self.totals.update(report.outcomes)
        self._handle(messages.MemberReported(report))
        self._called.discard(name)
        orders, self._mailboxes[name] = tuple(self._mailboxes[name]), []
        predecessor_id, lacking = control.succession(name)
        respond(
            Orders(
                orders,
                control.directory,
                self._shares,
                {"control": self.name, "epoch": self.epoch},
                control.busy_neighbours(name),
                starting_s=control.starting_s,
                is_at_rest=control.is_at_rest,
                is_settled=control.is_settled(self.now_s),
                predecessor_id=predecessor_id,
                lacking=lacking,
            )
        )

    def _answer_leave(self, report: MemberReport, respond: Respond) -> None:
        self._drop(report.member_id)
        if report.member_id not in self._departed:
            self._departed.add(report.member_id)
            self.totals.update(report.outcomes)
            self._handle(messages.MemberLeft(report))
        respond(True)

    def _answer_called(self, name: str, respond: Respond) -> None:
        if name in self._called:
            self._called.discard(name)
            respond(True)
        else:
            self._park(self._waiting_calls[name], respond, WATCH_CALLS_S, lambda: False)

    def _answer_versions(self, token: str, respond: Respond) -> None:
        if self._service.token != token:
            respond(self._service)
        else:
            self._park(self._waiting_versions, respond, WATCH_VERSIONS_S, lambda: self._service)

    def _park(
        self, waiting: list[Respond], respond: Respond, most_s: float, late: Callable[[], object]
    ) -> None:
        """Let a caller wait; after ``most_s`` the answer is ``late``."""
        waiting.append(respond)

        def give_up() -> None:
            if respond in waiting:
                waiting.remove(respond)
                respond(late())

        self.after(most_s, give_up)

    def _answer_all(self, waiting: list[Respond], result: object) -> None:
        while waiting:
            waiting.pop(0)(result)

    def _call(self, name: str) -> None:
        if self._waiting_calls[name]:
            self._answer_all(self._waiting_calls[name], True)
        else:
            self._called.add(name)

    def _drop(self, name: str) -> None:
        self._mailboxes.pop(name, None)
        self._called.discard(name)

    # -- versions -----------------------------------------------------------------------------

    def _look(self) -> None:
        store = self.cluster.store
        effects, self._to_write = self._to_write, []
        if not store.is_away:  # what cannot be written is lost, and the machine repeats it
            for effect in effects:
                store.write(effect)
            if store.change != self._change or self._retirements.is_over(self.now_s):
                self._read_versions()
        self.after(LOOK_S, self._look)

    def _read_versions(self) -> None:
        store = self.cluster.store
        self._change = store.change
        lines = {name: store.line(name) for name in fleet.LADDER}
        leaving = self._retirements.update(lines, self.now_s)
        self._service = Service(f"{self.name}/{store.change}/{sorted(leaving)}", lines, leaving)
        if any(each not in self._knowledge.variants for each in self._service.in_service):
            self._knowledge = store.read()
            self._handle(messages.FactsChanged(self._knowledge.facts, fleet.CLASSES))
        numbers = [trial.number for trial in self._service.trials]
        evidence = {each: store.evidence[each] for each in numbers if each in store.evidence}
        self._handle(messages.VersionsChanged(self._service, evidence, self.epoch_s))
        self._answer_all(self._waiting_versions, self._service)

    # -- the machine --------------------------------------------------------------------------

    def _handle(self, event: messages.ControlEvent) -> list[object]:
        effects = self.control.handle(event, self.now_s)
        is_large = isinstance(event, messages.FactsChanged)
        self.world.note(self.name, type(event) if is_large else event, effects)
        for effect in effects:
            self._carry_out(effect)
        return effects

    def _carry_out(self, effect: Any) -> None:
        if isinstance(effect, (LoadInstance, UnloadInstance, ResizeWorker)):
            orders = self._mailboxes[effect.worker_id]
            if effect not in orders:
                orders.append(effect)
        elif isinstance(effect, messages.WakeAt):
            wait_s = effect.at_s - self.now_s
            if wait_s <= 0.0:
                self._tick()
            elif self._wake is None:
                self._wake = self.after(wait_s, self._tick)
        elif isinstance(effect, messages.CallMember):
            self._call(effect.member_id)
        elif isinstance(effect, messages.ScalePool):
            if self.cluster.control_name == self.name:
                self.cluster.checks.check_scale(effect, self.epoch)
                self.cluster.serve.wanted[effect.device_class] = effect.workers
        elif isinstance(effect, messages.Advise):
            self._shares = {scope: dict(shares) for scope, shares in effect.shares}
        elif isinstance(effect, messages.NoteHistory):
            self.cluster.history += effect.entries
        elif isinstance(effect, messages.ForgetMember):
            self._drop(effect.member_id)
        elif isinstance(effect, messages.VersionEffect):
            self._to_write.append(effect)

    def _tick(self) -> None:
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        self.plan = self._handle(messages.Tick())
        self.cluster.checks.check_orders(self)
        if self.control.problems:
            self.world.fail("policy failed", self.control.problems)
        for name in [name for name, orders in self._mailboxes.items() if orders]:
            self._call(name)
