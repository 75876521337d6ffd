"""The systems of 2026 against their published rules, case by case."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from modelless.common.errors import InvalidInputError
from modelless.policies.reasons import Reason
from modelless.policies.scaling.workload_variant import WorkloadVariantAutoscaler
from modelless.policies.seams import SelectionPolicy
from modelless.policies.selection.multi_factor import MultiFactor
from modelless.policies.selection.predicted_latency import PredictedLatency
from modelless.policies.selection.route_balance import RouteBalance
from modelless.policies.views import Bind, Candidates, Choice, Instance, QueryView, Reject
from modelless.variants.estimates import Estimates
from modelless.variants.vocabulary import DeviceClass, Placement
from tests.builders import make_cluster_view, make_facts, make_workers


def rows(*columns: tuple[float, float, float, float]) -> Candidates:
    """From (latency, accuracy, cost, wait)."""
    latency_s, accuracy, cost, wait_s = np.array(columns, dtype=np.float64).reshape(-1, 4).T
    estimates = Estimates(latency_s, latency_s, latency_s, latency_s, latency_s)
    placements = tuple(Placement(f"t/m/v{n}@1", "cpu-1") for n in range(len(latency_s)))
    return Candidates(placements, accuracy, cost, estimates, wait_s, 0.0)


def ask(
    policy: SelectionPolicy, candidates: Candidates, limit_s: float = math.inf, seed: int = 0
) -> Choice:
    query = QueryView(1, "t", 0.0, limit_s)
    return policy.on_arrival(query, candidates, np.random.default_rng(seed))


# -- RouteBalance -----------------------------------------------------------------------------


def test_route_balance_adds_quality_latency_and_cost() -> None:
    # 0.5 - 0.1/0.4 - 1/4 = 0; 0.9 - 1 - 1 = -1.1; 0.8 - 0.2/0.4 - 1/4 = 0.05.
    options = rows((0.1, 50, 1, 0), (0.4, 90, 4, 0), (0.2, 80, 1, 0))
    assert ask(RouteBalance(), options) == Bind(2, Reason.BEST_VALUE)
    assert ask(RouteBalance(latency=0.0, cost=0.0), options) == Bind(1, Reason.BEST_VALUE)
    # The third waits: 0.8 - 1.0/1.0 - 1/4 = -0.45, and 0.5 - 0.1 - 0.25 = 0.15.
    waiting = rows((0.1, 50, 1, 0), (0.4, 90, 4, 0), (0.2, 80, 1, 0.8))
    assert ask(RouteBalance(), waiting) == Bind(0, Reason.BEST_VALUE)


def test_route_balance_filters_by_the_limit_and_relaxes_it_if_nothing_passes() -> None:
    options = rows((0.1, 50, 1, 0), (0.4, 90, 1, 0))
    quality = RouteBalance(latency=0.0)
    assert ask(quality, options, 0.5) == Bind(1, Reason.BEST_VALUE)
    assert ask(quality, options, 0.3) == Bind(0, Reason.BEST_VALUE)
    busy = rows((0.1, 50, 1, 5.0), (0.4, 90, 1, 5.0))
    assert ask(quality, busy, 0.3) == Bind(1, Reason.BEST_VALUE)
    assert ask(quality, options, 0.05) == Reject(Reason.TOO_SLOW)


# -- llm-d ------------------------------------------------------------------------------------


def drawn(policy: SelectionPolicy, candidates: Candidates, limit_s: float) -> Counter[int]:
    counts: Counter[int] = Counter()
    for seed in range(400):
        choice = ask(policy, candidates, limit_s, seed)
        assert isinstance(choice, Bind)
        assert choice.reason is Reason.BEST_FIT
        counts[choice.row] += 1
    return counts


def test_predicted_latency_draws_by_the_least_headroom() -> None:
    # Headroom 0.9, 0.5, 0.1: weights 0, 0.5, 1.
    options = rows((0.1, 60, 1, 0), (0.5, 70, 1, 0), (0.8, 80, 1, 0.1))
    counts = drawn(PredictedLatency(), options, 1.0)
    assert counts[0] == 0
    assert counts[1] == pytest.approx(133, abs=30)
    counts = drawn(PredictedLatency("most"), options, 1.0)
    assert counts[2] == 0
    assert counts[0] == pytest.approx(267, abs=30)


def test_predicted_latency_explores_what_has_no_headroom() -> None:
    options = rows((0.1, 60, 1, 0), (0.5, 70, 1, 2.0))
    assert set(drawn(PredictedLatency(explore=0.0), options, 1.0)) == {0}
    assert drawn(PredictedLatency(explore=0.25), options, 1.0)[1] == pytest.approx(100, abs=30)


def test_predicted_latency_without_headroom_prefers_what_is_idle() -> None:
    options = rows((0.9, 60, 1, 0.5), (0.9, 70, 1, 0.3), (1.2, 80, 1, 0.0))
    assert set(drawn(PredictedLatency(), options, 1.0)) == {2}
    busy = rows((0.9, 60, 1, 0.5), (0.9, 70, 1, 0.3), (1.2, 80, 1, 0.4))
    assert set(drawn(PredictedLatency(), busy, 1.0)) == {0, 1}  # the last misses the limit most


def test_predicted_latency_without_a_limit_prefers_the_lowest() -> None:
    options = rows((0.1, 60, 1, 0), (0.9, 80, 1, 0))
    assert set(drawn(PredictedLatency(), options, math.inf)) == {0}


# -- the vLLM semantic router -----------------------------------------------------------------


def test_multi_factor_scales_each_factor_over_what_is_left() -> None:
    # Quality 0, 1, 0.5; latency 0, 1, 1/3; cost 0, 1, 0; load 0: 0, -1, 1/6.
    options = rows((0.1, 50, 1, 0), (0.4, 90, 4, 0), (0.2, 70, 1, 0))
    assert ask(MultiFactor(), options) == Bind(2, Reason.BEST_VALUE)
    # Load 0, 0, 1: 0, -1, -5/6.
    loaded = rows((0.1, 50, 1, 0), (0.4, 90, 4, 0), (0.2, 70, 1, 0.3))
    assert ask(MultiFactor(), loaded) == Bind(0, Reason.BEST_VALUE)
    # 0.75 x 0.5 - 0.25 / 3 = 0.29, and 0.75 - 0.5 = 0.25; 0.42 and 0.5 with a weight of 1.
    assert ask(MultiFactor(quality=0.75), options) == Bind(2, Reason.BEST_VALUE)
    assert ask(MultiFactor(quality=1.0), options) == Bind(1, Reason.BEST_VALUE)


def test_multi_factor_excludes_what_is_too_slow_whatever_the_queue() -> None:
    options = rows((0.1, 50, 1, 9.0), (0.4, 90, 1, 9.0))
    assert ask(MultiFactor(quality=9.0), options, 0.3) == Bind(0, Reason.BEST_VALUE)
    assert ask(MultiFactor(), options, 0.05) == Reject(Reason.TOO_SLOW)


# -- the workload-variant autoscaler ----------------------------------------------------------

CPU, GPU = "cpu-1", "gpu-1"
CLASSES = {
    CPU: DeviceClass(CPU, "cpu", 1, 1000, 0.05, 8.0),
    GPU: DeviceClass(GPU, "gpu", 1, 1000, 3.5, 700.0),
}
SMALL = make_facts("t/m/small@1", 60.0, {CPU: [0.1]}, memory_bytes=100.0, load_s=1.0)
LARGE = make_facts("t/m/large@1", 80.0, {CPU: [0.3]}, memory_bytes=400.0, load_s=1.0)


class Cluster:
    """Four CPUs; what is wanted is loaded at once, or not at all."""

    def __init__(self) -> None:
        self.policy = WorkloadVariantAutoscaler()
        self.now_s, self.loads = 0.0, True
        self.held: Mapping[Placement, int] = {}

    def step(self, busy_share: float, waiting: int, times: int = 1) -> dict[str, int]:
        """Ask every ten seconds, the interval; the wanted replicas by name, in order."""
        for _ in range(times):
            workers = make_workers({CPU: 4})
            held = [
                tuple(
                    Instance(worker.worker_id, placement.variant_id, 100, 1.0, 0.0, 1)
                    for placement, count in self.held.items()
                    if number < count
                )
                for number, worker in enumerate(workers)
            ]
            workers = tuple(
                replace(worker, instances=instances, busy_share=busy_share)
                for worker, instances in zip(workers, held, strict=True)
            )
            view = make_cluster_view(CLASSES, workers, [SMALL, LARGE])
            view = replace(view, now_s=self.now_s, open_queries={"t": waiting})
            targets = self.policy.targets(view, {})
            assert targets.reason is Reason.DEMAND
            if self.loads:
                self.held = targets.instances
            self.now_s += 10.0
        return {p.variant_id[4:-2]: count for p, count in targets.instances.items()}


def test_every_variant_has_a_replica_the_cheapest_first() -> None:
    assert list(Cluster().step(0.0, 0).items()) == [("small", 1), ("large", 1)]


@pytest.mark.parametrize(
    ("busy_share", "waiting", "small"),
    [
        (0.69, 0, 1),
        (0.71, 0, 2),  # 9 % to spare
        (0.90, 0, 2),  # saturated
        (0.0, 4, 1),  # two for each replica, three more to go
        (0.0, 5, 2),
    ],
)
def test_the_cheapest_gets_one_more_where_little_is_to_spare(
    busy_share: float, waiting: int, small: int
) -> None:
    cluster = Cluster()
    cluster.step(0.5, 0)
    assert cluster.step(busy_share, waiting) == {"small": small, "large": 1}


def test_while_a_replica_starts_none_is_added() -> None:
    cluster = Cluster()
    cluster.step(0.5, 0)
    cluster.loads = False
    assert cluster.step(0.9, 0, times=5) == {"small": 2, "large": 1}
    cluster.loads = True
    assert cluster.step(0.9, 0, times=2) == {"small": 3, "large": 1}


def test_full_workers_get_the_next_cheapest_and_the_dearest_leaves_first() -> None:
    cluster = Cluster()
    assert cluster.step(0.9, 0, times=9) == {"small": 4, "large": 4}
    # 0.605 x 8/7 leaves 11 % to spare, 0.605 x 7/6 only 9 %.
    assert cluster.step(0.605, 0, times=9) == {"small": 4, "large": 3}
    assert cluster.step(0.0, 0, times=9) == {"small": 1, "large": 1}


def test_a_peak_between_two_decisions_counts() -> None:
    cluster = Cluster()
    cluster.step(0.5, 0)
    cluster.now_s -= 5.0
    assert cluster.step(0.9, 0) == {"small": 1, "large": 1}
    cluster.now_s -= 5.0
    assert cluster.step(0.5, 0) == {"small": 2, "large": 1}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (RouteBalance, {"quality": -1.0}),
        (RouteBalance, {"cost": math.nan}),
        (PredictedLatency, {"headroom": "some"}),
        (PredictedLatency, {"explore": 1.5}),
        (MultiFactor, {"load": math.inf}),
        (MultiFactor, {"quantile": "p97"}),
        (WorkloadVariantAutoscaler, {"interval_s": -1.0}),
        (WorkloadVariantAutoscaler, {"queue": 0.0}),
    ],
)
def test_settings_are_checked(kind: type, settings: Mapping[str, object]) -> None:
    (name,) = settings
    with pytest.raises(InvalidInputError, match=name):
        kind(**settings)
