"""Pools: the workers that pay are wanted, at once upwards and patiently downwards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from modelless.common.errors import InvalidInputError
from modelless.policies.reasons import Reason
from modelless.policies.scaling.expected_value.expected_value import ExpectedValue
from modelless.policies.views import (
    ClusterView,
    Demand,
    Instance,
    Pool,
    VariantFacts,
    WorkerState,
)
from modelless.variants.vocabulary import DeviceClass
from tests.builders import make_cluster_view, make_facts

CLASSES = {
    name: DeviceClass(name, "cpu", threads, 1 << 30, 0.05 * threads, 8.0)
    for name, threads in (("cpu-1", 1), ("cpu-2", 2))
}
GOOD, QUICK = "t/m/good@1", "t/m/quick@1"


def facts(name: str, accuracy: float, item_s: float) -> VariantFacts:
    """One item takes ``item_s`` on a core, and 0.6 of that on two; batches gain nothing."""
    one = {"cpu-1": item_s, "cpu-2": 0.6 * item_s}
    return make_facts(name, accuracy, {size: (s, 2 * s) for size, s in one.items()}, load_s=0.2)


def view(
    now_s: float,
    rate_per_s: float,
    *sizes: str,
    pool: Pool,
    latency_s: float = 0.5,
    variants: tuple[VariantFacts, ...] = (facts(GOOD, 75.0, 0.02),),
    busy_share: float = 0.0,
    missed_per_s: float = 0.0,
    floor: float = 0.0,
) -> ClusterView:
    workers = tuple(
        WorkerState(
            f"w{number}",
            size,
            100,
            (Instance(f"w{number}", GOOD, 10, 0.2, 0.0, 1),),
            busy_share,
            pool=pool.name,
        )
        for number, size in enumerate(sizes)
    )
    demands = [Demand("t", latency_s, floor, rate_per_s)] if rate_per_s else []
    return make_cluster_view(
        CLASSES,
        workers,
        variants,
        demands,
        now_s=now_s,
        arrivals_per_s={"t": rate_per_s},
        pools=(pool,),
        missed_per_s=missed_per_s,
    )


NUMBER = Pool("cpu-1", ("cpu-1",), 1, 4, start_s=5.0)
SIZE = Pool("cpu-1", ("cpu-1", "cpu-2"), 1, 1, start_s=5.0)
BOTH = Pool("cpu-1", ("cpu-1", "cpu-2"), 1, 3, max_cores=3, start_s=5.0)


def scaled(**pools: Any) -> ExpectedValue:
    return ExpectedValue(pools=pools)


def wanted(policy: ExpectedValue, seen: ClusterView) -> dict[str, int]:
    targets = policy.targets(seen, {})
    assert targets.reason is Reason.OPTIMISED
    return dict(targets.workers)


@pytest.mark.parametrize(
    ("rate_per_s", "count"), [(10.0, 1), (34.0, 1), (36.0, 2), (100.0, 3), (1000.0, 4)]
)
def test_as_many_workers_as_demand_fills_within_the_bounds(rate_per_s: float, count: int) -> None:
    assert wanted(scaled(), view(0.0, rate_per_s, "cpu-1", pool=NUMBER)) == {"cpu-1": count}


def test_a_worker_is_resized_where_there_may_not_be_more() -> None:
    assert wanted(scaled(), view(0.0, 10.0, "cpu-1", pool=SIZE)) == {"cpu-1": 1, "cpu-2": 0}
    assert wanted(scaled(), view(0.0, 50.0, "cpu-1", pool=SIZE)) == {"cpu-1": 0, "cpu-2": 1}


def test_a_deadline_that_only_a_larger_worker_keeps_is_worth_one() -> None:
    seen = view(0.0, 5.0, "cpu-1", pool=BOTH, latency_s=0.021)  # 20 ms are not sure
    assert wanted(scaled(), seen) == {"cpu-1": 0, "cpu-2": 1}


def test_two_small_workers_do_more_than_a_large_one_for_the_same_rent() -> None:
    assert wanted(scaled(), view(0.0, 60.0, "cpu-1", pool=BOTH)) == {"cpu-1": 2, "cpu-2": 0}


def test_a_quicker_variant_spares_a_worker_unless_clients_or_accuracy_are_worth_one() -> None:
    variants = (facts(GOOD, 75.0, 0.02), facts(QUICK, 60.0, 0.004))
    seen = view(0.0, 60.0, "cpu-1", pool=NUMBER, variants=variants)
    assert wanted(scaled(accuracy_usd=0.0), seen) == {"cpu-1": 1}
    assert wanted(scaled(accuracy_usd=0.001), seen) == {"cpu-1": 2}
    insisting = view(0.0, 60.0, "cpu-1", pool=NUMBER, variants=variants, floor=70.0)
    assert wanted(scaled(accuracy_usd=0.0), insisting) == {"cpu-1": 2}


def test_answers_that_take_minutes_are_worth_their_workers_unless_a_value_is_stated() -> None:
    """Each takes 0.28 cents of rent. Four workers are busy if all are answered."""
    slow = (facts(GOOD, 75.0, 200.0),)
    seen = view(0.0, 0.02, "cpu-1", pool=NUMBER, latency_s=600.0, variants=slow)
    assert wanted(scaled(), seen) == {"cpu-1": 4}
    assert wanted(scaled(query_usd=0.001), seen) == {"cpu-1": 1}


def test_up_at_once_and_down_only_after_a_while() -> None:
    policy = scaled(down_after_s=10.0, zero_after_s=1000.0)
    counts: list[int] = []
    for second in range(60):
        rate_per_s = 60.0 if 5 <= second < 20 else 5.0
        size = counts[-1] if counts else 1
        seen = view(float(second), rate_per_s, *["cpu-1"] * size, pool=NUMBER)
        forecast = {"t": rate_per_s}
        counts.append(policy.targets(seen, forecast).workers["cpu-1"])
    assert counts[4] == 1
    assert counts[5] == 2
    assert counts[28] >= 2, "not before 10 s have passed"
    assert counts[-1] == 1


def test_many_views_a_second_do_not_shorten_the_while() -> None:
    policy = scaled(down_after_s=100.0, zero_after_s=1000.0)
    assert wanted(policy, view(0.0, 60.0, "cpu-1", pool=NUMBER)) == {"cpu-1": 2}
    for tick in range(1, 1200):
        seen = view(0.05 * tick, 5.0, "cpu-1", "cpu-1", pool=NUMBER)
        count = policy.targets(seen, {}).workers["cpu-1"]
    assert count == 2


def test_without_queries_for_long_enough_nothing_is_kept() -> None:
    pool = replace(NUMBER, min_workers=0)
    policy = scaled(down_after_s=2.0, zero_after_s=5.0)
    assert wanted(policy, view(0.0, 5.0, "cpu-1", pool=pool)) == {"cpu-1": 1}
    assert wanted(policy, view(4.0, 0.0, "cpu-1", pool=pool)) == {"cpu-1": 1}
    assert wanted(policy, view(5.0, 0.0, "cpu-1", pool=pool)) == {"cpu-1": 1}
    assert wanted(policy, view(9.0, 0.0, "cpu-1", pool=pool)) == {"cpu-1": 0}
    assert wanted(policy, view(10.0, 1.0, pool=pool)) == {"cpu-1": 1}, "the first query starts one"


def test_whoever_waits_for_a_worker_that_is_slow_to_start_is_not_given_up() -> None:
    pool = replace(NUMBER, min_workers=0)
    policy = scaled(query_usd=1e-5, down_after_s=2.0, zero_after_s=5.0)
    for now_s in range(60):
        assert wanted(policy, view(float(now_s), 0.0, pool=pool)) == {"cpu-1": 0}
    first = replace(view(60.0, 1.0, pool=pool), open_queries={"t": 1})
    assert wanted(policy, first) == {"cpu-1": 1}, "though it will not pay"
    for now_s in range(61, 300):
        waiting = replace(view(float(now_s), 0.0, pool=pool), open_queries={"t": 1})
        assert wanted(policy, waiting) == {"cpu-1": 1}, now_s
    assert wanted(policy, view(300.0, 0.0, "cpu-1", pool=pool)) == {"cpu-1": 1}
    assert wanted(policy, view(306.0, 0.0, "cpu-1", pool=pool)) == {"cpu-1": 0}


def test_it_is_one_of_the_cheapest_that_serves_them_in_time_and_only_where_nobody_is() -> None:
    both = Pool("cpu-2", ("cpu-2", "cpu-1"), 0, 3, start_s=5.0)
    gateways = Pool("gateways", ("cpu-1",), 0, 0)

    def first(rate_per_s: float, latency_s: float, *sizes: str, pool: Pool = both) -> int | str:
        policy = scaled(query_usd=1e-9, accuracy_usd=0.0, down_after_s=0.0)
        seen = view(0.0, rate_per_s, *sizes, pool=pool, latency_s=latency_s)
        seen = replace(seen, open_queries={"t": 9}, pools=(both, gateways))
        workers = wanted(policy, seen)
        return "".join(size for size, count in sorted(workers.items()) for _ in range(count))

    assert first(1.0, 0.5) == "cpu-1"
    assert first(500.0, 0.5) == "cpu-1", "however many do not pay"
    assert first(1.0, 0.021) == "cpu-2", "20 ms are not sure"
    assert first(1.0, 0.01) == "", "nobody can"
    assert first(1.0, 0.5, "cpu-1", pool=gateways) == "cpu-1", "the gateway's own, and no other"


def test_before_anything_came_all_stays_as_it_is() -> None:
    assert wanted(scaled(), view(0.0, 0.0, "cpu-1", "cpu-1", pool=NUMBER)) == {"cpu-1": 2}


def test_busy_workers_that_miss_deadlines_are_given_help_whatever_profiles_say() -> None:
    policy = scaled()
    for second in range(8):
        seen = view(float(second), 20.0, "cpu-1", pool=NUMBER, busy_share=1.0, missed_per_s=5.0)
        count = policy.targets(seen, {}).workers["cpu-1"]
    assert count >= 2
    hasty = scaled()
    for tick in range(8):  # as many views, in 0.4 s
        seen = view(0.05 * tick, 20.0, "cpu-1", pool=NUMBER, busy_share=1.0, missed_per_s=5.0)
        count = hasty.targets(seen, {}).workers["cpu-1"]
    assert count == 1
    calm = scaled()
    for second in range(8):
        seen = view(float(second), 20.0, "cpu-1", pool=NUMBER, missed_per_s=5.0)
        count = calm.targets(seen, {}).workers["cpu-1"]
    assert count == 1, "idle workers: the deadlines could not be met"


def test_workers_of_no_pool_are_left_as_they_are() -> None:
    seen = view(0.0, 5.0, "cpu-1", pool=NUMBER)
    stranger = replace(seen.workers[0], worker_id="x", device_class="cpu-2", pool="elsewhere")
    assert wanted(scaled(), replace(seen, workers=(*seen.workers, stranger)))["cpu-2"] == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"query_usd": 0.0},
        {"down_after_s": -1.0},
        {"horizon_s": float("inf")},
        {"utilisation": 0.0},
        {"utilisation": 1.1},
        {"node_limit": -1},
        {"time_limit_s": -1.0},
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    (name,) = settings
    with pytest.raises(InvalidInputError, match=name):
        scaled(**settings)


# -- what is known of a plan, and what is done where the program gives none ---------------------


def test_without_a_plan_of_the_solver_all_stays_as_it_is() -> None:
    targets = scaled(node_limit=0).targets(view(0.0, 100.0, "cpu-1", pool=NUMBER), {})
    assert dict(targets.workers) == {"cpu-1": 1}
    assert targets.quality is not None
    assert targets.quality.words() == "last plan, how far from the best is not known"


def test_a_plan_that_is_proven_says_so_and_so_does_one_that_is_kept_for_a_while() -> None:
    policy = scaled(down_after_s=1000.0)
    words = []
    for now_s, rate_per_s in ((0.0, 60.0), (900.0, 5.0)):  # the first rate is forgotten by then
        seen = view(now_s, rate_per_s, "cpu-1", "cpu-1", pool=NUMBER)
        quality = policy.targets(seen, {"t": rate_per_s}).quality
        assert quality is not None
        words.append(quality.words())
    assert words == [
        "solved to optimality",
        "solved to optimality, a dearer one of late is kept for now",
    ]
