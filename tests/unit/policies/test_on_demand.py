"""On-demand scaling: what is asked for and not there, no more at once than can load."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from modelless.common.errors import InvalidInputError
from modelless.controller.control.planner import PlanLimits, Planner
from modelless.controller.device.messages import LoadInstance, UnloadInstance
from modelless.policies.eviction.least_frequently_used import LeastFrequentlyUsed
from modelless.policies.eviction.least_recently_used import LeastRecentlyUsed
from modelless.policies.forecast.last_value import LastValue
from modelless.policies.placement.most_free_memory import MostFreeMemory
from modelless.policies.reasons import Reason
from modelless.policies.scaling.on_demand import OnDemand
from modelless.policies.seams import EvictionPolicy
from modelless.policies.views import ClusterView, Demand, Instance, VariantFacts, WorkerState
from modelless.variants.vocabulary import DeviceClass
from tests.builders import make_cluster_view, make_facts

GPU = DeviceClass("gpu", "gpu", 1, 1 << 40, 1.0, 300.0)
SMALL, MIDDLE, LARGE = "t/small/v@1", "t/middle/v@1", "t/large/v@1"
OTHER = "u/m/v@1"


def facts(variant_id: str, accuracy: float, latency_s: float) -> VariantFacts:
    return make_facts(variant_id, accuracy, {"gpu": [latency_s]}, memory_bytes=1e6, load_s=10.0)


VARIANTS = (
    facts(LARGE, 90.0, 0.9),
    facts(SMALL, 70.0, 0.1),
    facts(MIDDLE, 80.0, 0.3),
    facts(OTHER, 70.0, 0.2),
)


def loaded(variant_id: str, *, loading: bool = False) -> Instance:
    return Instance("w0", variant_id, 10, 10.0, 0.0, 0 if loading else 5, in_use=loading)


def view(
    *demands: Demand, held: Sequence[Instance] = (), workers: int = 4, **fields: Any
) -> ClusterView:
    states = tuple(
        WorkerState(f"w{number}", "gpu", 1 << 30, tuple(held) if number == 0 else ())
        for number in range(workers)
    )
    arrivals = fields.pop("arrivals", {})
    seen = make_cluster_view(
        {"gpu": GPU}, states, VARIANTS, demands, unmet_per_s=fields.pop("unmet", {})
    )
    return replace(seen, arrivals_per_s={**seen.arrivals_per_s, **arrivals}, **fields)


def wanted(seen: ClusterView, **settings: Any) -> list[str]:
    targets = OnDemand(**settings).targets(seen, {})
    assert targets.reason is Reason.DEMAND
    assert targets.workers == {}
    assert set(targets.instances.values()) <= {1}
    return [placement.variant_id for placement in targets.instances]


def test_the_cheapest_variant_that_meets_the_demand() -> None:
    assert wanted(view(Demand("t", 1.0, 0.0, 1.0))) == [SMALL]
    assert wanted(view(Demand("t", 1.0, 75.0, 1.0))) == [MIDDLE]
    assert wanted(view(Demand("t/large", 1.0, 0.0, 1.0))) == [LARGE]


def test_one_variant_for_several_kinds_if_it_meets_them() -> None:
    assert wanted(view(Demand("t", 1.0, 0.0, 9.0), Demand("t", 1.0, 75.0, 1.0))) == [MIDDLE]
    # The accurate variant is too slow for the hasty queries: both are wanted.
    kinds = (Demand("t", 0.2, 0.0, 9.0), Demand("t", 1.0, 85.0, 1.0))
    assert wanted(view(*kinds)) == [LARGE, SMALL]


@pytest.mark.parametrize("kind", [Demand("t", 1.0, 99.0, 1.0), Demand("t", 0.01, 0.0, 1.0)])
def test_what_no_variant_can_meet_is_not_loaded_for(kind: Demand) -> None:
    assert wanted(view(kind)) == []


def test_what_is_loaded_or_loading_is_not_wanted_again() -> None:
    kinds = (Demand("t", 1.0, 0.0, 1.0), Demand("t", 1.0, 75.0, 1.0))
    assert wanted(view(*kinds, held=[loaded(MIDDLE)])) == []
    assert wanted(view(*kinds, held=[loaded(MIDDLE, loading=True)])) == []
    assert wanted(view(*kinds, held=[loaded(SMALL)])) == [MIDDLE]


def test_what_was_asked_for_in_vain_comes_first() -> None:
    kinds = (Demand("t", 1.0, 0.0, 9.0), Demand("u", 1.0, 0.0, 1.0))
    assert wanted(view(*kinds)) == [SMALL, OTHER]
    assert wanted(view(*kinds, unmet={"u": 1.0})) == [OTHER, SMALL]


def test_queries_that_still_wait_are_demand_too() -> None:
    assert wanted(view(open_queries={"u": 2}), preload=False) == [OTHER]


def test_no_more_than_can_begin_to_load() -> None:
    kinds = (Demand("t", 1.0, 0.0, 9.0), Demand("u", 1.0, 0.0, 1.0))
    assert wanted(view(*kinds, workers=1)) == [SMALL]
    assert wanted(view(*kinds, workers=1), loads_per_worker=2.0) == [SMALL, OTHER]
    busy = [loaded("x/m/v@1", loading=True)]
    assert wanted(view(*kinds, workers=1, held=busy)) == []
    assert wanted(view(*kinds, workers=2, held=busy)) == [SMALL]


def test_before_the_first_query_every_task_gets_its_cheapest_variant() -> None:
    assert wanted(view()) == [SMALL, OTHER]
    assert wanted(view(), preload=False) == []


def test_after_the_first_query_silence_wants_nothing() -> None:
    policy = OnDemand()
    policy.targets(view(Demand("t", 1.0, 0.0, 1.0)), {})
    assert policy.targets(view(), {}).instances == {}


@pytest.mark.parametrize("loads", [0.0, -1.0, math.nan, "two"])
def test_loads_per_worker_are_above_0(loads: Any) -> None:
    with pytest.raises(InvalidInputError, match="loads_per_worker: got"):
        OnDemand(loads_per_worker=loads)


# -- with the planner ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("eviction", "victim"), [(LeastRecentlyUsed(), "old"), (LeastFrequentlyUsed(), "seldom")]
)
@pytest.mark.parametrize(
    "seen",
    [{"unmet": {"t": 1.0}}, {"unmet": {}}],
    ids=["nothing of the task is loaded", "what is loaded is too coarse"],
)
def test_a_miss_is_loaded_at_the_next_tick_and_the_eviction_policy_chooses_who_leaves(
    eviction: EvictionPolicy, victim: str, seen: dict[str, Any]
) -> None:
    size = 1_000_000
    held = [
        Instance("w0", "old/m/v@1", size, 10.0, last_used_s=1.0, use_count=9),
        Instance("w0", "seldom/m/v@1", size, 10.0, last_used_s=2.0, use_count=3),
    ]
    if not seen["unmet"]:
        held.append(Instance("w0", SMALL, size, 10.0, last_used_s=3.0, use_count=20))
    full = WorkerState("w0", "gpu", len(held) * size, tuple(held))
    demands = (Demand("t", 1.0, 75.0, 1.0),)
    cluster = ClusterView(
        5.0, {"gpu": GPU}, (full,), VARIANTS, {"t": 1.0}, demands=demands, unmet_per_s=seen["unmet"]
    )
    planner = Planner(OnDemand(), MostFreeMemory(), eviction, LastValue(), PlanLimits({}, {}))
    reason = Reason.DEMAND if seen["unmet"] else Reason.WANTED
    assert planner.tick(cluster) == [
        UnloadInstance("w0", f"{victim}/m/v@1", Reason.ROOM_NEEDED, MIDDLE),
        LoadInstance("w0", MIDDLE, reason, size, "gpu"),
    ]
    assert planner.problems == []
