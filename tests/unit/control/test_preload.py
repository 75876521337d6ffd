"""Preloading: before anybody asks, once, and not for ever."""

from __future__ import annotations

from dataclasses import replace

from modelless.controller.control.preload import Preloading
from modelless.policies.reasons import Reason
from modelless.policies.views import ClusterView
from modelless.variants.vocabulary import Placement

from .test_planner import OTHER, A, B, C, Wants, facts, held, load, planner, view, worker


def wanted(policy: Preloading, world: ClusterView) -> list[str]:
    return [placement.variant_id for placement in policy.targets(world, {}).instances]


def test_what_is_named_comes_first_and_in_order() -> None:
    world = view(worker("w0", 100))
    assert wanted(Preloading(Wants(C), ["other", B]), world) == [OTHER, B, C]


def test_of_a_scope_the_quickest_variant_is_wanted() -> None:
    quick = tuple(
        replace(fact, latency_s={"cpu-1": 0.001}) if fact.variant_id == B else fact
        for fact in facts()
    )
    world = replace(view(worker("w0", 100)), variants=quick)
    assert wanted(Preloading(Wants(), ["t"]), world) == [B]


def test_it_ends_for_each_scope_once_it_was_held() -> None:
    policy = Preloading(Wants(), [A, B])
    assert wanted(policy, view(worker("w0", 100, held(A)))) == [B]
    assert wanted(policy, view(worker("w0", 100, held(B)))) == []
    assert wanted(policy, view(worker("w0", 100))) == [], "evicted since: not wanted again"


def test_what_is_pinned_is_wanted_until_it_was_held_whenever_it_is_pinned_anew() -> None:
    policy = Preloading(Wants(), [])
    world = view(worker("w0", 100))
    assert wanted(policy, world) == []
    assert wanted(policy, replace(world, now_s=400.0, pinned=(B,))) == [B]
    held_now = replace(view(worker("w0", 100, held(B))), now_s=401.0, pinned=(B,))
    assert wanted(policy, held_now) == []
    assert wanted(policy, replace(world, now_s=402.0, pinned=())) == []
    assert wanted(policy, replace(world, now_s=403.0, pinned=(A, B))) == [A, B]
    assert wanted(policy, replace(world, now_s=704.0, pinned=(A, B))) == [], "it does not fit"


def test_it_ends_after_a_while() -> None:
    policy = Preloading(Wants(), [A], most_s=5.0)
    assert wanted(policy, view(worker("w0", 100))) == [A]
    assert wanted(policy, replace(view(worker("w0", 100)), now_s=105.0)) == []


def test_what_nobody_knows_or_no_worker_can_run_is_passed_over() -> None:
    policy = Preloading(Wants(C), ["no-such-task", A])
    assert wanted(policy, replace(view(), workers=())) == [C]
    assert wanted(policy, view(worker("w0", 100))) == [A, C]


def test_the_other_policys_targets_are_kept() -> None:
    policy = Preloading(Wants((A, 3), workers={"cpu-1": 2}), [A])
    targets = policy.targets(view(worker("w0", 100)), {})
    assert targets.instances == {Placement(A, "cpu-1"): 3}
    assert targets.workers == {"cpu-1": 2}
    assert targets.reason is Reason.FIXED_SIZE


def test_in_a_plan_it_gets_the_room_first() -> None:
    decides = planner(Preloading(Wants(A, B), [B]))
    assert decides.tick(view(worker("w0", 10))) == [load(B)]
