"""InfAdapter against its objective, by trying everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import pytest

from modelless.common.errors import InvalidInputError
from modelless.policies.reasons import Reason
from modelless.policies.scaling.infadapter import InfAdapter
from modelless.policies.views import ClusterView, Demand
from modelless.variants.vocabulary import DeviceClass, Placement
from tests.builders import make_cluster_view, make_facts, make_workers

LADDER = {"small": (60.0, 0.01, 1.0), "mid": (70.0, 0.02, 2.0), "large": (80.0, 0.05, 4.0)}


def make_view(
    rates_per_s: Mapping[str, float],
    workers: int,
    loaded: Mapping[str, int] | None = None,
    min_accuracy_percent: float = 0.0,
) -> ClusterView:
    """Workers of one class; each task has the variants of LADDER: accuracy, seconds, load time.

    Args:
        loaded: copies of the first task's variants, each on a worker of its own.
    """
    cpu = DeviceClass("cpu", "cpu", 1, 1000, 0.5, 10.0)
    facts = [
        make_facts(
            f"{task}/{name}/v@1",
            accuracy,
            {"cpu": [one_s * (1.0 + 0.5 * extra) for extra in range(8)]},
            load_s=load_s,
        )
        for task in rates_per_s
        for name, (accuracy, one_s, load_s) in LADDER.items()
    ]
    held = [
        place("t", name).variant_id for name, count in (loaded or {}).items() for _ in range(count)
    ]
    demands = [Demand(task, 10.0, min_accuracy_percent, rate) for task, rate in rates_per_s.items()]
    return make_cluster_view({"cpu": cpu}, make_workers({"cpu": workers}, *held), facts, demands)


def place(task: str, name: str) -> Placement:
    return Placement(f"{task}/{name}/v@1", "cpu")


def objective(
    counts: Mapping[str, int],
    rate_per_s: float,
    workers: int,
    loaded: Mapping[str, int],
    policy: InfAdapter,
) -> float | None:
    """The paper's, of one task whose queries run one by one; None if demand is not served."""
    wanted = rate_per_s * policy.headroom
    left, mass = wanted, 0.0
    for name in ("large", "mid", "small"):
        accuracy, one_s, _ = LADDER[name]
        served = min(left, counts[name] / one_s)
        left -= served
        mass += served * accuracy / 100.0
    if left > 1e-9:
        return None
    slowest = max((LADDER[n][2] for n in LADDER if counts[n] > loaded.get(n, 0)), default=0.0)
    return (
        mass / wanted
        - policy.cost_weight * sum(counts.values()) / workers
        - policy.reload_weight * slowest / 4.0
    )


@pytest.mark.parametrize("rate_per_s", [10.0, 60.0, 110.0, 180.0, 250.0])
@pytest.mark.parametrize("weights", [(0.0, 0.0), (0.05, 0.02), (0.3, 0.3)])
@pytest.mark.parametrize("loaded", [{}, {"small": 3}, {"mid": 2, "large": 1}])
def test_the_plan_is_the_best_there_is(
    rate_per_s: float, weights: tuple[float, float], loaded: dict[str, int]
) -> None:
    cost_weight, reload_weight = weights
    policy = InfAdapter(cost_weight=cost_weight, reload_weight=reload_weight, batch_sizes=[1])
    targets = policy.targets(make_view({"t": rate_per_s}, 5, loaded), {"t": rate_per_s})
    assert targets.reason is Reason.OPTIMISED
    chosen = {name: targets.instances.get(place("t", name), 0) for name in LADDER}
    values = {}
    for counts in product(range(6), repeat=3):
        if sum(counts) <= 5:
            by_name = dict(zip(LADDER, counts, strict=True))
            values[counts] = objective(by_name, rate_per_s, 5, loaded, policy)
    best = max(value for value in values.values() if value is not None)
    assert values[tuple(chosen.values())] == pytest.approx(best, abs=1e-9)


def test_quotas_are_what_each_variant_serves() -> None:
    policy = InfAdapter(cost_weight=0.0, reload_weight=0.0, headroom=1.0, batch_sizes=[1])
    targets = policy.targets(make_view({"t": 110.0}, 3), {"t": 110.0})
    # 20 a second by each large one, 50 by each mid one.
    assert dict(targets.instances) == {place("t", "mid"): 2, place("t", "large"): 1}
    assert targets.shares["t"][place("t", "large")] == pytest.approx(20.0 / 110.0, abs=1e-5)
    assert targets.shares["t"][place("t", "mid")] == pytest.approx(90.0 / 110.0, abs=1e-5)


def test_a_reload_must_be_worth_its_while() -> None:
    view = make_view({"t": 30.0}, 5, {"mid": 3})
    for reload_weight, expected in ((0.0, "large"), (0.5, "mid")):
        policy = InfAdapter(cost_weight=0.0, reload_weight=reload_weight)
        assert set(policy.targets(view, {"t": 30.0}).instances) == {place("t", expected)}


def test_dear_workers_are_left_alone() -> None:
    view = make_view({"t": 60.0}, 6)
    used = [
        sum(InfAdapter(cost_weight=weight).targets(view, {"t": 60.0}).instances.values())
        for weight in (0.0, 0.3, 3.0)
    ]
    assert used == sorted(used, reverse=True)
    assert used[-1] == 1


def test_past_all_capacity_as_much_as_possible_is_served() -> None:
    targets = InfAdapter().targets(make_view({"t": 1e5}, 3), {"t": 1e5})
    assert dict(targets.instances) == {place("t", "small"): 3}
    assert targets.shares == {"t": {place("t", "small"): 1.0}}


def test_scopes_share_the_workers_by_need_and_take_what_others_leave() -> None:
    rates = {"t": 10.0, "u": 60.0}
    policy = InfAdapter(cost_weight=0.0, batch_sizes=[1])
    targets = policy.targets(make_view(rates, 5), rates)
    used = Counter[str]()
    for placement, count in targets.instances.items():
        used[placement.variant_id.split("/")[0]] += count
    assert used["t"] == 1
    assert used["u"] == 4
    assert targets.shares["t"] == {place("t", "large"): 1.0}
    assert targets.shares["u"][place("u", "large")] > 0.5  # of its four


def test_with_fewer_workers_than_scopes_the_neediest_is_served() -> None:
    rates = {"t": 10.0, "u": 60.0}
    targets = InfAdapter().targets(make_view(rates, 1), rates)
    assert sum(targets.instances.values()) == 1
    assert set(targets.shares) == {"u"}


def test_a_minimum_accuracy_is_kept() -> None:
    view = make_view({"t": 30.0}, 4, min_accuracy_percent=75.0)
    targets = InfAdapter(cost_weight=1.0).targets(view, {"t": 30.0})
    assert set(targets.instances) == {place("t", "large")}


def test_a_plan_is_kept_until_the_interval_is_over_or_demand_moves() -> None:
    policy = InfAdapter(interval_s=30.0, change=0.3)
    view = make_view({"t": 100.0}, 5)
    first = policy.targets(view, {"t": 100.0})
    assert policy.targets(replace(view, now_s=29.0), {"t": 125.0}) is first
    assert policy.targets(replace(view, now_s=29.0), {}) is first
    assert policy.targets(replace(view, now_s=29.0), {"t": 135.0}) is not first


def test_settings_that_make_no_sense_are_refused() -> None:
    for settings in (
        {"cost_weight": -0.1},
        {"headroom": 0.9},
        {"most_variants": 0},
        {"interval_s": -1.0},
        {"batch_sizes": []},
    ):
        with pytest.raises(InvalidInputError):
            InfAdapter(**settings)  # type: ignore[arg-type]
