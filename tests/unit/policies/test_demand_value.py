"""Demand value: what it holds, what it reloads and how many workers it wants, reckoned by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from modelless.common.errors import InvalidInputError
from modelless.policies.reasons import Reason
from modelless.policies.scaling.demand_value.demand_value import DemandValue
from modelless.policies.scaling.demand_value.loads import LoadsUnderWay
from modelless.policies.scaling.demand_value.rates import KindKey, KindRates
from modelless.policies.scaling.demand_value.workers import WorkerCounts
from modelless.policies.scaling.fixed import Fixed
from modelless.policies.views import (
    ClusterView,
    Demand,
    Instance,
    Targets,
    VariantFacts,
    WorkerState,
)
from modelless.variants.vocabulary import DeviceClass, Placement
from tests.builders import make_cluster_view, make_facts

CLASSES = {"gpu": DeviceClass("gpu", "gpu", 1, 100, 3.6, 250.0)}


def variant(
    task: str,
    size: float,
    *,
    model: str = "m",
    accuracy: float = 80.0,
    latency_s: float = 0.01,
    load_s: float = 10.0,
) -> VariantFacts:
    return make_facts(
        f"{task}/{model}/v@1", accuracy, {"gpu": [latency_s]}, memory_bytes=size, load_s=load_s
    )


def worker(number: int, held: Sequence[VariantFacts] = (), memory: int = 100) -> WorkerState:
    instances = tuple(
        Instance(f"w{number}", v.variant_id, int(v.memory_bytes["gpu"]), v.load_s["gpu"], 0.0, 1)
        for v in held
    )
    return WorkerState(f"w{number}", "gpu", memory, instances)


def view(
    now_s: float,
    workers: Sequence[WorkerState],
    variants: Sequence[VariantFacts],
    rates: Mapping[str, float],
    **more: Any,
) -> ClusterView:
    """A view in which each task is asked for at its rate, with five seconds' time."""
    demands = [Demand(task, 5.0, 0.0, rate) for task, rate in rates.items()]
    return make_cluster_view(CLASSES, workers, variants, demands, now_s=now_s, **more)


def settled(
    workers: Sequence[WorkerState],
    variants: Sequence[VariantFacts],
    rates: Mapping[str, float],
    **settings: Any,
) -> Targets:
    """What is wanted when the same has been asked for during a minute."""
    policy = DemandValue(**settings)
    for second in range(60):
        targets = policy.targets(view(float(second), workers, variants, rates), rates)
    return targets


def counts(targets: Targets) -> dict[str, int]:
    return {p.variant_id.split("/v@")[0]: n for p, n in targets.instances.items() if n}


def test_where_memory_holds_all_it_is_what_fixed_says() -> None:
    variants = [variant("a", 30.0), variant("a", 40.0, model="n", accuracy=90.0, latency_s=0.05)]
    here = view(0.0, [worker(0), worker(1)], variants, {"a": 5.0})
    targets, fixed = DemandValue().targets(here, {}), Fixed().targets(here, {})
    assert list(targets.instances.items()) == list(fixed.instances.items())
    assert targets.reason is Reason.OPTIMISED


def test_when_memory_is_short_it_holds_what_is_worth_most_a_byte() -> None:
    # a: 10/s x 0.8 / 60 = 0.13 a byte; b: 6/s x 0.8 / 40 = 0.12; c: 6/s x 0.8 / 60 = 0.08
    variants = [variant("a", 60.0), variant("b", 40.0), variant("c", 60.0)]
    targets = settled([worker(0)], variants, {"a": 10.0, "b": 6.0, "c": 6.0})
    assert counts(targets) == {"a/m": 1, "b/m": 1}


def test_the_accuracy_counts_with_the_rate() -> None:
    variants = [variant("a", 60.0, accuracy=40.0), variant("b", 60.0, accuracy=90.0)]
    targets = settled([worker(0)], variants, {"a": 10.0, "b": 6.0})  # 4.0 and 5.4 a second
    assert counts(targets) == {"b/m": 1}


def test_what_has_a_stand_in_gives_way() -> None:
    """Task a is asked for more, but its second variant adds one point where b's adds 80."""
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
    policy = DemandValue()
    demands = (Demand("a", 5.0, 70.0, 20.0), Demand("b", 5.0, 0.0, 2.0))
    for second in range(30):
        here = view(float(second), [worker(0, [good, best])], [best, good, other], {})
        here = ClusterView(
            here.now_s, CLASSES, here.workers, here.variants, {"a": 20.0}, {}, demands=demands
        )
        targets = policy.targets(here, {})
    assert set(counts(targets)) == {"a/best", "b/m"}


@pytest.mark.parametrize(
    ("load_s", "rate", "pays"),
    [
        # held: 2/s x 0.8 x 100 s = 160 lost. Gained: rate x 0.8 x (100 - load) seconds
        (10.0, 2.1, False),  # 151
        (10.0, 2.4, True),  # 173
        (60.0, 4.5, False),  # 144
        (60.0, 5.5, True),  # 176
        (150.0, 50.0, False),  # never ready before the horizon
    ],
)
def test_a_reload_must_pay_before_the_horizon(load_s: float, rate: float, pays: bool) -> None:
    held, other = variant("a", 60.0), variant("b", 60.0, load_s=load_s)
    targets = settled(
        [worker(0, [held])], [held, other], {"a": 2.0, "b": rate}, horizon_s=100.0, loading=0.0
    )
    assert counts(targets) == ({"b/m": 1} if pays else {"a/m": 1})


