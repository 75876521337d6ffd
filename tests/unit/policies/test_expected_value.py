"""Expected value: what it holds, and what it reloads, against enumeration and by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError
from modelless.policies.reasons import Reason
from modelless.policies.scaling.expected_value.expected_value import ExpectedValue
from modelless.policies.scaling.expected_value.offer import offer_of
from modelless.policies.scaling.expected_value.rates import KindRate, KindRates
from modelless.policies.scaling.expected_value.search import _TaskState
from modelless.policies.scaling.expected_value.worth import TaskWorth, service_of, worth_of
from modelless.policies.scaling.fixed import Fixed
from modelless.policies.views import (
    ClusterView,
    Demand,
    FloatArray,
    Instance,
    Targets,
    VariantFacts,
    WorkerState,
)
from modelless.variants.vocabulary import DeviceClass
from tests.builders import make_cluster_view, make_facts

CLASSES = {"gpu": DeviceClass("gpu", "gpu", 1, 100, 3.6, 250.0)}


def variant(
    task: str,
    size: float,
    *,
    model: str = "m",
    accuracy: float = 80.0,
    latency_s: float = 0.01,
    load_s: float = 1.0,
) -> VariantFacts:
    return make_facts(
        f"{task}/{model}/v@1", accuracy, {"gpu": [latency_s]}, memory_bytes=size, load_s=load_s
    )


def worker(
    number: int, held: Sequence[VariantFacts] = (), memory: int = 100, **more: Any
) -> WorkerState:
    instances = tuple(
        Instance(
            f"w{number}", v.variant_id, int(v.memory_bytes["gpu"]), v.load_s["gpu"], 0.0, 1, **more
        )
        for v in held
    )
    return WorkerState(f"w{number}", "gpu", memory, instances)


def settled(
    workers: Sequence[WorkerState],
    variants: Sequence[VariantFacts],
    rates: Mapping[str, float],
    seconds: int = 60,
    floor: float = 0.0,
    **settings: Any,
) -> Targets:
    """The instances wanted when tasks were asked for at these rates, with five seconds' time."""
    policy = ExpectedValue(**settings)
    demands = [Demand(task, 5.0, floor, rate) for task, rate in rates.items()]
    for second in range(seconds):
        view = make_cluster_view(CLASSES, workers, variants, demands, now_s=float(second))
        targets = policy.targets(view, rates)
    return targets


def counts(targets: Targets) -> dict[str, int]:
    return {p.variant_id.split("/v@")[0]: n for p, n in targets.instances.items() if n}


def test_where_memory_holds_all_it_holds_what_fixed_does() -> None:
    variants = [variant("a", 30.0), variant("a", 40.0, model="n", accuracy=90.0, latency_s=0.05)]
    targets = settled([worker(0), worker(1)], variants, {"a": 5.0})
    here = make_cluster_view(CLASSES, [worker(0), worker(1)], variants, [], now_s=0.0)
    assert dict(targets.instances) == dict(Fixed().targets(here, {}).instances)
    assert targets.reason is Reason.OPTIMISED


def test_before_any_query_each_task_has_its_quickest_variant_and_the_rest_is_as_fixed() -> None:
    first = variant("a", 60.0), variant("a", 50.0, model="n", accuracy=90.0, latency_s=0.05)
    workers = [worker(number) for number in range(3)]
    alone = counts(settled(workers, first, {}, seconds=1))
    assert alone == {"a/m": 3}
    variants = [*first, variant("b", 60.0, latency_s=0.02), variant("c", 60.0, latency_s=0.03)]
    assert counts(settled(workers, variants, {}, seconds=1)) == {"a/m": 1, "b/m": 1, "c/m": 1}
    assert counts(settled(workers[:2], variants, {}, seconds=1)) == {"a/m": 1, "b/m": 1}


