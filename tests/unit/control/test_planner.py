"""The planner: what no policy may break, and what is served first when memory is short."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from modelless.controller.control.messages import PlanEffect, Planned, ScalePool
from modelless.controller.control.planner import PlanLimits, Planner
from modelless.controller.device.messages import LoadInstance, UnloadInstance
from modelless.policies.eviction.least_recently_used import LeastRecentlyUsed
from modelless.policies.forecast.last_value import LastValue
from modelless.policies.placement.most_free_memory import MostFreeMemory
from modelless.policies.plan_quality import PlanQuality, PlanSource
from modelless.policies.reasons import Reason
from modelless.policies.scaling.fixed import Fixed
from modelless.policies.seams import EvictionPolicy, Forecaster, PlacementPolicy, ScalingPolicy
from modelless.policies.views import ClusterView, Instance, Targets, VariantFacts, WorkerState
from modelless.variants.vocabulary import Placement
from tests.unit.dispatch.world import CPU, GPU

A, B, C, D = (f"t/{name}/x@1" for name in "abcd")
OTHER = "other/o/x@1"


class Wants(ScalingPolicy):
    """Wants what a test says."""

    def __init__(self, *wanted: str | tuple[str, int], workers: Mapping[str, int] | None = None):
        self.instances = dict((w, 1) if isinstance(w, str) else w for w in wanted)
        self.workers = dict(workers or {})

    def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
        instances = {Placement(name, "cpu-1"): count for name, count in self.instances.items()}
        return Targets(instances, self.workers, Reason.FIXED_SIZE)


class InOrder(EvictionPolicy):
    """Evicts in the order a test says."""

    def __init__(self, *order: str) -> None:
        self.order = order

    def rank(self, residents: Sequence[Instance], view: ClusterView) -> Sequence[Instance]:
        return sorted(residents, key=lambda instance: self.order.index(instance.variant_id))


def facts(sizes: Mapping[str, float] | None = None) -> tuple[VariantFacts, ...]:
    """Variants that take 10 bytes on a CPU, unless told otherwise."""
    sizes = {A: 10.0, B: 10.0, C: 10.0, D: 10.0, OTHER: 10.0} | dict(sizes or {})
    return tuple(
        VariantFacts(
            name, name.split("/")[0], 75.0, {"cpu-1": size}, {"cpu-1": 0.5}, {"cpu-1": 0.01}
        )
        for name, size in sizes.items()
    )


def held(
    variant_id: str, worker_id: str = "w0", memory_bytes: int = 10, **changes: Any
) -> Instance:
    values: dict[str, Any] = {"load_s": 0.5, "last_used_s": 0.0, "use_count": 0} | changes
    return Instance(worker_id, variant_id, memory_bytes, **values)


def worker(worker_id: str, memory_bytes: int, *instances: Instance) -> WorkerState:
    return WorkerState(
        worker_id,
        "cpu-1",
        memory_bytes,
        tuple(replace(instance, worker_id=worker_id) for instance in instances),
    )


def view(
    *workers: WorkerState,
    sizes: Mapping[str, float] | None = None,
    unmet: Mapping[str, float] | None = None,
    arrivals: Mapping[str, float] | None = None,
) -> ClusterView:
    return ClusterView(
        100.0, {"cpu-1": CPU, "h200": GPU}, workers, facts(sizes), arrivals or {}, unmet or {}
    )


def planner(
    scaling: ScalingPolicy | None = None,
    eviction: EvictionPolicy | None = None,
    placement: PlacementPolicy | None = None,
    forecaster: Forecaster | None = None,
    limits: PlanLimits | None = None,
) -> Planner:
    return Planner(
        scaling or Fixed(),
        placement or MostFreeMemory(),
        eviction or LeastRecentlyUsed(),
        forecaster or LastValue(),
        limits or PlanLimits({}, {}),
    )


def load(variant_id: str, worker_id: str = "w0", memory_bytes: int = 10) -> LoadInstance:
    return LoadInstance(worker_id, variant_id, Reason.WANTED, memory_bytes, "cpu-1")


def cold(variant_id: str) -> LoadInstance:
    """Loaded because clients asked for it in vain."""
    return LoadInstance("w0", variant_id, Reason.DEMAND, 10, "cpu-1")


def unload(variant_id: str, for_variant_id: str, worker_id: str = "w0") -> UnloadInstance:
    return UnloadInstance(worker_id, variant_id, Reason.ROOM_NEEDED, for_variant_id)


def carried_out(before: ClusterView, effects: Sequence[PlanEffect]) -> ClusterView:
    """The view after a device has done all it was told, in order; checks memory at each step."""
    sizes = {variant.variant_id: variant.memory_bytes for variant in before.variants}
    workers = {state.worker_id: state for state in before.workers}
    for effect in effects:
        if isinstance(effect, ScalePool):
            continue
        state = workers[effect.worker_id]
        names = [instance.variant_id for instance in state.instances]
        if isinstance(effect, LoadInstance):
            assert effect.variant_id not in names, "loaded twice"
            size = int(sizes[effect.variant_id]["cpu-1"])
            assert size <= state.free_bytes, "more than there is"
            arriving = held(effect.variant_id, effect.worker_id, size, last_used_s=before.now_s)
            instances = (*state.instances, arriving)
        else:
            (gone,) = [i for i in state.instances if i.variant_id == effect.variant_id]
            assert not gone.in_use
            assert not gone.pinned
            instances = tuple(i for i in state.instances if i is not gone)
        workers[effect.worker_id] = replace(state, instances=instances)
    return replace(before, workers=tuple(workers.values()))


# -- loading ----------------------------------------------------------------------------------


def test_what_is_wanted_is_loaded() -> None:
    assert planner(Wants(A, B)).tick(view(worker("w0", 100))) == [load(A), load(B)]


def test_what_serves_elsewhere_is_loaded_as_another_copy() -> None:
    seen = view(worker("w0", 100, held(A), held(B, in_use=True)), worker("w1", 100))
    assert planner(Wants((A, 2), (B, 2))).tick(seen) == [
        LoadInstance("w1", A, Reason.ANOTHER_COPY, 10, "cpu-1"),
        load(B, "w1"),  # nobody can use the first one yet
    ]


def test_what_is_there_is_not_loaded_again() -> None:
    assert planner(Wants(A, B)).tick(view(worker("w0", 100, held(A)))) == [load(B)]


def test_what_nobody_wants_stays_while_there_is_room() -> None:
    assert planner(Wants(A)).tick(view(worker("w0", 100, held(A), held(D)))) == []


def test_the_first_are_served_first_when_memory_is_short() -> None:
    assert planner(Wants(C, A, B)).tick(view(worker("w0", 25))) == [load(C), load(A)]


def test_a_later_smaller_one_does_not_overtake() -> None:
    """Or what matters more would wait for ever for the room that it takes."""
    world = view(worker("w0", 25, held(A, in_use=True)), sizes={B: 20.0, C: 5.0})
    assert planner(Wants(A, B, C)).tick(world) == []


def test_a_new_version_takes_its_predecessor_s_place_before_what_has_no_room() -> None:
    new = A.replace("@1", "@2")
    world = view(worker("w0", 25, held(A), held(C)), sizes={B: 20.0, new: 10.0})
    assert planner(Wants(B, new, C)).tick(world) == [unload(A, new), load(new)]


def test_what_could_never_fit_does_not_stand_in_the_way() -> None:
    world = view(worker("w0", 25), sizes={B: 1000.0})
    assert planner(Wants(A, B, C)).tick(world) == [load(A), load(C)]


def test_what_could_only_fit_without_what_is_pinned_never_fits() -> None:
    world = view(worker("w0", 40, held(D, pinned=True)), sizes={B: 31.0})
    assert planner(Wants(A, B, C)).tick(world) == [load(A), load(C)]


@pytest.mark.parametrize("size", [math.inf, math.nan])
def test_a_variant_of_unknown_size_is_not_loaded(size: float) -> None:
    world = view(worker("w0", 25), sizes={A: size})
    assert planner(Wants(A, B)).tick(world) == [load(B)]


def test_a_variant_that_cannot_run_there_or_is_unknown_is_not_loaded() -> None:
    class Odd(Wants):
        def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
            placements = [
                Placement(A, "h200"),
                Placement("t/z/x@1", "cpu-1"),
                Placement(B, "cpu-1"),
            ]
            return Targets(dict.fromkeys(placements, 1), {}, Reason.FIXED_SIZE)

    assert planner(Odd()).tick(view(worker("w0", 25))) == [load(B)]


def test_a_fraction_of_a_byte_counts_as_one() -> None:
    assert planner(Wants(A)).tick(view(worker("w0", 10), sizes={A: 10.2})) == []


def test_an_instance_that_is_still_loading_takes_its_room() -> None:
    """It reports no memory yet; loading others into it would overfill the device."""
    loading = held(A, memory_bytes=0, in_use=True)
    assert planner(Wants(A, B, C)).tick(view(worker("w0", 25, loading))) == [load(B)]


# -- workers ----------------------------------------------------------------------------------


def test_instances_go_to_the_worker_with_most_room() -> None:
    world = view(worker("w0", 50, held(D)), worker("w1", 100), worker("w2", 60))
    assert planner(Wants((A, 2))).tick(world) == [load(A, "w1"), load(A, "w2")]


def test_one_copy_a_worker() -> None:
    effects = planner(Wants((A, 5))).tick(view(worker("w0", 100), worker("w1", 100)))
    assert effects == [load(A, "w0"), load(A, "w1")]


def test_where_the_best_worker_has_no_room_the_next_is_tried() -> None:
    busy = [held(name, in_use=True, memory_bytes=5) for name in (B, C)]
    world = view(worker("w0", 19, *busy), worker("w1", 18, held(D)))
    assert planner(Wants(A, B, C)).tick(world) == [unload(D, A, "w1"), load(A, "w1")]


def test_a_worker_too_full_for_what_fits_elsewhere_is_not_closed_to_others() -> None:
    """``A`` fits nowhere on w0 now, but on w1: w0 stays open for ``B``."""
    world = view(worker("w0", 25, held(C, in_use=True)), worker("w1", 20, held(D)), sizes={A: 20.0})
    effects = planner(Wants(A, B, C)).tick(world)
    assert effects == [unload(D, A, "w1"), load(A, "w1", 20), load(B, "w0")]


def test_a_copy_in_excess_may_leave() -> None:
    world = view(worker("w0", 10, held(A)), worker("w1", 10, held(A)))
    effects = planner(Wants((A, 1), (B, 1))).tick(world)
    assert effects == [unload(A, B, "w0"), load(B, "w0")]


# -- evicting ---------------------------------------------------------------------------------


def test_what_nobody_wants_leaves_for_what_is_wanted() -> None:
    world = view(worker("w0", 20, held(C, last_used_s=5.0), held(D, last_used_s=9.0)))
    assert planner(Wants(A)).tick(world) == [unload(C, A), load(A)]


def test_evictions_follow_the_policy_and_end_when_there_is_room() -> None:
    world = view(worker("w0", 30, held(B), held(C), held(D)), sizes={A: 15.0})
    assert planner(Wants(A), InOrder(D, B, C)).tick(world) == [
        unload(D, A),
        unload(B, A),
        load(A, memory_bytes=15),
    ]
    assert planner(Wants(A), InOrder(C, D, B)).tick(world) == [
        unload(C, A),
        unload(D, A),
        load(A, memory_bytes=15),
    ]


def test_nothing_leaves_if_even_all_of_it_would_not_do() -> None:
    world = view(worker("w0", 30, held(C), held(D, in_use=True)), sizes={A: 25.0})
    assert planner(Wants(A)).tick(world) == []


@pytest.mark.parametrize("changes", [{"in_use": True}, {"pinned": True}])
def test_what_is_in_use_or_pinned_never_leaves(changes: dict[str, bool]) -> None:
    world = view(
        worker("w0", 20, held(C, **changes), held(D, **changes)), unmet={"t": 5.0, "other": 9.0}
    )
    assert planner(Wants(A, B, OTHER)).tick(world) == []


def test_what_is_wanted_does_not_leave_for_what_else_is_wanted() -> None:
    world = view(worker("w0", 20, held(A), held(B)))
    assert planner(Wants(C, A, B)).tick(world) == []


def test_what_clients_ask_for_in_vain_evicts_what_is_idle() -> None:
    world = view(worker("w0", 20, held(A, last_used_s=3.0), held(B)), unmet={"other": 2.0})
    assert planner(Wants(A, B, OTHER)).tick(world) == [unload(B, OTHER), cold(OTHER)]


def test_even_where_something_more_important_has_no_room() -> None:
    world = view(worker("w0", 20, held(A), held(B)), unmet={"other": 2.0})
    effects = planner(Wants(A, B, C, OTHER), InOrder(B, A)).tick(world)
    assert effects == [unload(B, OTHER), cold(OTHER)]


def test_what_nobody_wants_leaves_before_what_is_wanted() -> None:
    world = view(worker("w0", 20, held(A), held(D)), unmet={"other": 2.0})
    effects = planner(Wants(A, OTHER), InOrder(A, D)).tick(world)
    assert effects == [unload(D, OTHER), cold(OTHER)]


def test_one_variant_is_enough_for_clients_that_ask_in_vain() -> None:
    """Not every variant of the task at the cost of every other task."""
    instances = [held(OTHER), held("other/p/x@1"), held("other/q/x@1")]
    world = view(worker("w0", 30, *instances), unmet={"t": 5.0})
    wanted = Wants(*(i.variant_id for i in instances), A, B, C)
    effects = planner(wanted).tick(world)
    assert [effect for effect in effects if isinstance(effect, LoadInstance)] == [cold(A)]
    assert len(effects) == 2


@pytest.mark.parametrize(
    ("scope", "loaded"),
    [("t", A), ("t/b", B), ("t/b/x", B), ("t/c/x@1", C), ("t/b/x@2", None), ("tt", None)],
)
def test_the_scope_that_is_asked_for_in_vain_says_what_is_loaded(
    scope: str, loaded: str | None
) -> None:
    world = view(worker("w0", 10, held(OTHER)), unmet={scope: 1.0})
    effects = planner(Wants(OTHER, A, B, C)).tick(world)
    assert effects == ([unload(OTHER, loaded), cold(loaded)] if loaded else [])


def test_no_demand_is_no_demand() -> None:
    world = view(worker("w0", 10, held(A)), unmet={"other": 0.0})
    assert planner(Wants(A, OTHER)).tick(world) == []


# -- from tick to tick ------------------------------------------------------------------------


def test_an_unchanged_view_brings_nothing_new() -> None:
    sizes = {A: 12.0, B: 9.0, C: 14.0}
    for memory_bytes in range(5, 60, 5):
        for unmet in ({}, {"other": 3.0}, {"t": 1.0}):
            world = view(
                worker("w0", memory_bytes, *([held(D)] if memory_bytes >= 10 else [])),
                worker("w1", memory_bytes + 7),
                sizes=sizes,
                unmet=unmet,
            )
            decides = planner(Wants((A, 2), (B, 1), (C, 2), OTHER))
            world = carried_out(world, decides.tick(world))
            assert decides.tick(world) == []


def test_random_worlds_keep_the_rules() -> None:
    rng = np.random.default_rng(0)
    names = [f"{task}/m{number}/x@1" for task in ("t", "u") for number in range(6)]
    effects_seen = set()
    for _ in range(300):
        sizes = {name: float(rng.integers(1, 40)) for name in names}
        workers = []
        for number in range(int(rng.integers(1, 4))):
            memory_bytes, instances = int(rng.integers(10, 120)), []
            for name in rng.permutation(names):
                used = sum(instance.memory_bytes for instance in instances)
                if rng.random() < 0.5 and used + sizes[name] <= memory_bytes:
                    instances.append(
                        held(
                            str(name),
                            memory_bytes=int(sizes[name]),
                            last_used_s=float(rng.integers(100)),
                            in_use=bool(rng.random() < 0.2),
                            pinned=bool(rng.random() < 0.1),
                        )
                    )
            workers.append(worker(f"w{number}", memory_bytes, *instances))
        wanted = [(str(n), int(rng.integers(0, 4))) for n in rng.permutation(names)[:8]]
        unmet = {"t": 1.0} if rng.random() < 0.3 else {}
        world = view(*workers, sizes=sizes, unmet=unmet)
        decides = planner(Wants(*wanted))
        effects = decides.tick(world)
        after = carried_out(world, effects)  # memory, use and pins are checked there
        assert decides.tick(after) == []
        assert decides.problems == []
        effects_seen |= {type(effect) for effect in effects}
    assert effects_seen == {LoadInstance, UnloadInstance}


# -- pools ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "count"), [(0, 1), (1, 1), (2, None), (3, 3), (99, 4), (-5, None)]
)
def test_pools_stay_within_their_bounds(wanted: int, count: int | None) -> None:
    limits = PlanLimits({"cpu-1": 1}, {"cpu-1": 4})
    world = view(worker("w0", 10), worker("w1", 10))
    effects = planner(Wants(workers={"cpu-1": wanted}), limits=limits).tick(world)
    expected = [] if count is None else [ScalePool("cpu-1", count, Reason.FIXED_SIZE)]
    assert effects == expected


def test_a_class_without_bounds_is_scaled_as_wanted() -> None:
    effects = planner(Wants(workers={"h200": 2, "no-such-class": 5})).tick(view())
    assert effects == [ScalePool("h200", 2, Reason.FIXED_SIZE)]


def test_a_class_that_is_not_named_is_left_alone() -> None:
    limits = PlanLimits({"cpu-1": 3}, {"cpu-1": 4})
    assert planner(Wants(), limits=limits).tick(view(worker("w0", 10))) == []


# -- the built-in scaling policy --------------------------------------------------------------


def test_fixed_wants_the_frontier_first_on_every_worker() -> None:
    def fact(name: str, accuracy: float, latency_s: float) -> VariantFacts:
        return VariantFacts(
            name, "t", accuracy, {"cpu-1": 10.0}, {"cpu-1": 1.0}, {"cpu-1": latency_s}
        )

    world = replace(
        view(worker("w0", 1000), worker("w1", 20)),
        variants=(
            fact(A, 80.0, 0.04),
            fact(B, 70.0, 0.05),
            fact(C, 70.0, 0.01),
            fact(D, 80.0, 0.04),
        ),
    )
    wanted = Fixed().targets(world, {})
    assert list(wanted.instances.items()) == [
        (Placement(name, "cpu-1"), 2) for name in (C, A, D, B)
    ]
    assert wanted.reason is Reason.FIXED_SIZE
    assert list(Fixed(keep_dominated=False).targets(world, {}).instances) == [
        Placement(name, "cpu-1") for name in (C, A, D)
    ]
    effects = planner(Fixed()).tick(world)
    assert [e for e in effects if e.worker_id == "w1"] == [load(C, "w1"), load(A, "w1")]  # type: ignore[union-attr]


def test_fixed_leaves_each_task_its_frontier() -> None:
    world = view(worker("w0", 1000))
    slow = tuple(
        replace(fact, latency_s={"cpu-1": 9.0}, accuracy_percent=10.0)
        if fact.variant_id == OTHER
        else fact
        for fact in world.variants
    )
    wanted = Fixed(keep_dominated=False).targets(replace(world, variants=slow), {})
    assert Placement(OTHER, "cpu-1") in wanted.instances


# -- policies' mistakes -----------------------------------------------------------------------


class Raises(ScalingPolicy, PlacementPolicy, EvictionPolicy, Forecaster):
    def targets(self, *_: Any) -> Any:
        raise ZeroDivisionError("a bug")

    rank = observe = forecast = targets  # type: ignore[assignment]


class Answers(ScalingPolicy, PlacementPolicy, EvictionPolicy, Forecaster):
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def targets(self, *_: Any) -> Any:
        return self.answer

    rank = observe = forecast = targets  # type: ignore[assignment]


def test_a_scaling_policy_that_raises_changes_nothing() -> None:
    decides = planner(Raises())
    assert decides.tick(view(worker("w0", 10, held(A)))) == []
    assert decides.problems == ["Raises raised ZeroDivisionError: a bug"]


@pytest.mark.parametrize(
    "answer",
    [
        None,
        Targets(None, None, Reason.FIXED_SIZE),  # type: ignore[arg-type]
        Targets({"a": 1}, {1: 1}, Reason.FIXED_SIZE),  # type: ignore[dict-item]
        Targets({Placement(A, "cpu-1"): 1.5}, {"cpu-1": None}, Reason.FIXED_SIZE),  # type: ignore[dict-item]
        Targets({Placement(A, "cpu-1"): -1}, {"cpu-1": True}, Reason.FIXED_SIZE),
        Targets({Placement(A, "cpu-1"): math.nan}, {"cpu-1": math.inf}, Reason.FIXED_SIZE),  # type: ignore[dict-item]
    ],
)
def test_targets_that_make_no_sense_change_nothing(answer: Any) -> None:
    decides = planner(Answers(answer))
    assert decides.tick(view(worker("w0", 100, held(B)))) == []
    assert all(problem.startswith("Answers ") for problem in decides.problems)
    assert decides.problems


def test_the_sound_part_of_targets_is_carried_out() -> None:
    targets = Targets(
        {Placement(A, "cpu-1"): "two", Placement(B, "cpu-1"): 1},  # type: ignore[dict-item]
        {},
        Reason.FIXED_SIZE,
    )
    decides = planner(Answers(targets))
    assert decides.tick(view(worker("w0", 100))) == [load(B)]
    assert len(decides.problems) == 1


def test_a_forecaster_that_raises_is_done_without() -> None:
    decides = planner(Wants(A), forecaster=Raises())
    assert decides.tick(view(worker("w0", 100))) == [load(A)]
    assert len(decides.problems) == 1


def test_a_placement_policy_that_raises_is_done_without() -> None:
    decides = planner(Wants(A), placement=Raises())
    assert decides.tick(view(worker("w0", 100), worker("w1", 200))) == [load(A, "w0")]
    assert len(decides.problems) == 1


@pytest.mark.parametrize(
    "answer",
    [None, [None], ["w0"], [worker("stranger", 1000)], [worker("w0", 100), worker("w0", 100)] * 2],
)
def test_a_placement_that_makes_no_sense_overfills_nothing(answer: Any) -> None:
    decides = planner(Wants((A, 5)), placement=Answers(answer))
    world = view(worker("w0", 10))
    carried_out(world, decides.tick(world))
    assert decides.problems


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        [None],
        [held(A), held(A)],
        [held(D, in_use=True)],
        [held(C, in_use=True, worker_id="w9")],
    ],
)
def test_an_eviction_that_makes_no_sense_evicts_nothing_in_use(answer: Any) -> None:
    """Room is made all the same: a bad policy can be slow, but not unsafe."""
    world = view(worker("w0", 20, held(C), held(D, in_use=True)))
    decides = planner(Wants(A), Answers(answer))
    effects = decides.tick(world)
    assert effects == [unload(C, A), load(A)]
    if answer != [held(C, in_use=True, worker_id="w9")]:
        assert decides.problems == ["Answers " + decides.problems[0].removeprefix("Answers ")]


def test_an_eviction_policy_that_raises_is_done_without() -> None:
    decides = planner(Wants(A), Raises())
    assert decides.tick(view(worker("w0", 10, held(C)))) == [unload(C, A), load(A)]
    assert "raised ZeroDivisionError" in decides.problems[0]


def test_problems_are_of_the_last_tick() -> None:
    decides = planner(Raises())
    decides.tick(view())
    decides.scaling = Wants()
    decides.tick(view())
    assert decides.problems == []


def test_the_forecast_reaches_the_scaling_policy() -> None:
    seen: list[Mapping[str, float]] = []

    class Listens(Wants):
        def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
            seen.append(forecast_per_s)
            return super().targets(view, forecast_per_s)

    planner(Listens()).tick(view(arrivals={"t": 12.0}))
    assert seen == [{"t": 12.0}]


class Optimises(ScalingPolicy):
    """Keeps a plan until a test makes another."""

    def __init__(self) -> None:
        self.plan = Targets({}, {}, Reason.OPTIMISED, quality=PlanQuality(PlanSource.GREEDY, 0.1))

    def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
        return self.plan


def test_each_new_plan_tells_how_good_it_is_once() -> None:
    policy = Optimises()
    asked = planner(policy)
    first = policy.plan.quality
    assert first is not None
    assert asked.tick(view(worker("w0", 10))) == [Planned(Reason.OPTIMISED, first)]
    assert asked.tick(view(worker("w0", 10))) == []
    policy.plan = replace(policy.plan, quality=first._replace())
    assert asked.tick(view(worker("w0", 10))) == [Planned(Reason.OPTIMISED, first)]
    policy.plan = replace(policy.plan, quality=None)
    assert asked.tick(view(worker("w0", 10))) == []