def test_loading_has_a_price_of_its_own() -> None:
    """173 against 160, as above; but ten seconds of half the worker's 1.6 a second are 8 more,
    and of all of it 16."""
    held, other = variant("a", 60.0), variant("b", 60.0)
    rates = {"a": 2.0, "b": 2.4}
    here = [worker(0, [held])], [held, other], rates
    assert counts(settled(*here, horizon_s=100.0, loading=0.5)) == {"b/m": 1}
    assert counts(settled(*here, horizon_s=100.0, loading=1.0)) == {"a/m": 1}


def test_loads_of_a_worker_wait_for_each_other() -> None:
    held, other, late = variant("a", 60.0), variant("b", 60.0), variant("c", 40.0, load_s=80.0)
    arriving = Instance("w0", late.variant_id, 40, 80.0, 0.0, 0, in_use=True)
    policy = DemandValue(horizon_s=100.0, loading=0.0)
    for second in range(60):
        shelf = worker(0, [held])
        # It appears in the 59th view, so that at the end it still loads for 79 s of the horizon.
        more = (arriving,) if second >= 58 else ()
        shelf = WorkerState("w0", "gpu", 100, (*shelf.instances, *more))
        here = view(float(second), [shelf], [held, other, late], {"a": 2.0, "b": 4.0, "c": 9.0})
        before = counts(policy.targets(here, {}))
        if second == 58:
            break
    assert before == {"a/m": 1, "c/m": 1}  # b would pay at once, not 80 s later


def test_what_is_asked_for_most_is_held_by_more_workers() -> None:
    """One worker's time, 70 of 100 at ten milliseconds, is not enough for 200 a second."""
    variants = [variant("a", 60.0), variant("b", 60.0)]
    targets = settled([worker(i) for i in range(4)], variants, {"a": 200.0, "b": 5.0})
    assert counts(targets) == {"a/m": 3, "b/m": 1}
    assert next(iter(targets.instances)) == Placement("a/m/v@1", "gpu")


def test_an_unmet_query_is_served_only_if_the_load_pays() -> None:
    """One query of 0.8, now and then, against the worth of what would have to leave."""
    held, other = variant("a", 60.0), variant("b", 60.0, load_s=2.0)

    def wanted(rate_of_held: float, waiting: int) -> dict[str, int]:
        policy = DemandValue(loading=0.0)
        for second in range(200):
            rates = {"a": rate_of_held} if second % 4 == 0 and rate_of_held else {}
            here = view(float(second), [worker(0, [held])], [held, other], rates)
            policy.targets(here, {})
        here = ClusterView(
            200.0,
            CLASSES,
            here.workers,
            here.variants,
            {"b": 1.0},
            {"b": 1.0},
            (Demand("b", 5.0, 0.0, 1.0),),
            {"b": waiting},
        )
        return counts(policy.targets(here, {}))

    assert wanted(2.0, 1) == {"a/m": 1}  # 0.5/s x 0.8 x 120 s = 48 would be lost
    assert wanted(2.0, 100) == {"b/m": 1}  # 80 are waiting for it


def test_nobody_has_asked_yet() -> None:
    """Room is used all the same: what is smallest for its accuracy comes first."""
    variants = [variant("a", 70.0), variant("b", 30.0), variant("c", 40.0)]
    targets = DemandValue().targets(view(0.0, [worker(0)], variants, {}), {})
    assert counts(targets) == {"b/m": 1, "c/m": 1}


def test_the_shares_are_those_of_the_plan() -> None:
    variants = [variant("a", 60.0)]
    targets = settled([worker(0)], variants, {"a": 10.0})
    assert targets.shares["a"] == {Placement("a/m/v@1", "gpu"): 1.0}


def test_workers_are_left_alone_unless_asked_for() -> None:
    assert settled([worker(0)], [variant("a", 60.0)], {"a": 500.0}).workers == {}


def test_workers_come_at_once_and_go_when_their_rent_has_passed_their_start() -> None:
    """345/s x 10 ms = 3.45 devices, at 70 % 5; 60/s need one. A worker rents at 0.001 USD/s and
    earns up to 70 answers of 0.8 - 0.001 x 0.01 / 0.7 / 0.001 a second, so 30 s of starting lose
    1.65 USD at 0.001 USD each: it is kept idle for 1,650 s or so."""
    policy = DemandValue(scale_workers=True, memory_s=20.0)
    variants = [variant("a", 60.0)]
    wanted = []
    for second in range(0, 2000, 5):
        rate = 345.0 if second < 30 else 60.0
        here = view(float(second), [worker(i) for i in range(5)], variants, {"a": rate})
        wanted.append(policy.targets(here, {"a": rate}).workers["gpu"])
    assert wanted[0] == 5
    gone = wanted.index(1)
    assert 1650 < 5 * gone < 1800  # (the rate takes a while to be believed)
    assert set(wanted[: gone - 30]) == {5}