@pytest.mark.parametrize(("load_s", "planned"), [(0.0, 9), (2.0, 3), (20.0, 1)])
def test_no_more_loads_are_planned_than_begin_before_others_know_better(
    load_s: float, planned: int
) -> None:
    variants = [variant(f"t{number}", 10.0, load_s=load_s) for number in range(9)]
    rates = {f"t{number}": 1.0 + number for number in range(9)}
    assert counts(settled([worker(0)], variants, rates)) == {
        f"t{number}/m": 1 for number in range(9 - planned, 9)
    }


def test_when_memory_is_short_it_holds_what_is_worth_most_a_byte() -> None:
    variants = [variant("a", 60.0), variant("b", 40.0), variant("c", 60.0)]
    targets = settled([worker(0)], variants, {"a": 10.0, "b": 6.0, "c": 6.0})
    assert counts(targets) == {"a/m": 1, "b/m": 1}


def test_what_has_a_stand_in_gives_way() -> None:
    """Task a is asked for more, but its second variant adds a point where b's adds a service."""
    best = variant("a", 50.0, model="best", accuracy=81.0)
    good = variant("a", 50.0, model="good", accuracy=80.0)
    other = variant("b", 50.0)
    targets = settled([worker(0, [best, good])], [best, good, other], {"a": 20.0, "b": 2.0})
    assert "b/m" in counts(targets)
    assert len(counts(targets)) == 2


def test_a_stand_in_that_is_too_inaccurate_is_none() -> None:
    best = variant("a", 50.0, model="best", accuracy=81.0)
    good = variant("a", 50.0, model="good", accuracy=60.0)
    other = variant("b", 50.0)
    workers = [worker(0, [good, best])]
    targets = settled(workers, [best, good, other], {"a": 20.0, "b": 2.0}, floor=70.0)
    assert set(counts(targets)) == {"a/best", "b/m"}


@pytest.mark.parametrize(
    ("load_s", "rate", "pays"),
    [
        (1.0, 2.1, False),
        (1.0, 4.0, True),
        (30.0, 3.0, False),
        (30.0, 6.0, True),
        (90.0, 8.0, False),
        (90.0, 18.0, True),
    ],
)
def test_a_reload_must_pay_with_confidence_and_less_the_later_it_ends(
    load_s: float, rate: float, pays: bool
) -> None:
    """It gains its rate x exp(-load time / 60 s); what it displaces loses 2."""
    held, other = variant("a", 60.0), variant("b", 60.0, load_s=load_s)
    targets = settled([worker(0, [held])], [held, other], {"a": 2.0, "b": rate})
    assert counts(targets) == ({"b/m": 1} if pays else {"a/m": 1})


@pytest.mark.parametrize(
    ("load_s", "limit_s", "held_rate", "comes"),
    [
        (0.1, 5.0, 1.0, True),  # what leaves loses a second's queries
        (0.1, 5.0, 9.0, False),  # it would lose nine, for four
        (0.1, 0.15, 1.0, False),  # half of the limit is too short for the load
        (3.0, 5.0, 0.01, False),
        (2.0, 5.0, 0.01, True),
    ],
)
def test_a_quick_load_comes_for_queries_that_nothing_could_serve(
    load_s: float, limit_s: float, held_rate: float, comes: bool
) -> None:
    held, other = variant("a", 60.0), variant("b", 60.0, load_s=load_s)
    policy, often = ExpectedValue(), Demand("a", 5.0, 0.0, held_rate)
    policy.targets(make_cluster_view(CLASSES, [worker(0, [held])], [held, other], [often]), {})
    for second in range(1, 60):
        view = make_cluster_view(
            CLASSES, [worker(0, [held])], [held, other], [often], now_s=float(second)
        )
        assert counts(policy.targets(view, {})) == {"a/m": 1}
    view = make_cluster_view(
        CLASSES,
        [worker(0, [held])],
        [held, other],
        [often, Demand("b", limit_s, 0.0, 4.0)],
        now_s=60.0,
        unmet_per_s={"b": 4.0},
    )
    assert counts(policy.targets(view, {})) == ({"b/m": 1} if comes else {"a/m": 1})


