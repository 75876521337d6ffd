"""Plans what is loaded where, and how many workers there are.

The planner asks the policies, and keeps the limits that no policy may break: memory, one copy a
worker, no unload of an instance in use, bounds on the number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from modelless.common.errors import FOREIGN_ERRORS
from modelless.controller.control.messages import Advise, PlanEffect, Planned, PoliciesChanged
from modelless.controller.control.planned_memory import MeasuredMemory, PlannedMemory
from modelless.controller.control.pool_moves import PlanLimits, PoolPlanner
from modelless.controller.control.pools import GATEWAYS
from modelless.controller.control.prefetch import DueLoad, Prefetcher
from modelless.controller.device.messages import LoadInstance, UnloadInstance
from modelless.policies.advisory import Advisory
from modelless.policies.plan_quality import PlanQuality
from modelless.policies.reasons import Reason
from modelless.policies.scopes import in_scope, task_of
from modelless.policies.seams import EvictionPolicy, Forecaster, PlacementPolicy, ScalingPolicy
from modelless.policies.views import ClusterView, Instance, Targets, WorkerState
from modelless.variants.vocabulary import Placement

# Evictions that make room.


def choose_victims(ranked: Iterable[Instance], lacking_bytes: float) -> list[Instance]:
    """Return the instances to evict, in order, to free so many bytes; all, if that is too few.

    It goes down the ranking until there is room. Then it goes back, and spares each instance whose
    memory is not needed after all: a large one at the end may make room enough without small ones.

    Args:
        ranked: the cheapest to lose first.
        lacking_bytes: none is evicted if it is 0 or less.
    """
    leaving: list[Instance] = []
    for instance in ranked:
        if lacking_bytes <= 0:
            break
        leaving.append(instance)
        lacking_bytes -= instance.memory_bytes
    for instance in leaving[::-1]:
        if lacking_bytes + instance.memory_bytes <= 0:
            lacking_bytes += instance.memory_bytes
            leaving.remove(instance)
    return leaving


# The plan's shares for the gateways' selection policies.


class Adviser:
    """Checks the plan's shares and tells when they changed."""

    def __init__(self) -> None:
        self._told: tuple[tuple[str, tuple[tuple[Placement, float], ...]], ...] = ()

    def advice(
        self,
        view: ClusterView,
        given: Mapping[str, Mapping[Placement, float]],
        complain: Callable[[str], None],
    ) -> list[Advise]:
        """Return the shares if they changed. Those that make no sense are left out.

        Args:
            complain: called with each share that makes no sense.
        """
        known = {variant.variant_id for variant in view.variants}
        advice = []
        for scope, shares in given.items():
            sound = []
            for placement, share in shares.items():
                if (
                    isinstance(placement, Placement)
                    and placement.variant_id in known
                    and isinstance(share, (int, float))
                    and 0.0 <= share < math.inf
                ):
                    sound.append((placement, float(share)))
                else:
                    complain(f"shared {share!r:.80} to {placement!r:.80}")
            advice.append((scope, tuple(sound)))
        advised = tuple(advice)
        if advised == self._told:
            return []
        self._told = advised
        return [Advise(advised)]


__all__ = ["PlanLimits", "Planner"]

_Answer = TypeVar("_Answer")
_Key = TypeVar("_Key", bound=Hashable)
_NOTHING = Targets({}, {}, Reason.POLICY_FAILED)
_AS_PLANNED, _MOST_LETTERS = "as planned", 300


def _words(placement: Placement) -> str:
    return f"{placement.variant_id} on {placement.device_class}"


