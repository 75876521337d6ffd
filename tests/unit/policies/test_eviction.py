"""Each eviction policy's own idea, on cases worked out by hand."""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from modelless.common.errors import InvalidInputError
from modelless.policies.eviction.belady import Belady
from modelless.policies.eviction.demand_driven import DemandDriven
from modelless.policies.eviction.greedy_dual import GreedyDualSizeFrequency
from modelless.policies.eviction.least_frequently_used import LeastFrequentlyUsed
from modelless.policies.eviction.least_recently_used import LeastRecentlyUsed
from modelless.policies.eviction.lemonade import Lemonade
from modelless.policies.eviction.miss_cost import MissCost
from modelless.policies.eviction.modelmesh import ModelMesh
from modelless.policies.eviction.query_rates import DecayedRates
from modelless.policies.seams import EvictionPolicy
from modelless.policies.views import ClusterView, Demand, Instance, VariantFacts, WorkerState
from modelless.variants.vocabulary import DeviceClass
from tests.builders import make_cluster_view, make_facts

GPU = DeviceClass("gpu", "gpu", 1, 1 << 40, 1.0, 300.0)


def held(
    name: str,
    *,
    used_s: float = 0.0,
    uses: int = 0,
    load_s: float = 10.0,
    size: int = 100,
    worker: str = "w0",
    in_use: bool = False,
) -> Instance:
    """An instance of the variant ``name/m/v@1``, or of ``name`` if that is a whole id."""
    variant_id = name if "/" in name else f"{name}/m/v@1"
    return Instance(worker, variant_id, size, load_s, used_s, uses, in_use=in_use)


def view(
    instances: Sequence[Instance],
    now_s: float = 100.0,
    variants: Sequence[VariantFacts] = (),
    unmet: Mapping[str, float] | None = None,
    busy: float = 0.0,
    **fields: Any,
) -> ClusterView:
    workers = tuple(
        WorkerState(name, "gpu", 1000, tuple(i for i in instances if i.worker_id == name), busy)
        for name in sorted({"w0", *(i.worker_id for i in instances)})
    )
    fields["arrivals_per_s"] = fields.pop("arrivals", {})
    fields["unmet_per_s"] = unmet or {}
    return make_cluster_view({"gpu": GPU}, workers, variants, now_s=now_s, **fields)


def order(policy: EvictionPolicy, instances: Sequence[Instance], **fields: Any) -> list[str]:
    """The ranking as tasks, or whole ids where a task has several variants."""
    ranked = policy.rank(instances, view(instances, **fields))
    return [i.variant_id.removesuffix("/m/v@1") for i in ranked]


# -- recency and frequency ----------------------------------------------------------------------


def test_lfu_counts_uses_and_breaks_ties_by_last_use() -> None:
    instances = [held("a", uses=5, used_s=1), held("b", uses=2, used_s=9), held("c", uses=2)]
    assert order(LeastFrequentlyUsed(), instances) == ["c", "b", "a"]


def test_lemonade_is_idle_time_over_load_time() -> None:
    # Idle 60, 90 and 20 s for loads of 30, 60 and 4 s: 2, 1.5 and 5 times as long.
    instances = [
        held("a", used_s=40, load_s=30),
        held("b", used_s=10, load_s=60),
        held("c", used_s=80, load_s=4),
    ]
    assert order(Lemonade(), instances) == ["c", "a", "b"]
    assert order(Lemonade({"c": 4.0}), instances) == ["a", "b", "c"]  # 5 / 4 = 1.25


@pytest.mark.parametrize("weight", [0.0, -1.0, math.inf, math.nan, "much", None])
def test_lemonades_weights_are_above_0(weight: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"weights\.a: got"):
        Lemonade({"a": weight})


def test_modelmesh_is_lru() -> None:
    instances = [held("a", used_s=20, uses=50), held("b", used_s=10), held("young", used_s=95)]
    assert order(ModelMesh(churn_age_s=60), instances) == ["b", "a", "young"]