def test_it_comes_first_though_a_better_one_is_planned_that_takes_longer() -> None:
    held = [variant("a", 40.0), variant("a", 40.0, model="n", accuracy=70.0)]
    quick = variant("b", 40.0, model="quick", accuracy=60.0, load_s=0.2)
    better = variant("b", 40.0, model="better", load_s=5.0)
    here, policy = worker(0, held), ExpectedValue()
    asked = Demand("b", 4.0, 0.0, 5.0)
    for second in range(30):
        view = make_cluster_view(
            CLASSES, [here], [*held, quick, better], [asked], now_s=float(second),
            unmet_per_s={"b": 5.0},
        )  # fmt: skip
        targets = policy.targets(view, {})
        assert next(iter(targets.instances)).variant_id == quick.variant_id, second


def test_a_few_queries_displace_nothing() -> None:
    held, other = variant("a", 60.0), variant("b", 60.0)
    rates = {"a": 0.5, "b": 1.0}
    assert counts(settled([worker(0, [held])], [held, other], rates, seconds=3)) == {"a/m": 1}
    assert counts(settled([worker(0, [held])], [held, other], rates, seconds=120)) == {"b/m": 1}


@pytest.mark.parametrize("why", ["in use", "pinned", "barred"])
def test_what_may_not_be_moved_stays(why: str) -> None:
    held, other = variant("a", 60.0), variant("b", 60.0)
    more = {"in use": {"in_use": True}, "pinned": {"pinned": True}, "barred": {}}[why]
    here = worker(0, [held], **more)
    if why == "barred":
        barred = frozenset([other.variant_id])
        here = WorkerState("w0", "gpu", 100, here.instances, barred=barred)
    assert counts(settled([here], [held, other], {"b": 9.0})) == {"a/m": 1}


@pytest.mark.parametrize("in_use", [False, True])
def test_the_room_of_an_earlier_version_can_be_had(in_use: bool) -> None:
    """It is none of the view's variants, and the planner evicts it when room is needed."""
    earlier, other = variant("a", 60.0), variant("b", 60.0)
    here = worker(0, [earlier], in_use=in_use)
    assert counts(settled([here], [other], {"b": 9.0})) == ({} if in_use else {"b/m": 1})


def test_a_worker_that_loads_is_left_alone() -> None:
    loading = variant("a", 10.0)
    instance = Instance("w0", loading.variant_id, 10, 1.0, 0.0, 0, in_use=True)
    here = WorkerState("w0", "gpu", 100, (instance,))
    assert counts(settled([here], [loading, variant("b", 60.0)], {"b": 9.0})) == {"a/m": 1}


def test_under_overload_it_holds_the_quick_and_else_the_accurate() -> None:
    quick = variant("a", 60.0, model="quick", accuracy=70.0, latency_s=0.1)
    good = variant("a", 60.0, model="good", accuracy=80.0, latency_s=0.5)
    for held in (quick, good):
        for rate, best in ((1.0, "a/good"), (9.0, "a/quick")):
            targets = settled([worker(0, [held])], [quick, good], {"a": rate}, seconds=300)
            assert counts(targets) == {best: 1}, (held, rate)


def test_time_has_a_price_once_demand_exceeds_it() -> None:
    offer = offer_of([variant("a", 60.0, latency_s=0.1)], ["gpu"])
    one = np.array([1.0])
    for rate, least, most in ((1.0, 0.0, 0.01), (20.0, 1_000.0, 2_000.0)):
        kinds = [KindRate("a", 5.0, 0.0, 1.0, rate)]
        _, prices = worth_of(kinds, offer, one, 0.5 * one, {}, 100.0, 0.9)
        assert least <= prices["gpu"] <= most


def two_classes(gpu_s: float, cpu_s: float) -> list[VariantFacts]:
    latencies = {"gpu": [gpu_s], "cpu": [cpu_s]}
    return [make_facts("a/m/v@1", 80.0, latencies, memory_bytes=10.0, load_s=1.0)]