@dataclass(slots=True)
class _Draft:
    view: ClusterView
    wanted: Mapping[Placement, int]
    memory: PlannedMemory
    on_demand: bool
    effects: list[PlanEffect] = field(default_factory=list)

    def is_asked_in_vain(self, variant_id: str) -> bool:
        """Whether clients ask for a scope that nothing serves and that the variant could serve."""
        return any(self.memory.copies(scope) == 0 for scope in self._unmet_by(variant_id))

    def is_last_answer(self, variant_id: str, replacement_id: str, worker: WorkerState) -> bool:
        """Whether clients that just asked in vain would do so again with the replacement.

        Only those count that reach the worker: of a gateway's own device, its own clients.
        """
        return any(
            self.memory.copies(scope) == 1 and not in_scope(replacement_id, scope)
            for scope in self._unmet_by(variant_id)
            if worker.pool != GATEWAYS or scope in worker.unmet
        )

    def _unmet_by(self, variant_id: str) -> list[str]:
        """The scopes that clients asked for in vain and that the variant could serve."""
        unmet = self.view.unmet_per_s
        return [
            scope for scope, rate in unmet.items() if rate > 0.0 and in_scope(variant_id, scope)
        ]

    def within_reach_first(
        self, ranked: list[WorkerState], variant_id: str
    ) -> Iterable[WorkerState]:
        """Put those last that gateways whose clients ask for the variant in vain do not reach."""
        asking = [
            each
            for each in self.view.workers
            for scope, least_percent in each.unmet.items()
            if in_scope(variant_id, scope) and self.memory.is_accurate(variant_id, least_percent)
        ]
        if not asking:
            return ranked
        return sorted(
            ranked,
            key=lambda worker: sum(
                worker.pool == each.pool and worker.worker_id != each.worker_id for each in asking
            ),
        )

    def is_spare(self, instance: Instance, worker: WorkerState) -> bool:
        """Whether there are more copies of it than the plan wants."""
        placement = Placement(instance.variant_id, worker.device_class)
        return self.memory.count(placement) > self.wanted.get(placement, 0)

    def load(self, worker_id: str, variant_id: str, memory_bytes: int, reason: Reason) -> None:
        self.memory.load(worker_id, variant_id, memory_bytes)
        device_class = self.memory.worker(worker_id).device_class
        order = LoadInstance(worker_id, variant_id, reason, memory_bytes, device_class)
        self.effects.append(order)

    def unload(
        self, worker_id: str, variant_id: str, reason: Reason, for_variant_id: str = ""
    ) -> None:
        self.memory.unload(worker_id, variant_id)
        self.effects.append(UnloadInstance(worker_id, variant_id, reason, for_variant_id))