@pytest.mark.parametrize(
    ("churn_age_s", "used_s", "is_loaded"),
    [
        (60, [20, 95], True),
        (60, [95, 40], True),
        (60, [41, 95], False),
        (0, [100], True),
        (60, [], True),
    ],
)
def test_modelmesh_loads_nothing_if_all_that_would_leave_was_used_lately(
    churn_age_s: float, used_s: list[float], is_loaded: bool
) -> None:
    victims = [held(f"v{number}", used_s=at_s) for number, at_s in enumerate(used_s)]
    policy = ModelMesh(churn_age_s)
    there = [*victims, held("elsewhere", used_s=0, worker="w1")]
    assert policy.admits(held("new"), victims, view(there)) is is_loaded


def test_modelmesh_goes_by_the_oldest_of_the_worker_whoever_leaves() -> None:
    young, old = held("young", used_s=95), held("old", used_s=10)
    assert ModelMesh(60).admits(held("new"), [young], view([young, old]))


@pytest.mark.parametrize("age", [-1.0, math.inf, math.nan, "an hour"])
def test_modelmeshs_churn_age_is_a_time(age: Any) -> None:
    with pytest.raises(InvalidInputError, match="churn_age_s: got"):
        ModelMesh(churn_age_s=age)


def test_demand_driven_keeps_what_clients_wait_for() -> None:
    instances = [held("a", used_s=1), held("b", used_s=2), held("c", used_s=3)]
    assert order(DemandDriven(), instances, open_queries={"a": 2}) == ["b", "c", "a"]
    narrowed = {"a/m/v": 1, "b/m": 3}
    assert order(DemandDriven(), instances, open_queries=narrowed) == ["c", "a", "b"]


# -- greedy dual --------------------------------------------------------------------------------


def test_gdsf_weighs_frequency_by_load_time_and_size() -> None:
    # 4 x 10 / 100 = 0.4, 2 x 30 / 100 = 0.6, 4 x 10 / 200 = 0.2
    instances = [
        held("a", uses=4),
        held("b", uses=2, load_s=30),
        held("c", uses=4, size=200),
    ]
    assert order(GreedyDualSizeFrequency(), instances) == ["c", "a", "b"]


def test_gdsf_counts_a_variants_uses_over_all_its_instances() -> None:
    mine = [held("a", uses=1), held("b", uses=3)]
    replica = held("a", uses=9, worker="w1")
    ranked = GreedyDualSizeFrequency().rank(mine, view([*mine, replica]))
    assert [i.variant_id for i in ranked] == ["b/m/v@1", "a/m/v@1"]


def test_gdsf_ages_what_is_not_used_again() -> None:
    policy = GreedyDualSizeFrequency()
    old, victim = held("old", uses=6), held("victim", uses=5)
    assert order(policy, [old, victim]) == ["victim", "old"]  # 0.5 and 0.6
    # The victim has left: the clock is 0.5. A newcomer of 2 uses has 0.7, which is above 0.6.
    new = held("new", uses=2)
    assert order(policy, [old, new], now_s=101.0) == ["old", "new"]
    # Used once more, the old one has 0.5 + 0.7.
    old = held("old", uses=7)
    assert order(policy, [old, new], now_s=102.0) == ["new", "old"]


def test_gdsfs_clock_stands_still_when_a_worker_is_lost() -> None:
    policy = GreedyDualSizeFrequency()
    old, lost = held("old", uses=3), held("lost", uses=50, worker="w1")
    policy.rank([old], view([old, lost]))
    new = held("new", uses=2)
    assert order(policy, [old, new], now_s=101.0) == ["new", "old"]


# -- Belady -------------------------------------------------------------------------------------


def test_belady_takes_what_is_asked_for_last() -> None:
    policy = Belady()
    policy.reveal(
        {"a": np.array([50.0, 130.0]), "b": np.array([110.0]), "c/m": np.array([99.0, 170.0])}
    )
    never = held("never", used_s=99)
    instances = [held("a"), held("b"), held("c"), never]
    assert order(policy, instances) == ["never", "c", "a", "b"]
    assert order(policy, instances, now_s=120.0) == ["b", "never", "c", "a"]


def test_belady_weighs_by_load_time_and_size() -> None:
    policy = Belady()
    policy.reveal({"a": np.array([110.0]), "b": np.array([120.0]), "c": np.array([110.0])})
    # 10 / 100 / 10 s, 30 / 100 / 20 s, 10 / 200 / 10 s
    instances = [held("a"), held("b", load_s=30), held("c", size=200)]
    assert order(policy, instances) == ["c", "a", "b"]