def test_a_busy_worker_is_late_though_no_query_prefers_its_class() -> None:
    """All of it is better on the GPU; a CPU that is always busy still makes it wait."""
    offer = offer_of(two_classes(0.1, 4.0), ["cpu", "gpu"])
    kinds = [KindRate("a", 10.0, 0.0, 1.0, 2.0)]
    for busy, most in ((0.1, 0.05), (1.0, 1.0)):
        (task,), _ = worth_of(kinds, offer, np.ones(2), np.array([busy, 0.5]), {}, 100.0, 0.9)
        cpu = int(np.flatnonzero(offer.class_of[task.rows] == 0)[0])
        assert most / 2.0 <= task.blocked[0, cpu] <= most, busy


def worth_of_slow(slow_s: float, peers: int, busy: float) -> float:
    """Points of a rare slow query where two a second can wait for 80 ms, for 180 points each."""
    variants = [variant("a", 10.0, latency_s=0.02), variant("b", 10.0, latency_s=slow_s)]
    offer = offer_of(variants, ["gpu"])
    kinds = [KindRate("a", 0.1, 0.0, 1.0, 2.0), KindRate("b", 9.0, 0.0, 1.0, 0.01)]
    workers = np.array([1.0 + peers])
    worth, prices = worth_of(kinds, offer, workers, np.array([busy]), {}, 100.0, 0.9)
    assert prices["gpu"] < 1.0
    return float(worth[1].gain[0, 0])


@pytest.mark.parametrize(("peers", "busy", "pays"), [(0, 0.2, 1), (3, 0.2, 0), (0, 1.0, 0)])
def test_a_slow_query_pays_for_those_that_cannot_wait_for_it(
    peers: int, busy: float, pays: int
) -> None:
    """With peers they would serve those two, and on a worker that is always busy nobody would."""
    lost = 2.0 * 180.0 * (0.48 - 0.08) * (1.0 - busy)
    assert 180.0 - worth_of_slow(0.48, peers, busy) == pytest.approx(lost * pays, abs=8.0)


def test_a_slow_query_is_worth_nothing_if_it_costs_others_more_than_it_brings() -> None:
    """What others lose reaches its 180 points at 0.08 + 180 / (360 x 0.8) = 0.705 s."""
    assert worth_of_slow(0.69, 0, 0.2) > 0.0
    assert worth_of_slow(0.72, 0, 0.2) == 0.0
    assert worth_of_slow(0.72, 3, 0.2) > 170.0


def test_batches_form_of_what_arrives_within_half_the_limit() -> None:
    facts = make_facts("a/m/v@1", 80.0, {"gpu": [0.1 + 0.01 * n for n in range(16)]})
    offer = offer_of([facts], ["gpu"])
    for rate, items in ((0.001, 1), (6.0, 4), (1000.0, 16)):
        service = service_of([KindRate("a", 1.0, 0.0, 1.0, rate)], offer)
        assert service.time_s[0, 0] == pytest.approx((0.1 + 0.01 * (items - 1)) / items)


def enumerated(gains: FloatArray, blocked: FloatArray) -> float:
    """The expected best of the offers that are free, by all cases."""
    total = 0.0
    for free in product((False, True), repeat=len(gains)):
        chance = np.prod(np.where(free, 1.0 - blocked, blocked))
        total += float(chance * max(np.where(free, gains, 0.0).max(), 0.0))
    return total


@pytest.mark.parametrize("seed", range(8))
def test_changes_are_those_of_the_expected_best_offer(seed: int) -> None:
    rng = np.random.default_rng(seed)
    variants, workers = 3, 4
    gain = rng.uniform(0.0, 180.0, (1, variants))
    gain[rng.random(gain.shape) < 0.2] = 0.0
    blocked = rng.uniform(0.02, 0.9, gain.shape)
    rates = rng.uniform(0.1, 9.0, 1)
    task = TaskWorth(np.arange(variants), rates, rates, gain, blocked)
    held = rng.random((variants, workers)) < 0.5

    def worth(of: NDArray[np.bool_]) -> float:
        offers = np.where(of, gain[0][:, None], 0.0)
        return float(rates[0]) * enumerated(offers.max(axis=0), blocked[0][offers.argmax(axis=0)])

    gained, lost = _TaskState(task, held).changes(held)
    for row, column in product(range(variants), range(workers)):
        other = held.copy()
        other[row, column] = not held[row, column]
        change = worth(other) - worth(held)
        if held[row, column]:
            assert lost[row, column] == pytest.approx(max(-change, 0.0), abs=1e-6)
        else:
            assert gained[row, column] == pytest.approx(max(change, 0.0), abs=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {"horizon_s": 0.0},
        {"memory_s": float("inf")},
        {"utilisation": 0.0},
        {"utilisation": 1.5},
        {"miss_penalty": -1.0},
        {"confidence_z": float("nan")},
    ],
)
def test_settings_out_of_range_are_refused_by_name(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(settings))):
        ExpectedValue(**settings)