class Planner:
    """Makes one control machine's plans.

    Args:
        advisory: says what another scaling policy would have planned; None: nobody does.

    Attributes:
        problems: mistakes of policies in the last tick, for the log. The plan does without the
            answer of a policy that raises or answers nonsense.
        scaled: device classes whose number of workers the scaling policy decided on last.
        declined: variants wanted on demand in the last tick that the eviction policy found not
            worth what would have left for them.
    """

    def __init__(
        self,
        scaling: ScalingPolicy,
        placement: PlacementPolicy,
        eviction: EvictionPolicy,
        forecaster: Forecaster,
        limits: PlanLimits,
        advisory: Advisory[ScalingPolicy] | None = None,
    ) -> None:
        self.scaling = scaling
        self.placement = placement
        self.eviction = eviction
        self.forecaster = forecaster
        self.limits = limits
        self.advisory = advisory
        self.problems: list[str] = []
        self.scaled: frozenset[str] = frozenset()
        self._pool_planner = PoolPlanner(limits)
        self.declined: list[str] = []
        self._measured = MeasuredMemory()
        self._prefetcher = Prefetcher(forecaster)
        self._adviser = Adviser()
        self._quality: PlanQuality | None = None
        self._advised_s = -1

    def tick(self, view: ClusterView) -> list[PlanEffect]:
        """Return the effects of a plan for the view, to be carried out in order."""
        self.problems = []
        self.declined = []
        view = self._measured.apply_to(view)
        self._ask(self.eviction, lambda: self.eviction.observe(view), None)
        no_forecast: Mapping[str, float] = {}
        forecast_per_s = self._ask(self.forecaster, lambda: self._forecast(view), no_forecast)
        targets: object = self._ask(
            self.scaling, lambda: self.scaling.targets(view, forecast_per_s), _NOTHING
        )
        if not isinstance(targets, Targets):
            self._complain(self.scaling, f"returned {targets!r:.80}; allowed: Targets")
            targets = _NOTHING
        instances = self._counts(targets.instances, Placement)
        workers = self._counts(targets.workers, str)
        self.scaled = frozenset(workers)
        if self.advisory is not None:
            self._note_advice(self.advisory, view, forecast_per_s, targets)
        effects = self._pool_planner.effects(view, workers, targets.reason)
        effects += self._place(view, instances, targets.on_demand)
        return effects + self._advise(view, targets)

    def _note_advice(
        self,
        advisory: Advisory[ScalingPolicy],
        view: ClusterView,
        forecast_per_s: Mapping[str, float],
        targets: Targets,
    ) -> None:
        """Ask what another policy would have planned, at most once a second."""

        def ask(policy: ScalingPolicy) -> str:
            other = policy.targets(view, forecast_per_s)
            done, would = (
                {**{_words(each): n for each, n in it.instances.items()}, **it.workers}
                for it in (targets, other)
            )
            differing = (
                f"{would.get(name, 0)} and not {done.get(name, 0)} of {name}"
                for name in sorted(done | would)
                if done.get(name, 0) != would.get(name, 0)
            )
            return ", ".join(differing)[:_MOST_LETTERS] or _AS_PLANNED

        if math.floor(view.now_s) != self._advised_s:
            self._advised_s = math.floor(view.now_s)
            advisory.note(view.now_s, _AS_PLANNED, ask)

    def change(self, policies: PoliciesChanged) -> None:
        """Use these policies from the next tick on."""
        self.advisory = policies.advisory or self.advisory
        self.scaling = policies.scaling or self.scaling
        self.placement = policies.placement or self.placement
        self.eviction = policies.eviction or self.eviction
        if policies.forecast is not None:
            self.forecaster = policies.forecast
            self._prefetcher = Prefetcher(policies.forecast)

    def _forecast(self, view: ClusterView) -> Mapping[str, float]:
        self.forecaster.observe(view.now_s, view.arrivals_per_s)
        return self.forecaster.forecast(self.limits.forecast_horizon_s)

    def _advise(self, view: ClusterView, targets: Targets) -> list[PlanEffect]:
        """Return the plan's shares for gateways, and its quality, if they are new."""
        nothing: dict[str, dict[Placement, float]] = {}
        shares = self._ask(
            self.scaling,
            lambda: {scope: dict(shares) for scope, shares in targets.shares.items()},
            nothing,
        )
        complain = partial(self._complain, self.scaling)
        effects: list[PlanEffect] = [*self._adviser.advice(view, shares, complain)]
        quality = targets.quality
        if isinstance(quality, PlanQuality) and quality is not self._quality:
            effects.append(Planned(targets.reason, quality))
        self._quality = quality
        return effects

    # -- instances ----------------------------------------------------------------------------

    def _place(
        self, view: ClusterView, wanted: Mapping[Placement, int], on_demand: bool
    ) -> list[PlanEffect]:
        draft = _Draft(view, wanted, PlannedMemory(view), on_demand is True)
        missing: list[DueLoad] = []
        if draft.on_demand:  # else all that is to be held is planned
            missing = self._ask(self.forecaster, lambda: self._prefetcher.missing(view), missing)
        self._relieve(draft)
        for placement, count in wanted.items():
            if count > 0 and draft.is_asked_in_vain(placement.variant_id):
                self._add(placement, 1, draft, set(), in_vain=True)
        self._bring_home(draft)
        for due in missing:
            if draft.memory.copies(due.scope) == 0:
                self._ask(self.forecaster, partial(self._put_ahead, due, draft), None)
        # Later, less important instances do not overtake one without room. A new version may still
        # take the place of an earlier one.
        full: set[str] = set()
        for placement, count in wanted.items():
            self._add(placement, count - draft.memory.count(placement), draft, full, in_vain=False)
        return draft.effects

    def _bring_home(self, draft: _Draft) -> None:
        """Load on a gateway's device what only other gateways' devices hold.

        It loads what the gateway's clients asked for and, where there is room, a wanted variant of
        each other task: a gateway without one is not ready, so nobody asks it. The eviction policy
        cannot decline such a load: it would count the copies that these clients do not reach.
        """
        workers = draft.view.workers
        for worker in workers:
            for scope, min_accuracy_percent in worker.unmet.items():
                self._bring(worker, scope, min_accuracy_percent, draft)
        tasks = {task_of(each.variant_id) for each, count in draft.wanted.items() if count}
        for worker in workers:
            asked = {task_of(scope) for scope in worker.unmet}
            for task in sorted(tasks - asked) if worker.pool == GATEWAYS else ():
                self._bring(worker, task, None, draft)

    def _bring(
        self, worker: WorkerState, scope: str, min_accuracy_percent: float | None, draft: _Draft
    ) -> None:
        """Load one variant of the scope on the worker if nothing in its reach serves the scope.

        Args:
            worker: a gateway's device.
            scope: a task, or a part of one.
            min_accuracy_percent: what clients asked for; None if they did not: then what is wanted
                comes, and nothing leaves for it.
        """
        is_asked = min_accuracy_percent is not None
        for placement in draft.memory.out_of_reach(worker, scope, min_accuracy_percent or 0.0):
            needed_bytes = draft.memory.needed_bytes(placement)
            home = draft.memory.worker(worker.worker_id)
            if needed_bytes is None:
                continue
            fits = draft.wanted.get(placement, 0) > 0 and needed_bytes <= home.free_bytes
            comes = is_asked or fits
            if comes and self._put(
                placement, home, needed_bytes, draft, is_asked, may_be_declined=False
            ):
                return

    def _relieve(self, draft: _Draft) -> None:
        """Evict where loads took more than they were expected to, spare instances first."""
        for worker in draft.view.workers:
            if worker.free_bytes >= 0:
                continue
            movable = [i for i in worker.instances if not (i.in_use or i.pinned)]
            for instance in choose_victims(
                self._in_order(movable, worker, draft), -worker.free_bytes
            ):
                draft.unload(worker.worker_id, instance.variant_id, Reason.OVER_BUDGET)

    def _add(
        self, placement: Placement, missing: int, draft: _Draft, full: set[str], *, in_vain: bool
    ) -> None:
        """Load the variant into as many workers more as are ``missing``, room allowing.

        Workers in ``full`` are left out. Those that have no room now but may have it later are
        added to it, unless the load was declined: no other load waits for a declined one.
        """
        needed_bytes = draft.memory.needed_bytes(placement) if missing > 0 else None
        if needed_bytes is None:
            return
        without_room = []
        ranked = self._ranked(placement, needed_bytes, draft.memory, full)
        for worker in draft.within_reach_first(ranked, placement.variant_id):
            if self._put(placement, worker, needed_bytes, draft, in_vain):
                missing -= 1
                if missing == 0:
                    return
            elif needed_bytes <= _most_bytes(worker) and placement.variant_id not in self.declined:
                without_room.append(worker.worker_id)
        full.update(without_room)

    def _put(
        self,
        placement: Placement,
        worker: WorkerState,
        needed_bytes: int,
        draft: _Draft,
        in_vain: bool,
        may_be_declined: bool = True,
    ) -> bool:
        """Load the variant into the worker, after evictions if need be; False if it does not fit.

        Only spare instances leave, unless clients ask in vain for what is to be loaded: then any
        idle one may that is not itself all that others have just asked for. They leave in the
        eviction policy's order, but spare ones before others.

        Args:
            in_vain: whether clients ask for it and nothing that they reach serves them.
            may_be_declined: whether the eviction policy is asked about a load on demand.
        """
        lacking_bytes = needed_bytes - worker.free_bytes
        victims: list[Instance] = []
        if lacking_bytes > 0:
            movable = [
                instance
                for instance in worker.instances
                if not (instance.in_use or instance.pinned)
                and (in_vain or draft.is_spare(instance, worker))
                and not draft.is_last_answer(instance.variant_id, placement.variant_id, worker)
            ]
            victims = choose_victims(self._in_order(movable, worker, draft), lacking_bytes)
        if sum(victim.memory_bytes for victim in victims) < lacking_bytes:
            return False
        is_asked_about = victims and may_be_declined and draft.on_demand
        if is_asked_about and not self._admits(placement, worker, victims, draft):
            return False
        for victim in victims:
            draft.unload(
                worker.worker_id, victim.variant_id, Reason.ROOM_NEEDED, placement.variant_id
            )
        if placement.variant_id in self.declined:  # on another worker
            self.declined.remove(placement.variant_id)
        is_ready = draft.memory.is_ready(placement.variant_id)
        unasked = Reason.ANOTHER_COPY if is_ready else Reason.WANTED
        reason = Reason.DEMAND if in_vain else unasked
        draft.load(worker.worker_id, placement.variant_id, needed_bytes, reason)
        return True

    def _put_ahead(self, due: DueLoad, draft: _Draft) -> None:
        """Load what is due into a worker that loads nothing else, if it is worth its victims."""
        needed_bytes = draft.memory.needed_bytes(due.placement)
        if needed_bytes is None:
            return
        for worker in self._ranked(due.placement, needed_bytes, draft.memory, set()):
            if any(each.is_loading for each in worker.instances):
                continue
            movable = [each for each in worker.instances if not (each.in_use or each.pinned)]
            ranked = self._ranked_for_eviction(movable, draft.view) if movable else []
            victims: list[Instance] = []
            free_bytes, queries = worker.free_bytes, 0.0
            for instance in ranked:
                if free_bytes >= needed_bytes:
                    break
                cost = self._prefetcher.cost(instance, due.until_s)
                if queries + cost < due.queries:
                    victims.append(instance)
                    free_bytes += instance.memory_bytes
                    queries += cost
            if free_bytes < needed_bytes:
                continue
            name = due.placement.variant_id
            for victim in choose_victims(victims, needed_bytes - worker.free_bytes):
                draft.unload(worker.worker_id, victim.variant_id, Reason.ROOM_NEEDED, name)
            draft.load(worker.worker_id, name, needed_bytes, Reason.FORECAST)
            return

    def _admits(
        self, placement: Placement, worker: WorkerState, victims: Sequence[Instance], draft: _Draft
    ) -> bool:
        """Whether the load is worth its victims: to the eviction policy, and to clients that soon
        want them."""
        newcomer = draft.memory.newcomer(placement, worker.worker_id)
        is_worse = self._ask(
            self.forecaster, lambda: self._prefetcher.is_worse(newcomer, victims, draft.view), False
        )
        admitted = not is_worse and self._ask(
            self.eviction,
            lambda: bool(self.eviction.admits(newcomer, tuple(victims), draft.view)),
            True,
        )
        if not admitted and placement.variant_id not in self.declined:
            self.declined.append(placement.variant_id)
        return admitted

    def _ranked(
        self, placement: Placement, needed: int, memory: PlannedMemory, full: Container[str]
    ) -> list[WorkerState]:
        """The workers as the placement policy ranks them, without those that it made up."""
        given = memory.without(placement, full)
        if not given:
            return []
        answer = self._ask(
            self.placement,
            lambda: list(self.placement.rank(placement.variant_id, needed, given)),
            list(given),
        )
        left = {worker.worker_id: worker for worker in given}
        ranked = [
            left.pop(worker.worker_id)
            for worker in answer
            if isinstance(worker, WorkerState) and worker.worker_id in left
        ]
        if len(ranked) != len(answer):
            self._complain(self.placement, "ranked workers that it was not given, or twice")
        return ranked

    def _in_order(
        self, movable: list[Instance], worker: WorkerState, draft: _Draft
    ) -> list[Instance]:
        """In the eviction policy's order, but spare ones before others."""
        ranked = self._ranked_for_eviction(movable, draft.view) if movable else []
        return sorted(ranked, key=lambda instance: not draft.is_spare(instance, worker))

    def _ranked_for_eviction(self, movable: list[Instance], view: ClusterView) -> list[Instance]:
        """The eviction policy's permutation of ``movable``, repaired where it is none."""
        answer = self._ask(
            self.eviction, lambda: list(self.eviction.rank(tuple(movable), view)), movable
        )
        left = {instance.variant_id: instance for instance in movable}
        ranked = [
            left.pop(instance.variant_id)
            for instance in answer
            if isinstance(instance, Instance) and instance.variant_id in left
        ]
        if left or len(ranked) != len(answer):
            self._complain(self.eviction, "did not return a permutation of what it was given")
        return ranked + list(left.values())

    # -- policies' mistakes -------------------------------------------------------------------

    def _ask(self, policy: object, ask: Callable[[], _Answer], otherwise: _Answer) -> _Answer:
        try:
            return ask()
        except FOREIGN_ERRORS as error:  # whatever a policy raises, the plan goes on
            self._complain(policy, f"raised {type(error).__name__}: {error!s:.200}")
            return otherwise

    def _counts(self, counts: Mapping[_Key, int], key_type: type[_Key]) -> dict[_Key, int]:
        """The entries of ``counts`` that can be carried out."""
        sound: dict[_Key, int] = {}
        nothing: list[tuple[_Key, int]] = []
        for key, count in self._ask(self.scaling, lambda: list(counts.items()), nothing):
            if isinstance(key, key_type) and type(count) is int and count >= 0:
                sound[key] = count
            else:
                self._complain(self.scaling, f"wanted {count!r:.80} of {key!r:.80}")
        return sound

    def _complain(self, policy: object, problem: str) -> None:
        self.problems.append(f"{type(policy).__qualname__} {problem}")


def _most_bytes(worker: WorkerState) -> int:
    """The memory that could become free on the worker."""
    return worker.memory_bytes - sum(i.memory_bytes for i in worker.instances if i.pinned)