def test_belady_is_lru_before_anything_is_revealed() -> None:
    instances = [held("a", used_s=3), held("b", used_s=1), held("c", used_s=2)]
    assert order(Belady(), instances) == order(LeastRecentlyUsed(), instances) == ["b", "c", "a"]


def test_belady_declines_what_is_asked_for_later_than_what_would_leave() -> None:
    policy = Belady()
    a, b, new = held("a"), held("b"), held("new", worker="w1")
    assert policy.admits(new, [a], view([a, b])), "nothing was revealed"
    policy.reveal({"a": np.array([130.0]), "b": np.array([110.0]), "new": np.array([99.0, 120.5])})
    assert policy.admits(new, [a], view([a, b]))
    assert not policy.admits(new, [b], view([a, b]))
    assert not policy.admits(new, [a, b], view([a, b])), "both are asked for again"
    slow = held("new", load_s=20.4, worker="w1")
    b = held("b", load_s=9.0)
    assert not policy.admits(new, [b], view([a, b]))
    assert policy.admits(slow, [b], view([a, b])), "half as soon, but twice the cost"
    slower = held("new", load_s=25.0, worker="w1")
    assert not policy.admits(slower, [b], view([a, b])), "it would not be there in time"
    assert policy.admits(new, [held("never")], view([a, b]))
    assert not policy.admits(held("never"), [a], view([a, b]))


def requests(seed: int, load_s: Sequence[float]) -> tuple[list[str], dict[str, float]]:
    """Sixteen queries in the order that they come, one a second, and what loading costs."""
    rng = np.random.default_rng(seed)
    names = [f"v{number}" for number in range(len(load_s))]
    return [str(name) for name in rng.choice(names, 16)], dict(zip(names, load_s, strict=True))


def lost_s(
    policy: EvictionPolicy, asked: Sequence[str], load_s: Mapping[str, float], room: int
) -> float:
    """Load seconds of what was asked for and not there, where a miss may be loaded for the next."""
    there: dict[str, Instance] = {}
    lost = 0.0
    for second, name in enumerate(asked):
        if name in there:
            continue
        lost += load_s[name]
        newcomer = held(name, load_s=load_s[name])
        seen = view(list(there.values()), now_s=float(second))
        leaving = list(policy.rank(list(there.values()), seen))[: max(len(there) + 1 - room, 0)]
        if leaving and not policy.admits(newcomer, leaving, seen):
            continue
        for victim in leaving:
            del there[victim.variant_id.partition("/")[0]]
        there[name] = newcomer
    return lost


def least_lost_s(asked: Sequence[str], load_s: Mapping[str, float], room: int) -> float:
    """The same by trying everything: a miss may displace anything, or nothing."""
    ways: dict[frozenset[str], float] = {frozenset(): 0.0}
    for name in asked:
        after: dict[frozenset[str], float] = {}
        for there, lost in ways.items():
            choices = [there]
            if name not in there:
                lost += load_s[name]
                choices += [there - {out} | {name} for out in there]
                choices += [there | {name}] if len(there) < room else []
            for choice in choices:
                after[choice] = min(after.get(choice, math.inf), lost)
        ways = after
    return min(ways.values())


class AlwaysLoads(Belady):
    """As Belady ranks, but whatever is asked for is loaded."""

    def admits(self, newcomer: Instance, victims: Sequence[Instance], view: ClusterView) -> bool:
        return True


def knowing(policy: Belady, asked: Sequence[str]) -> Belady:
    times = {name: [float(s) for s, other in enumerate(asked) if other == name] for name in asked}
    policy.reveal({name: np.array(at_s) for name, at_s in times.items()})
    return policy


def test_belady_is_the_best_there_is_for_equal_sizes_and_costs() -> None:
    best, always = 0.0, 0.0
    for seed in range(30):
        asked, load_s = requests(seed, [0.01] * 5)
        least = least_lost_s(asked, load_s, room=2)
        lost = lost_s(knowing(Belady(), asked), asked, load_s, room=2)
        assert lost == pytest.approx(least)
        best += least
        always += lost_s(knowing(AlwaysLoads(), asked), asked, load_s, room=2)
    assert best < 0.95 * always