class TestRates:
    def observe(self, rates: KindRates, start: int, per_s: Sequence[float]) -> None:
        for second, rate in enumerate(per_s, start):
            demands = (Demand("a", 1.0, 0.0, rate),) if rate else ()
            rates.observe(ClusterView(float(second), {}, (), (), {"a": rate}, {}, demands=demands))

    def test_noise_does_not_move_a_rate_but_a_change_does(self) -> None:
        rates = KindRates(300.0)
        self.observe(rates, 0, [0.0, 0.0, 0.0, 1.0] * 50)
        (kind,) = rates.rates({})
        assert kind[:4] == ("a", 1.0, 0.0, 1.0)
        assert kind.rate_per_s == pytest.approx(0.25, rel=0.1)
        self.observe(rates, 200, [1.0, 1.0])  # two more: chance
        assert rates.rates({})[0].rate_per_s < 0.3
        self.observe(rates, 202, [2.0] * 20)  # forty where five were to be expected
        assert rates.rates({})[0].rate_per_s > 1.2

    def test_a_forecast_is_believed_where_chance_does_not_explain_it(self) -> None:
        rates = KindRates(300.0)
        self.observe(rates, 0, [80.0] * 60)
        (near,) = rates.rates({"a": 95.0})
        (far,) = rates.rates({"a": 160.0})
        assert near.rate_per_s == pytest.approx(80.0, rel=0.02)
        assert far.rate_per_s == pytest.approx(160.0)

    def test_a_new_scope_comes_in_by_its_forecast(self) -> None:
        assert KindRates(300.0).rates({"b": 50.0, "c": float("nan")})[0].scope == "b"

    def test_a_query_that_waits_for_a_load_counts_once(self) -> None:
        rates, told = KindRates(60.0), KindRates(60.0)
        for second in range(60):
            came = Demand("a", 60.0, 0.0, 1.0, waiting_per_s=float(second > 0))
            lost = Demand("a", 60.0, 0.0, 1.0, waiting_per_s=1.0)  # when it came was not reported
            for each, demand in ((rates, came), (told, lost)):
                each.observe(ClusterView(float(second), {}, (), (), {}, {}, demands=(demand,)))
        for each in (rates, told):
            assert each.rates({})[0].rate_per_s == pytest.approx(1.0 / 38.0, rel=0.1)

    def test_the_same_instant_twice_teaches_once(self) -> None:
        rates = KindRates(300.0)
        self.observe(rates, 0, [4.0, 4.0])
        before = rates.rates({})
        self.observe(rates, 1, [4.0])
        assert rates.rates({}) == before

    def test_a_new_kind_takes_the_place_of_the_rarest(self) -> None:
        rates = KindRates(300.0)
        rare = [Demand(f"t{n}", 1.0, 0.0, 0.05) for n in range(256)]
        for second in range(60):
            new = [Demand("big", 1.0, 0.0, 100.0)] if second > 30 else []
            rates.observe(ClusterView(float(second), {}, (), (), {}, {}, demands=tuple(rare + new)))
        assert "big" in {kind.scope for kind in rates.rates({})}

    def test_kinds_are_bounded_in_number(self) -> None:
        rates = KindRates(300.0)
        demands = tuple([Demand(f"t{n}", 1.0, 0.0, 1.0) for n in range(1000)])
        rates.observe(ClusterView(0.0, {}, (), (), {}, {}, demands=demands))
        assert len(rates.rates({})) == 256