def test_a_crowd_that_no_device_could_serve_does_not_make_models_worthless() -> None:
    variants = [variant("a", 60.0), variant("b", 60.0)]
    targets = settled([worker(0), worker(1)], variants, {"a": 900.0, "b": 0.1})
    assert counts(targets) == {"a/m": 2}


def test_most_workers_bounds_what_is_planned_with() -> None:
    targets = settled(
        [worker(0)],
        [variant("a", 60.0)],
        {"a": 700.0},
        scale_workers=True,
        most_workers={"gpu": 3},
    )
    assert targets.workers == {"gpu": 3}


@pytest.mark.parametrize(
    "settings",
    [
        {"horizon_s": 0.0},
        {"utilisation": 0.0},
        {"utilisation": 1.5},
        {"slack": 0.5},
        {"spread": -0.1},
        {"loading": float("nan")},
        {"most_workers": {"gpu": -1}},
        {"query_usd": float("inf")},
    ],
)
def test_settings_out_of_range_are_refused_by_name(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(settings))):
        DemandValue(**settings)


class TestRates:
    def observe(self, rates: KindRates, start: int, per_s: Sequence[float]) -> None:
        for second, rate in enumerate(per_s, start):
            demands = (Demand("a", 1.0, 0.0, rate),) if rate else ()
            here = ClusterView(float(second), {}, (), (), {"a": rate}, {}, demands=demands)
            rates.observe(here)

    def test_noise_does_not_move_a_rate_but_a_change_does(self) -> None:
        rates = KindRates(300.0)
        self.observe(rates, 0, [0.0, 0.0, 0.0, 1.0] * 50)
        (kind,) = rates.rates({}, 1)
        assert kind.key == KindKey("a", 1.0, 0.0)
        assert kind.rate_per_s == pytest.approx(0.25, rel=0.1)
        self.observe(rates, 200, [1.0, 1.0])  # two more: chance
        assert rates.rates({}, 1)[0].rate_per_s < 0.3
        self.observe(rates, 202, [2.0] * 20)  # forty where five were to be expected
        assert rates.rates({}, 1)[0].rate_per_s > 1.2

    def test_a_forecast_is_believed_where_chance_does_not_explain_it(self) -> None:
        rates = KindRates(300.0)
        self.observe(rates, 0, [80.0] * 60)
        (near,) = rates.rates({"a": 95.0}, 1)
        (far,) = rates.rates({"a": 160.0}, 1)
        assert near.rate_per_s == pytest.approx(80.0, rel=0.02)
        assert far.rate_per_s == pytest.approx(160.0)

    def test_a_new_scope_comes_in_by_its_forecast(self) -> None:
        rates = KindRates(300.0)
        assert rates.rates({"b": 50.0, "c": float("nan")}, 2)[0].key.scope == "b"

    def test_the_same_instant_twice_teaches_once(self) -> None:
        rates = KindRates(300.0)
        self.observe(rates, 0, [4.0, 4.0])
        before = rates.rates({}, 1)
        self.observe(rates, 1, [4.0])
        assert rates.rates({}, 1) == before


def test_loads_under_way_end_one_after_another() -> None:
    def here(now_s: float, *held: Instance) -> ClusterView:
        return ClusterView(now_s, CLASSES, (WorkerState("w0", "gpu", 100, held),), (), {}, {})

    def load(name: str, load_s: float, **more: Any) -> Instance:
        return Instance("w0", name, 10, load_s, 0.0, 0, **{"in_use": True, **more})

    loads = LoadsUnderWay()
    assert loads.observe(here(0.0)) == {}
    assert loads.observe(here(1.0, load("a", 5.0), load("b", 7.0))) == {"w0": 12.0}
    assert loads.observe(here(4.0, load("a", 5.0), load("b", 7.0))) == {"w0": 9.0}
    ready = load("a", 5.0, in_use=False)
    assert loads.observe(here(7.0, ready, load("b", 7.0))) == {"w0": 6.0}
    assert loads.observe(here(8.0, ready)) == {}


def test_idle_rent_is_counted_of_each_worker_since_it_was_last_needed() -> None:
    counted = WorkerCounts()

    def wanted(now_s: float, needed: int) -> int:
        rent, loss = {"gpu": 1.0}, {"gpu": 10.0}
        return counted.wanted(now_s, {"gpu": 3}, {"gpu": needed}, rent, loss)["gpu"]

    assert wanted(0.0, 3) == 3
    assert wanted(6.0, 2) == 3  # 6 of 10 paid for the third
    assert wanted(7.0, 3) == 3  # needed again: it begins anew
    assert wanted(12.0, 2) == 3
    assert wanted(17.0, 1) == 3  # 10 of 10 paid for the third, 5 for the second
    assert wanted(18.0, 1) == 2
    assert wanted(23.0, 1) == 1
    assert wanted(24.0, 5) == 5