def test_belady_loses_less_by_declining_where_costs_differ_too() -> None:
    declining, always, least = 0.0, 0.0, 0.0
    for seed in range(30):
        asked, load_s = requests(seed, [0.01, 0.02, 0.04, 0.08, 0.03])
        declining += lost_s(knowing(Belady(), asked), asked, load_s, room=2)
        always += lost_s(knowing(AlwaysLoads(), asked), asked, load_s, room=2)
        least += least_lost_s(asked, load_s, room=2)
    assert least <= declining < always
    assert declining < 1.1 * least


# -- miss cost ----------------------------------------------------------------------------------


HASTY = (Demand("new", 1.0, 0.0, 1.0), Demand("old", 1.0, 0.0, 1.0))
"""Kinds of queries that no load of 10 s is in time for."""


def facts(name: str, accuracy: float, latency_s: float = 0.1) -> VariantFacts:
    variant_id = name if "/" in name else f"{name}/m/v@1"
    return make_facts(variant_id, accuracy, {"gpu": [latency_s]}, memory_bytes=100.0, load_s=10.0)


def test_miss_cost_weighs_the_rate_by_load_time_and_size() -> None:
    policy = MissCost(lost_query_s=0.0)
    instances = [held("a"), held("b", load_s=40), held("c", size=400)]
    # a is asked for twice as often as b, but loads in a quarter; c as often, but is large.
    for second in range(4):
        policy.observe(view(instances, float(second), arrivals={"a": 2.0, "b": 1.0, "c": 2.0}))
    assert order(policy, instances) == ["c", "a", "b"]


def test_miss_cost_learns_from_views_in_which_nothing_leaves() -> None:
    asked, unasked = MissCost(), MissCost()
    instances = [held("a", used_s=2.0), held("b", used_s=1.0)]
    for second in range(10):
        asked.observe(view(instances, float(second), arrivals={"b": 3.0}))
    assert order(asked, instances) == ["a", "b"]
    assert order(unasked, instances) == ["b", "a"]


def test_miss_cost_sees_a_view_once() -> None:
    once, twice = MissCost(), MissCost()
    instances = [held("a"), held("b")]
    seen = view(instances, arrivals={"a": 1.0, "b": 1.1})
    for policy, times in ((once, 1), (twice, 5)):
        for _ in range(times):
            policy.observe(seen)
    later = view(instances, 101.0, arrivals={"a": 0.5})
    assert once.rank(instances, later) == twice.rank(instances, later)


def test_miss_cost_remembers_what_was_missed() -> None:
    policy = MissCost(lost_query_s=0.0)
    known = [facts("a", 80.0), facts("b", 80.0)]
    policy.rank([], view([], 0.0, known))
    for now_s in (1.0, 2.0, 3.0):
        policy.rank([], view([], now_s, known, unmet={"b": 1.0}))
    # Both have been loaded just now, and neither has been used.
    assert order(policy, [held("a"), held("b")], now_s=4.0, variants=known) == ["a", "b"]


def test_miss_cost_lets_go_of_what_another_variant_serves_as_well() -> None:
    small, large = held("t/small/v@1", uses=90), held("t/large/v@1", uses=10)
    other = held("u", uses=5)
    known = [facts("t/small/v@1", 70.0), facts("t/large/v@1", 80.0), facts("u", 75.0)]
    demands = (Demand("t", 5.0, 0.0, 9.0), Demand("t", 5.0, 75.0, 1.0), Demand("u", 5.0, 0.0, 1.0))
    policy = MissCost()
    instances = [small, large, other]
    ranked = policy.rank(
        instances, view(instances, variants=known, demands=demands, arrivals={"t": 10.0, "u": 1.0})
    )
    # Only the large one serves those who want 75 %; it serves all that the small one does.
    assert [i.variant_id for i in ranked] == [small.variant_id, other.variant_id, large.variant_id]


