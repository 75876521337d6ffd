"""The store, and the control process as a thin driver of the control machine.

It says and does the same as ``live/control/control_loop`` and ``live/control/version_store``.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from modelless.controller.assembly import build_control
from modelless.controller.control.machine import Control
from modelless.controller.control.messages import (
    Advise,
    CallMember,
    ControlEvent,
    FactsChanged,
    ForgetMember,
    KeepEvidence,
    MemberLeft,
    MemberReport,
    MemberReported,
    NoteHistory,
    PromoteVersion,
    RollBackVersion,
    ScalePool,
    Tick,
    VersionsChanged,
    WakeAt,
)
from modelless.controller.control.served_versions import Service
from modelless.controller.device.messages import LoadInstance, Order, ResizeWorker, UnloadInstance
from modelless.controller.live.messages import Orders
from modelless.variants.registry.versions import Line, Trial, TrialRules
from modelless.variants.vocabulary import Placement
from tests.simtest import fleet
from tests.simtest.fleet import Knowledge, knowledge_of
from tests.simtest.schedule import settings_of
from tests.simtest.world import EPOCH_S, Process, Respond, Timer

if TYPE_CHECKING:
    from tests.simtest.cluster import Cluster

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
        self.began = 0
        self.evidence: dict[int, Mapping[str, Any]] = {}

    def read(self) -> Knowledge | None:
        """Return what is registered; None if the store is away."""
        return None if self.is_away else knowledge_of(self.newest, self._profiled)

    @property
    def known(self) -> Knowledge:
        """What is registered."""
        return knowledge_of(self.newest, self._profiled)

    def line(self, name: str) -> Line:
        """Return the versions of a name that are in service: the first unless it was changed."""
        return self.lines.get(name) or Line(name, 1)

    def set(self, line: Line) -> None:
        """Write a line."""
        self.change += 1
        self.lines[line.name] = line

    def promote(self, name: str, version: int) -> None:
        """Let a version be the current one, unless another one is on trial."""
        line = self.line(name)
        if line.current != version and (line.trial is None or line.trial.version == version):
            self.set(Line(name, version, (*line.earlier, line.current)))

    def roll_back(self, name: str) -> None:
        """Take the latest change of a line back."""
        line = self.line(name)
        if line.trial is not None:
            self.set(dataclasses.replace(line, trial=None))
        elif line.earlier:
            self.set(Line(name, line.earlier[-1], line.earlier[:-1]))

    def begin_trial(self, name: str, version: int, now_s: float) -> None:
        """Try a version on a part of the queries."""
        line = self.line(name)
        task = name.partition("/")[0]
        others = (each.trial for each in self.lines.values() if each.trial is not None)
        if line.current != version and all(each.task != task for each in others):
            trial = Trial(name, version, line.current, 0.4, self.change + 1, EPOCH_S + now_s, RULES)
            self.set(dataclasses.replace(line, trial=trial))

    def end_trial(self, trial: Trial, *, promoted: bool) -> None:
        """End a trial, unless somebody ended it before."""
        line = self.line(trial.name)
        if line.trial is not None and line.trial.number == trial.number:
            earlier = (*line.earlier, line.current)
            self.set(
                Line(line.name, trial.version, earlier)
                if promoted
                else dataclasses.replace(line, trial=None)
            )


class ControlProcess(Process):
    """One run of the control process.

    Args:
        cluster: where it is.
        name: of the process.

    Attributes:
        control: the machine; None until the store was read.
    """

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(cluster.world, name)
        self.cluster = cluster
        self.control: Control | None = None
        self.epoch = 0
        self.totals: Counter[str] = Counter()
        self.plan: list[object] = []  # the effects of the last tick
        self._mailboxes: dict[str, list[Order]] = {}
        self._shares: Mapping[str, Mapping[Placement, float]] = {}
        self._called: set[str] = set()
        self._waiting_calls: dict[str, list[Respond]] = {}
        self._waiting_versions: list[tuple[str, Respond]] = []
        self._departed: set[str] = set()
        self._wake: Timer | None = None
        self._service = Service()
        self._change = -1
        self._to_write: list[Any] = []

    def _begin(self) -> None:
        if self.control is not None:
            return
        store = self.cluster.store
        knowledge = store.read()
        if knowledge is None:
            raise StoreAwayError
        store.began += 1
        self.epoch = store.began
        settings = settings_of(self.cluster.setup, self.offset_s)
        preload = settings.residency.preload
        self.control = build_control(settings, fleet.CLASSES, preload, self.now_s)
        self._knowledge = knowledge
        self._handle(FactsChanged(knowledge.facts, fleet.CLASSES))
        self._read_versions()
        self._look()

    def answer(self, method: str, arguments: tuple[Any, ...], respond: Respond) -> None:
        """See ``ControlLoop.answer``."""
        try:
            getattr(self, f"_answer_{method}")(*arguments, respond)
        except StoreAwayError as error:
            respond(error)

    def _answer_exchange(self, report: MemberReport, respond: Respond) -> None:
        self._begin()
        assert self.control is not None
        name = report.member_id
        self._mailboxes.setdefault(name, [])
        self._count(report)
        self._handle(MemberReported(report))
        self._called.discard(name)
        orders, self._mailboxes[name] = tuple(self._mailboxes[name]), []
        control = self.control
        predecessor_id, lacking = control.succession(name)
        respond(
            Orders(
                orders,
                control.directory,
                self._shares,
                {"control": self.name, "epoch": self.epoch},
                control.busy_neighbours(name),
                (),
                control.starting_s,
                control.is_at_rest,
                control.is_settled(self.now_s),
                predecessor_id,
                lacking,
            )
        )

    def _answer_leave(self, report: MemberReport, respond: Respond) -> None:
        self._begin()
        self._drop(report.member_id)
        if report.member_id not in self._departed:
            self._departed.add(report.member_id)
            self._count(report)
            self._handle(MemberLeft(report))
        respond(True)

    def _answer_called(self, name: str, respond: Respond) -> None:
        if name in self._called:
            self._called.discard(name)
            respond(True)
            return
        waiting = self._waiting_calls.setdefault(name, [])
        waiting.append(respond)

        def give_up() -> None:
            if respond in waiting:
                waiting.remove(respond)
                respond(False)

        self.after(WATCH_CALLS_S, give_up)

    def _answer_versions(self, token: str, respond: Respond) -> None:
        self._begin()
        if self._service.token != token:
            respond(self._service)
            return
        waiting = (token, respond)
        self._waiting_versions.append(waiting)

        def give_up() -> None:
            if waiting in self._waiting_versions:
                self._waiting_versions.remove(waiting)
                respond(self._service)

        self.after(WATCH_VERSIONS_S, give_up)

    def _call(self, *names: str) -> None:
        for name in names:
            self._called.add(name)
            for respond in self._waiting_calls.pop(name, []):
                self._called.discard(name)
                respond(True)

    def _count(self, report: MemberReport) -> None:
        self.totals.update(report.outcomes)

    def _drop(self, name: str) -> None:
        self._mailboxes.pop(name, None)
        self._called.discard(name)

    # -- versions -----------------------------------------------------------------------------

    def _look(self) -> None:
        store = self.cluster.store
        effects, self._to_write = self._to_write, []
        if not store.is_away:  # what cannot be written is lost, and the machine repeats it
            for effect in effects:
                if isinstance(effect, KeepEvidence):
                    store.evidence[effect.trial.number] = effect.evidence
                else:
                    store.end_trial(effect.trial, promoted=isinstance(effect, PromoteVersion))
            if store.change != self._change:
                self._read_versions()
        self.after(LOOK_S, self._look)

    def _read_versions(self) -> None:
        store = self.cluster.store
        self._change = store.change
        lines = {name: store.line(name) for name in fleet.LADDER}
        self._service = Service(f"{self.name}/{store.change}", lines)
        newer = [each for each in self._service.in_service if each not in self._knowledge.variants]
        if newer:
            self._knowledge = store.known
            self._handle(FactsChanged(self._knowledge.facts, fleet.CLASSES))
        numbers = [trial.number for trial in self._service.trials]
        evidence = {each: store.evidence[each] for each in numbers if each in store.evidence}
        self._handle(VersionsChanged(self._service, evidence, self.epoch_s))
        waiting, self._waiting_versions = self._waiting_versions, []
        for _, respond in waiting:
            respond(self._service)

    # -- the machine --------------------------------------------------------------------------

    def _handle(self, event: ControlEvent) -> list[object]:
        assert self.control is not None
        effects = self.control.handle(event, self.now_s)
        is_large = isinstance(event, FactsChanged)
        self.world.note(self.name, type(event) if is_large else event, effects)
        for effect in effects:
            self._carry_out(effect)
        return list(effects)

    def _carry_out(self, effect: object) -> None:
        if isinstance(effect, (LoadInstance, UnloadInstance, ResizeWorker)):
            orders = self._mailboxes[effect.worker_id]
            if effect not in orders:
                orders.append(effect)
        elif isinstance(effect, WakeAt):
            self._wake_at(effect.at_s)
        elif isinstance(effect, CallMember):
            self._call(effect.member_id)
        elif isinstance(effect, ScalePool):
            if self.cluster.control_name == self.name:
                self.cluster.checks.check_scale(effect, self.epoch)
                self.cluster.serve.scale(effect.device_class, effect.workers)
        elif isinstance(effect, Advise):
            self._shares = {scope: dict(shares) for scope, shares in effect.shares}
        elif isinstance(effect, NoteHistory):
            self.cluster.history += effect.entries
        elif isinstance(effect, ForgetMember):
            self._drop(effect.member_id)
        elif isinstance(effect, (PromoteVersion, RollBackVersion, KeepEvidence)):
            self._to_write.append(effect)

    def _wake_at(self, at_s: float) -> None:
        wait_s = at_s - self.now_s
        if wait_s <= 0.0:
            self._tick()
        elif self._wake is None:
            self._wake = self.after(wait_s, self._tick)

    def _tick(self) -> None:
        assert self.control is not None
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        self.plan = self._handle(Tick())
        self.cluster.checks.check_orders(self)
        if self.control.problems:
            self.world.fail("policy failed", str(self.control.problems))
        self._call(*(name for name, orders in self._mailboxes.items() if orders))
