"""Proteus against its paper: its program by brute force, and what is made of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import isnan

import numpy as np
import pytest
from scipy.optimize import linprog

from modelless.common.errors import InvalidInputError
from modelless.policies.plan_quality import PlanSource
from modelless.policies.reasons import Reason
from modelless.policies.scaling import proteus
from modelless.policies.scaling.demand_mix import DemandKind
from modelless.policies.scaling.mixed_integer import SolverLimits
from modelless.policies.scaling.proteus import BETAS, Proteus
from modelless.policies.scaling.proteus_program import ProteusProgram, SearchResult
from modelless.policies.scaling.worker_options import WorkerOption, worker_options
from modelless.policies.views import ClusterView, Demand, Targets, WorkerState
from modelless.variants.vocabulary import DeviceClass, Placement
from tests.builders import make_cluster_view, make_facts, make_workers

LIMITS = SolverLimits(10_000, 1e-6, 60.0)


def make_view(
    variants: Mapping[str, tuple[float, float]],
    workers: int,
    demands: Sequence[Demand] = (),
    now_s: float = 0.0,
) -> ClusterView:
    """Workers of one class. A batch of b takes (1 + 0.5 (b - 1)) x the latency of one.

    Args:
        variants: accuracy in per cent, and seconds of one item.
    """
    cpu = DeviceClass("cpu", "cpu", 1, 1000, 1.0, 10.0)
    facts = [
        make_facts(f"t/{name}/v@1", accuracy, {"cpu": [one_s * (1.0 + 0.5 * n) for n in range(8)]})
        for name, (accuracy, one_s) in variants.items()
    ]
    return make_cluster_view(
        {"cpu": cpu}, make_workers({"cpu": workers}), facts, demands, now_s=now_s
    )


def cpu(name: str) -> Placement:
    return Placement(f"t/{name}/v@1", "cpu")


LADDER = {"small": (60.0, 0.01), "mid": (70.0, 0.02), "large": (80.0, 0.05)}


# -- the program ------------------------------------------------------------------------------


def some_case(seed: int) -> tuple[list[DemandKind], list[WorkerOption], dict[str, int]]:
    rng = np.random.default_rng(seed)
    kinds = [DemandKind(f"t{k}", 0.0, 1.0, float(rng.uniform(20.0, 90.0))) for k in range(2)]
    options = []
    for device_class in ("cpu", "gpu"):
        for number in range(3):
            takes = [frozenset({0}), frozenset({1}), frozenset({0, 1})][int(rng.integers(3))]
            options.append(
                WorkerOption(
                    Placement(f"v{number}", device_class),
                    1,
                    float(rng.uniform(5.0, 60.0)),
                    float(rng.uniform(50.0, 90.0)),
                    1.0,
                    takes,
                )
            )
    options += [WorkerOption(Placement("last", "cpu"), 1, 20.0, 50.0, 1.0, frozenset({0, 1}))]
    return kinds, options, {"cpu": 2, "gpu": 1}


def as_published(
    kinds: Sequence[DemandKind],
    options: Sequence[WorkerOption],
    workers: Mapping[str, int],
    beta: float,
) -> float | None:
    """The best mean accuracy, every worker by itself, all settings tried; None: beta is too much.

    With every x fixed the published program is linear in z and y.
    """
    classes = [name for name, count in workers.items() for _ in range(count)]
    able = [[o for o in options if o.placement.device_class == name] for name in classes]
    demand = sum(kind.items_per_s for kind in kinds)
    shares = [kind.items_per_s / demand for kind in kinds]
    count, n_kinds, best = len(classes), len(kinds), None
    for setting in product(*able):
        gain, most = np.zeros(count * (n_kinds + 1)), np.full(count * (n_kinds + 1), np.inf)
        rows, equal = [], np.zeros((n_kinds, len(gain)))
        for i, option in enumerate(setting):
            y = count * n_kinds + i
            most[y] = option.items_per_s / demand
            row = np.zeros(len(gain))
            row[y] = 1.0
            for k in range(n_kinds):
                z = i * n_kinds + k
                row[z] = -max(1.0, beta) * shares[k]
                gain[z] = shares[k] * option.accuracy_percent / 100.0
                equal[k, z] = 1.0
                most[z] = 1.0 if k in option.kinds else 0.0
            rows.append(row)
        served = np.zeros(len(gain))
        served[count * n_kinds :] = -1.0
        result = linprog(
            -gain,
            A_ub=np.array([*rows, served]),
            b_ub=[*[0.0] * count, -beta],
            A_eq=equal,
            b_eq=np.ones(n_kinds),
            bounds=[(0.0, bound) for bound in most],
        )
        if result.x is not None:
            best = max(best or 0.0, -result.fun)
    return best


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("beta", [1.05, 0.8, 0.4])
def test_the_linear_program_in_sums_is_the_published_one(seed: int, beta: float) -> None:
    kinds, options, workers = some_case(seed)
    expected = as_published(kinds, options, workers, beta)
    found = ProteusProgram(kinds, options, workers).most_accurate(beta, LIMITS).solution
    if expected is None:
        assert found is None
        return
    assert found is not None
    accuracy = sum(flow * options[o].accuracy_percent / 100 for (_, o), flow in found.flows.items())
    assert accuracy == pytest.approx(expected, abs=1e-4)
    assert found.gap <= 1e-4


def test_these_cases_are_of_both_kinds() -> None:
    met = [as_published(*some_case(seed), 1.05) is not None for seed in range(6)]
    assert {True, False} == set(met)


@pytest.mark.parametrize("seed", range(6))
def test_capacity_is_kept(seed: int) -> None:
    kinds, options, workers = some_case(seed)
    kinds = [replace(kind, items_per_s=kind.items_per_s / 4) for kind in kinds]
    found = ProteusProgram(kinds, options, workers).most_accurate(1.05, LIMITS).solution
    assert found is not None
    demand = sum(kind.items_per_s for kind in kinds)
    used = Counter[str]()
    for number, (option, count) in enumerate(zip(options, found.counts, strict=True)):
        used[option.placement.device_class] += count
        sent = sum(flow for (_, o), flow in found.flows.items() if o == number) * demand
        assert 1.05 * sent <= option.items_per_s * count + 1e-3
        assert all(k in option.kinds for (k, o) in found.flows if o == number)
    assert all(used[name] <= count for name, count in workers.items())
    assert sum(found.flows.values()) == pytest.approx(1.0, abs=1e-4)


# -- the policy -------------------------------------------------------------------------------


def test_with_little_demand_everybody_gets_the_most_accurate() -> None:
    policy = Proteus()
    targets = policy.targets(make_view(LADDER, 4, [Demand("t", 1.0, 0.0, 10.0)]), {"t": 10.0})
    assert targets.reason is Reason.OPTIMISED
    assert dict(targets.instances) == {cpu("large"): 4}  # the idle ones included
    assert targets.shares == {"t": {cpu("large"): 1.0}}
    assert policy.last_beta == 1.05
    assert policy.last_gap <= 1e-4


def test_no_worker_is_set_to_what_nobody_is_sent_to() -> None:
    for rate_per_s in (5.0, 37.0, 61.0, 150.0, 333.0):
        view = make_view(LADDER, 6, [Demand("t", 0.3, 0.0, rate_per_s)])
        targets = Proteus().targets(view, {"t": rate_per_s})
        assert sum(targets.instances.values()) == 6
        assert set(targets.instances) == set(targets.shares["t"])


def test_as_demand_rises_accuracy_is_given_up_and_then_beta_falls() -> None:
    betas, accuracies = [], []
    for rate_per_s in (20.0, 100.0, 400.0, 1000.0, 2000.0):
        policy = Proteus()
        view = make_view(LADDER, 4, [Demand("t", 1.0, 0.0, rate_per_s)])
        targets = policy.targets(view, {"t": rate_per_s})
        assert sum(targets.instances.values()) == 4
        assert targets.reason is Reason.OPTIMISED
        percent = {cpu(name): accuracy for name, (accuracy, _) in LADDER.items()}
        betas.append(policy.last_beta)
        accuracies.append(sum(percent[p] * share for p, share in targets.shares["t"].items()))
    # At most 4 x 8 items / 0.045 s = 711 a second.
    assert betas[:3] == [1.05] * 3
    assert betas[3:] == [0.7, 0.35]
    assert accuracies[:3] == sorted(accuracies[:3], reverse=True)
    assert accuracies[0] == pytest.approx(80.0)
    assert set(betas) <= set(BETAS)


def test_past_the_last_beta_and_without_time_the_plan_is_greedy() -> None:
    for policy, rate_per_s in ((Proteus(), 1e6), (Proteus(time_limit_s=0.0), 100.0)):
        view = make_view(LADDER, 4, [Demand("t", 1.0, 0.0, rate_per_s)])
        targets = policy.targets(view, {"t": rate_per_s})
        assert targets.reason is Reason.FALLBACK
        assert isnan(policy.last_beta)
        assert isnan(policy.last_gap)
        assert sum(targets.instances.values()) == 4
        assert sum(targets.shares["t"].values()) == pytest.approx(1.0)
    assert targets.instances[cpu("large")] > 0  # 100 a second leave room for some accuracy


@pytest.mark.parametrize("seed", range(4))
def test_the_greedy_plan_serves_what_the_program_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rate_per_s = float(rng.uniform(20.0, 500.0))
    view = make_view(LADDER, 5, [Demand("t", 0.5, 0.0, rate_per_s)])
    shares = [
        policy.targets(view, {"t": rate_per_s}).shares["t"]
        for policy in (Proteus(), Proteus(time_limit_s=0.0))
    ]
    percent = {cpu(name): accuracy for name, (accuracy, _) in LADDER.items()}
    best, greedy = (sum(percent[p] * share for p, share in given.items()) for given in shares)
    assert greedy >= 0.97 * best


def test_a_plan_is_kept_until_the_interval_is_over_or_demand_moves() -> None:
    policy = Proteus(interval_s=10.0, change=0.3)
    view = make_view(LADDER, 4, [Demand("t", 1.0, 0.0, 100.0)])
    first = policy.targets(view, {"t": 100.0})
    assert policy.targets(replace(view, now_s=9.0), {"t": 120.0}) is first
    assert policy.targets(replace(view, now_s=9.0), {"t": 140.0}) is not first
    second = policy.targets(replace(view, now_s=10.0), {"t": 140.0})
    assert policy.targets(replace(view, now_s=18.9), {"t": 140.0}) is second
    assert policy.targets(replace(view, now_s=19.0), {"t": 140.0}) is not second
    fewer = replace(view, now_s=19.5, workers=view.workers[1:])
    assert sum(policy.targets(fewer, {"t": 140.0}).instances.values()) == 3


def test_a_minimum_accuracy_is_kept_by_what_is_planned_for_it() -> None:
    demands = [Demand("t", 1.0, 0.0, 300.0), Demand("t", 1.0, 75.0, 30.0)]
    targets = Proteus().targets(make_view(LADDER, 4, demands), {"t": 330.0})
    assert targets.shares["t"][cpu("large")] >= 30.0 / 330.0 - 1e-4
    assert targets.shares["t"][cpu("small")] > 0.0


def test_what_nothing_can_serve_keeps_nobody_else_from_being_served() -> None:
    demands = [Demand("t", 1.0, 0.0, 10.0), Demand("t", 1.0, 99.0, 10.0), Demand("u", 1.0, 0.0, 9)]
    targets = Proteus().targets(make_view(LADDER, 2, demands), {"t": 20.0, "u": 9.0})
    assert targets.reason is Reason.OPTIMISED
    assert targets.shares == {"t": {cpu("large"): 1.0}}


def test_batches_take_less_than_half_the_limit_and_dominated_options_are_left_out() -> None:
    view = make_view({**LADDER, "worse": (60.0, 0.03)}, 1)
    kinds = [DemandKind("t", 0.0, 0.07, 1.0)]
    found = worker_options(view, {"cpu": 1}, kinds, (1, 2, 4, 8))
    batches = {o.placement.variant_id.split("/")[1]: o.batch for o in found}
    assert batches == {"small": 4, "mid": 2}  # 25 and 30 ms; the large one takes 50 for one


def test_a_variant_on_several_classes_is_shared_by_throughput() -> None:
    view = make_view(LADDER, 2, [Demand("t", 10.0, 0.0, 30.0)])
    gpu = DeviceClass("gpu", "gpu", 1, 1000, 1.0, 10.0)
    large = view.variants[2]
    both = replace(
        large,
        **{
            name: {"cpu": figures["cpu"], "gpu": figures["cpu"]}
            for name in ("memory_bytes", "load_s", "latency_s", "batch_s")
            for figures in (getattr(large, name),)
        },
    )
    view = replace(
        view,
        device_classes={**view.device_classes, "gpu": gpu},
        workers=(*view.workers, WorkerState("g", "gpu", 1000, ())),
        variants=(both,),
    )
    targets = Proteus().targets(view, {"t": 250.0})
    assert dict(targets.instances) == {cpu("large"): 2, Placement("t/large/v@1", "gpu"): 1}
    assert targets.shares["t"][cpu("large")] == pytest.approx(2 / 3, abs=1e-4)


def test_settings_that_make_no_sense_are_refused() -> None:
    for settings in (
        {"time_limit_s": -1.0},
        {"node_limit": -1},
        {"gap": 1.0},
        {"batch_sizes": [0]},
        {"change": 0.0},
    ):
        with pytest.raises(InvalidInputError):
            Proteus(**settings)  # type: ignore[arg-type]


# -- how good a plan is known to be -----------------------------------------------------------


def plan_at(policy: Proteus, rate_per_s: float, now_s: float = 0.0) -> Targets:
    view = make_view(LADDER, 4, [Demand("t", 1.0, 0.0, rate_per_s)], now_s)
    return policy.targets(view, {"t": rate_per_s})


def test_a_plan_tells_how_good_it_is_known_to_be() -> None:
    quality = plan_at(Proteus(), 100.0).quality
    assert quality is not None
    assert quality.is_proven
    assert quality.source is PlanSource.PROGRAM
    assert quality.words() == "solved to optimality"
    less = plan_at(Proteus(), 1000.0).quality  # at most 711 a second
    assert less is not None
    assert less.words() == "solved to optimality, 70% of demand can be served"
    for policy in (Proteus(node_limit=0), Proteus(time_limit_s=0.0)):
        greedy = plan_at(policy, 100.0).quality
        assert greedy is not None
        assert greedy.words() == "greedy, how far from the best is not known"


def poor(bound: float) -> Callable[..., SearchResult]:
    """A search that ends with a plan of the quickest variant alone, and a bound."""

    def most_accurate(self: ProteusProgram, beta: float, limits: SolverLimits) -> SearchResult:
        quickest = max(range(len(self._capacities)), key=lambda o: self._capacities[o])
        plan = [0.0] * len(self._capacities)
        plan[quickest] = 4.0
        solution = self.accuracy_of(plan, beta, 10.0)
        assert solution is not None
        return SearchResult(replace(solution, bound=bound), is_impossible=False, by_clock=True)

    return most_accurate


def test_a_greedy_plan_better_than_what_the_search_found_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    best = plan_at(Proteus(), 100.0)
    monkeypatch.setattr(ProteusProgram, "most_accurate", poor(bound=0.81))
    policy = Proteus()
    targets = plan_at(policy, 100.0)
    assert targets.shares == best.shares
    assert targets.quality is not None
    assert targets.quality.source is PlanSource.GREEDY
    percent = {cpu(name): accuracy for name, (accuracy, _) in LADDER.items()}
    accuracy = sum(percent[p] * share for p, share in targets.shares["t"].items()) / 100.0
    assert policy.last_gap == pytest.approx(0.81 / accuracy - 1.0, abs=1e-5)
    assert "greedy, within" in targets.quality.words()
    assert "stopped by the clock" in targets.quality.words()


def test_the_last_plan_is_kept_if_nothing_better_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Proteus(interval_s=10.0)
    first = plan_at(policy, 100.0)
    monkeypatch.setattr(ProteusProgram, "most_accurate", poor(bound=1.0))
    monkeypatch.setattr(proteus, "greedy_plan", lambda kinds, options, *_, **__: len(options) * [0])
    later = plan_at(policy, 100.0, now_s=11.0)
    assert later is not first
    assert later.instances == first.instances
    assert later.quality is not None
    assert later.quality.source is PlanSource.LAST_PLAN
    assert later.quality.words().startswith("last plan, within")


def test_of_equal_plans_the_searchs_is_taken_and_never_one_that_is_worse() -> None:
    twins = {"one": (70.0, 0.02), "other": (70.01, 0.0201)}
    asked = [Demand("t", 1.0, 0.0, 20.0)]
    view = make_view(twins, 2, asked)
    for held in ("one", "other"):
        policy = Proteus(interval_s=0.0, gap=0.01)
        only = policy.targets(make_view({held: twins[held]}, 2, asked), {"t": 20.0})
        assert dict(only.instances) == {cpu(held): 2}
        targets = policy.targets(view, {"t": 20.0})
        assert dict(targets.instances) == {cpu("other"): 2}
        assert targets.quality is not None
        assert targets.quality.is_proven