@pytest.mark.parametrize(
    ("accuracy", "latency_s"), [(60.0, 0.1), (80.0, 9.0)], ids=["too coarse", "too slow"]
)
def test_miss_cost_takes_nobody_for_a_stand_in_who_is_none(
    accuracy: float, latency_s: float
) -> None:
    only, useless, other = held("t/a/v@1"), held("t/b/v@1"), held("u")
    known = [facts("t/a/v@1", 80.0), facts("t/b/v@1", accuracy, latency_s), facts("u", 75.0)]
    demands = (Demand("t", 5.0, 70.0, 9.0), Demand("u", 5.0, 0.0, 1.0))
    instances = [only, useless, other]
    ranked = MissCost().rank(
        instances, view(instances, variants=known, demands=demands, arrivals={"t": 9.0, "u": 1.0})
    )
    assert [i.variant_id for i in ranked] == [useless.variant_id, other.variant_id, only.variant_id]


def test_miss_cost_never_gives_up_two_that_stand_in_for_each_other() -> None:
    pair = [held("t/a/v@1"), held("t/b/v@1")]
    other = held("u")
    known = [facts("t/a/v@1", 80.0), facts("t/b/v@1", 80.0), facts("u", 75.0)]
    arrivals = {"t": 9.0, "u": 1.0}
    instances = [*pair, other]
    ranked = MissCost().rank(instances, view(instances, variants=known, arrivals=arrivals))
    assert [i.variant_id.split("/")[0] for i in ranked] == ["t", "u", "t"]


def test_miss_cost_remembers_within_a_view_who_leaves_another_worker() -> None:
    here, there, other = held("t"), held("t", worker="w1"), held("u", worker="w1")
    everyone = view([here, there, other], arrivals={"t": 9.0, "u": 1.0})
    policy = MissCost()
    assert policy.rank([here], everyone) == [here]
    assert policy.rank([there, other], everyone) == [other, there]
    fresh = MissCost()
    assert fresh.rank([there, other], everyone) == [there, other]


def test_miss_cost_keeps_the_replica_of_what_is_busy() -> None:
    replicas = [held("t"), held("t", worker="w1")]
    other = held("u")
    arrivals = {"t": 9.0, "u": 1.0}
    idle = view([*replicas, other], arrivals=arrivals)
    busy = view([*replicas, other], arrivals=arrivals, busy=0.9)
    mine = [replicas[0], other]
    assert MissCost().rank(mine, idle) == [replicas[0], other]
    assert MissCost().rank(mine, busy) == [other, replicas[0]]


def test_miss_cost_takes_no_instance_for_its_own_stand_in() -> None:
    # The idle worker serves all of a, and the busy one could take over little of it.
    on_idle, on_busy = held("a", worker="idle"), held("a", worker="busy")
    other = held("b", worker="idle")
    instances = [on_idle, on_busy, other]
    workers = tuple(
        WorkerState(name, "gpu", 1000, tuple(i for i in instances if i.worker_id == name), share)
        for name, share in (("idle", 0.0), ("busy", 0.9))
    )
    seen = make_cluster_view(
        {"gpu": GPU}, workers, now_s=100.0, arrivals_per_s={"a": 4.0, "b": 1.0}, unmet_per_s={}
    )
    ranked = MissCost().rank([on_idle, other], seen)
    assert [i.variant_id for i in ranked] == ["b/m/v@1", "a/m/v@1"]


def test_miss_cost_counts_the_queries_that_a_load_comes_too_late_for() -> None:
    instances = [held("hasty"), held("patient")]
    demands = (Demand("hasty", 1.0, 0.0, 1.0), Demand("patient", 600.0, 0.0, 1.2))
    given = {"arrivals": {"hasty": 1.0, "patient": 1.2}, "demands": demands}
    assert order(MissCost(lost_query_s=0.0), instances, **given) == ["hasty", "patient"]
    assert order(MissCost(lost_query_s=60.0), instances, **given) == ["patient", "hasty"]


# -- miss cost: who is let in -------------------------------------------------------------------


def admission(
    policy: MissCost, seconds: int, arrivals: Mapping[str, float], **fields: Any
) -> list[bool]:
    """Whether ``new`` would be let in for ``old`` each second, while clients ask as told."""
    known = [facts("new", 80.0), facts("old", 80.0)]
    there, newcomer = held("old"), held("new")
    unmet = {"new": arrivals["new"]} if arrivals.get("new") else {}
    answers = []
    for second in range(seconds):
        seen = view([there], float(second), known, unmet=unmet, arrivals=arrivals, **fields)
        policy.observe(seen)
        answers.append(policy.admits(newcomer, [there], seen))
    return answers


def test_miss_cost_lets_in_what_is_asked_for_more() -> None:
    assert admission(MissCost(), 20, {"new": 2.0, "old": 0.1}, demands=HASTY)[-1]


def test_miss_cost_declines_what_is_asked_for_less_and_cannot_wait() -> None:
    assert not any(admission(MissCost(), 3, {"new": 0.3, "old": 2.0}, demands=HASTY))


def test_miss_cost_lets_in_all_without_admission() -> None:
    policy = MissCost(admission=False)
    assert all(admission(policy, 3, {"new": 0.3, "old": 2.0}, demands=HASTY))


def test_miss_cost_lets_in_whatever_comes_in_time_for_a_query_that_waits() -> None:
    patient = (Demand("new", 60.0, 0.0, 0.1), Demand("old", 60.0, 0.0, 2.0))
    rates = {"new": 0.1, "old": 2.0}
    assert all(admission(MissCost(), 3, rates, demands=patient, open_queries={"new": 1}))
    assert not any(admission(MissCost(), 3, rates, demands=HASTY, open_queries={"new": 1}))


def test_miss_cost_refuses_nobody_for_ever() -> None:
    """Nobody asks for the old one: at most load time / ``lost_query_s`` queries are refused."""
    told = admission(MissCost(lost_query_s=1.0), 40, {"new": 1.0, "old": 1.0}, demands=HASTY)
    first = told.index(True)
    assert 0 < first <= 10
    assert not told[first + 1], "once it was let in, what it was refused counts no more"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"admission": "no"}, "admission"),
        ({"half_lives_s": []}, "half_lives_s"),
        ({"half_lives_s": [60.0, 0.0]}, "half_lives_s"),
        ({"lost_query_s": -1.0}, "lost_query_s"),
        ({"lost_query_s": math.nan}, "lost_query_s"),
        ({"view_s": 0.0}, "view_s"),
    ],
)
def test_miss_costs_settings(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInputError, match=f"{told}: got"):
        MissCost(**settings)


# -- popularity ---------------------------------------------------------------------------------


def test_popularity_finds_steady_rates() -> None:
    popularity = DecayedRates([600.0, 7200.0])
    for _ in range(2000):
        popularity.observe(10.0, {"often": 5.0, "seldom": 0.1}, ["often", "seldom", "never"])
    rates = popularity.rates_per_s()
    assert rates["often"] == pytest.approx(0.5, rel=0.1)
    assert rates["seldom"] == pytest.approx(0.01, rel=0.1)
    assert rates["never"] < 0.001


def test_popularity_follows_a_change_sooner_than_its_longest_half_life() -> None:
    mixed, slow = DecayedRates([600.0, 7200.0]), DecayedRates([7200.0])
    for each in (mixed, slow):
        for counts, seconds in (({"a": 1.0}, 20_000), ({"b": 1.0}, 1200)):
            for _ in range(seconds // 10):
                each.observe(10.0, counts, ["a", "b"])
    assert mixed.rates_per_s()["a"] < 0.5 * slow.rates_per_s()["a"]
    assert mixed.rates_per_s()["b"] > 2.0 * slow.rates_per_s()["b"]


def test_popularity_before_anything_came() -> None:
    popularity = DecayedRates([600.0])
    assert popularity.rates_per_s() == {}
    popularity.observe(0.0, {}, ["a", "b"])
    rates = popularity.rates_per_s()
    assert rates["a"] == rates["b"]
    assert 0.0 <= rates["a"] < 1e-3


def test_popularity_takes_in_names_that_come_later() -> None:
    popularity = DecayedRates([600.0])
    popularity.observe(100.0, {"a": 10.0}, ["a"])
    popularity.observe(100.0, {"b": 10.0}, ["a", "b"])
    copy = pickle.loads(pickle.dumps(popularity))  # noqa: S301  (our own)
    assert copy.rates_per_s() == popularity.rates_per_s()
    assert set(popularity.rates_per_s()) == {"a", "b"}
