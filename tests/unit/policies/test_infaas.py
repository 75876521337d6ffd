"""INFaaS's selection and autoscaling against the published rules, case by case."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from modelless.common.errors import InvalidInputError
from modelless.policies.reasons import Reason
from modelless.policies.scaling.infaas import InfaasScaling
from modelless.policies.selection.infaas import Infaas
from modelless.policies.testing.options import make_candidates, make_query
from modelless.policies.views import (
    Bind,
    Candidates,
    Choice,
    Demand,
    Instance,
    QueryView,
    Reject,
    ResidentView,
    VariantFacts,
    WorkerView,
)
from modelless.variants.estimates import Estimates
from modelless.variants.vocabulary import DeviceClass, Placement
from tests.builders import make_cluster_view, make_facts, make_workers

CPU, GPU = "cpu-1", "gpu-1"
CLASSES = {
    CPU: DeviceClass(CPU, "cpu", 1, 1000, 0.05, 8.0),
    GPU: DeviceClass(GPU, "gpu", 1, 1000, 3.5, 700.0),
}
RNG = np.random.default_rng(0)


# -- selection --------------------------------------------------------------------------------


def candidates(
    *rows: tuple[float, float, float],
    now_s: float = 0.0,
    classes: Sequence[str] = (),
    names: Sequence[int] = (),
) -> Candidates:
    """From (latency, accuracy, wait); on CPUs unless said."""
    latency_s, accuracy, wait_s = np.array(rows, dtype=np.float64).reshape(-1, 3).T
    on = list(classes) or [CPU] * len(rows)
    numbers = list(names) or list(range(len(rows)))
    placements = tuple(Placement(f"t/m{n}/v@1", c) for n, c in zip(numbers, on, strict=True))
    price = np.array([CLASSES[name].cost_usd(1.0) for name in on])
    estimates = Estimates(latency_s, latency_s, latency_s, latency_s, latency_s)
    return Candidates(placements, accuracy, price * latency_s, estimates, now_s + wait_s, now_s)


def ask(
    policy: Infaas, options: Candidates, limit_s: float = math.inf, accuracy: float = 0.0
) -> Choice:
    query = QueryView(1, "t", options.now_s, options.now_s + limit_s, accuracy)
    return policy.on_arrival(query, options, RNG)


def test_the_slowest_that_fits_is_taken() -> None:
    options = candidates((0.01, 60, 0), (0.03, 70, 0), (0.05, 80, 0), (0.09, 90, 0))
    assert ask(Infaas(), options, 0.06) == Bind(2, Reason.BEST_FIT)
    assert ask(Infaas(), options, 0.06, 65) == Bind(2, Reason.BEST_FIT)
    assert ask(Infaas(), options, 0.02, 65) == Reject(Reason.LIMITS_CONFLICT)
    assert ask(Infaas(), options, 0.005) == Reject(Reason.TOO_SLOW)
    assert ask(Infaas(), options, 1.0, 95) == Reject(Reason.TOO_INACCURATE)


def test_only_so_many_are_looked_at_from_the_least_accurate_on() -> None:
    rows = [(0.001 * (n + 1), 50.0 + n, 0.0) for n in range(9)]
    few = ask(Infaas(), candidates(*rows), 0.01)  # max(3, 0.25 x 10 ms)
    assert few == Bind(2, Reason.BEST_FIT)
    assert ask(Infaas(), candidates(*rows), 0.02) == Bind(4, Reason.BEST_FIT)
    assert ask(Infaas(), candidates(*rows), 0.01, 54) == Bind(6, Reason.BEST_FIT)


def test_where_none_of_those_fits_the_search_is_widened() -> None:
    rows = [(0.5, 50.0 + n, 0.0) for n in range(5)] + [(0.004, 80.0, 0.0)]
    assert ask(Infaas(), candidates(*rows), 0.01) == Bind(5, Reason.BEST_FIT)


def test_what_was_chosen_lately_is_taken_first_the_newest_before_others() -> None:
    policy = Infaas()
    options = candidates((0.01, 60, 0), (0.03, 70, 0), (0.05, 80, 0))
    assert ask(policy, options, 0.02) == Bind(0, Reason.BEST_FIT)
    assert ask(policy, options, 0.06) == Bind(0, Reason.BEST_FIT), "not the slowest that fits"
    assert ask(policy, options, 0.06, 65) == Bind(2, Reason.BEST_FIT)
    assert ask(policy, options, 0.06) == Bind(2, Reason.BEST_FIT)


def test_with_accuracy_as_the_objective_the_most_accurate_that_fits_is_taken() -> None:
    policy = Infaas(objective="accuracy")
    options = candidates((0.05, 60, 0), (0.01, 90, 0), (0.03, 90, 0), (0.09, 95, 0))
    assert ask(policy, options, 0.02) == Bind(1, Reason.BEST_FIT)
    assert ask(policy, options, 0.06) == Bind(1, Reason.BEST_FIT), "the quicker of equals"
    assert ask(policy, options, 0.1) == Bind(3, Reason.BEST_FIT), "not the one chosen lately"
    busy = candidates((0.05, 60, 0), (0.01, 90, 0), (0.03, 90, 0), (0.09, 95, 1.2), now_s=2.0)
    assert ask(policy, busy, 0.1) == Bind(1, Reason.BEST_FIT), "1.2 s of work is overload"
    with pytest.raises(InvalidInputError, match="objective: got 'speed'"):
        Infaas(objective="speed")


def test_accelerators_are_saved_for_tight_limits() -> None:
    options = candidates((0.08, 70, 0), (0.004, 70, 0), classes=[CPU, GPU])
    assert ask(Infaas(), options, 0.2) == Bind(0, Reason.BEST_FIT)
    assert ask(Infaas(), options, 0.05) == Bind(1, Reason.BEST_FIT)
    only_gpu = candidates((0.004, 70, 0), (0.006, 75, 0), classes=[GPU, GPU])
    assert ask(Infaas(accelerators=[GPU]), only_gpu, 0.2) == Bind(1, Reason.BEST_FIT)
    quick_cpu = candidates((0.01, 70, 0), (0.02, 70, 0))
    assert ask(Infaas(), quick_cpu, 0.2) == Bind(1, Reason.BEST_FIT), "nothing there to be saved"


def overloaded_by_rate(policy: Infaas, device: str, *, chosen: int) -> Candidates:
    """Two variants, the slower of which was chosen ``chosen`` times in a second, with a queue."""
    rows = ((0.005, 60, 0.0), (0.02, 70, 0.07))
    for number in range(chosen):
        now_s = number / chosen
        ask(policy, candidates(*rows, now_s=now_s, classes=[CPU, device]), 0.05)
    return candidates(*rows, now_s=1.0, classes=[CPU, device])


def test_a_variant_whose_replica_gets_more_than_it_can_serve_is_left_alone() -> None:
    few, many = Infaas(), Infaas()
    assert ask(few, overloaded_by_rate(few, CPU, chosen=40), 0.05) == Bind(1, Reason.BEST_FIT)
    options = overloaded_by_rate(many, CPU, chosen=60)  # 60/s x 20 ms > 1, and 90 ms > 4 x 20 ms
    assert ask(many, options, 0.05) == Bind(0, Reason.BEST_FIT)
    rows = ((0.005, 60, 0.0), (0.02, 70, 0.0))
    assert ask(many, candidates(*rows, now_s=2.5), 0.05, 65) == Bind(1, Reason.BEST_FIT), "cleared"


def test_the_rate_is_that_of_one_replica() -> None:
    policy = Infaas()
    resident = ResidentView("t/m1/v@1", 70.0, (0.0, 0.02), (0.0, 0.02))
    for number in range(2):
        worker = WorkerView(f"w{number}", CPU, {"t/m1/v@1": resident}, 1)
        policy.on_idle(worker, [], 0.0, RNG)
    # 20 ms x 40/s over two replicas are 0.4 of each, 20 ms x 60/s are 0.6: more than 0.5.
    few, many = policy, copy.deepcopy(policy)
    assert ask(few, overloaded_by_rate(few, CPU, chosen=40), 0.05) == Bind(1, Reason.BEST_FIT)
    assert ask(many, overloaded_by_rate(many, CPU, chosen=60), 0.05) == Bind(0, Reason.BEST_FIT)


@pytest.mark.parametrize(
    ("device", "replicas", "wait_s", "choice"),
    [
        (CPU, 1, 1.05, 1),  # up to 1.1 s of work
        (CPU, 1, 1.15, 0),
        (CPU, 2, 0.75, 1),  # up to 0.8 s of each
        (CPU, 2, 0.85, 0),
        (GPU, 1, 0.75, 1),
        (GPU, 1, 0.85, 0),
    ],
)
def test_how_much_work_is_too_much_depends_on_device_and_replicas(
    device: str, replicas: int, wait_s: float, choice: int
) -> None:
    policy = Infaas(accelerators=[GPU])
    resident = ResidentView("t/m1/v@1", 70.0, (0.0, 0.12), (0.0, 0.12))
    for number in range(replicas):
        policy.on_idle(WorkerView(f"w{number}", device, {"t/m1/v@1": resident}, 1), [], 0.0, RNG)
    options = candidates((0.11, 60, 0.0), (0.12, 70, wait_s), classes=[CPU, device])
    assert ask(policy, options, 2.0) == Bind(choice, Reason.BEST_FIT)


def test_with_a_loose_limit_what_is_quick_is_passed_over_and_counts_as_no_look() -> None:
    rows = [(0.05, 50.0 + n, 0.0) for n in range(40)] + [(0.102, 95.0, 0.0)]
    assert ask(Infaas(), candidates(*rows), 0.104) == Bind(40, Reason.BEST_FIT)
    assert ask(Infaas(), candidates(*rows[:40]), 0.104) == Bind(0, Reason.BEST_FIT), "all are quick"


def test_more_than_a_second_of_work_is_overload() -> None:
    options = candidates((0.02, 60, 1.05), (0.01, 70, 1.2))
    assert ask(Infaas(), options) == Bind(0, Reason.BEST_FIT)
    assert ask(Infaas(), candidates((0.02, 60, 1.2))) == Reject(Reason.QUEUE_TOO_LONG)


def test_an_overloaded_accelerator_stays_a_candidate() -> None:
    options = candidates(
        (0.02, 60, 1.2), (0.004, 70, 0.9), (0.003, 65, 0.9), classes=[CPU, GPU, GPU]
    )
    assert ask(Infaas(), options) == Bind(2, Reason.FALLBACK), "the soonest loaded of them"


def test_overload_is_remembered_when_the_roster_changes() -> None:
    policy = Infaas()
    ask(policy, candidates((0.02, 60, 1.2), (0.01, 70, 0.0)))
    fewer = candidates((0.02, 60, 0.9), now_s=0.5)
    assert ask(policy, fewer) == Reject(Reason.QUEUE_TOO_LONG)


def test_limits_but_the_wait_are_kept() -> None:
    rng = np.random.default_rng(3)
    bound = 0
    for number in range(300):
        options = make_candidates(rng, int(rng.integers(0, 40)), unknown=0.3)
        query = make_query(rng, number)
        choice = Infaas().on_arrival(query, options, rng)
        if isinstance(choice, Bind):
            bound += 1
            row = choice.row
            assert options.accuracy_percent[row] >= query.min_accuracy_percent
            assert options.cost_usd[row] <= query.max_cost_usd
            assert options.now_s + options.estimates.p99_s[row] <= query.deadline_s
            assert math.isfinite(options.estimates.p99_s[row])
    assert bound > 50


# -- scaling ----------------------------------------------------------------------------------


def variant(
    name: str, accuracy: float, latency_s: Mapping[str, float], load_s: float = 1.0
) -> VariantFacts:
    """Of 100 bytes; a batch of b items takes b times as long on a CPU, and no longer on a GPU."""
    batch_s = {
        device: [s * (b if device == CPU else 1) for b in (1, 2, 3, 4)]
        for device, s in latency_s.items()
    }
    return make_facts(f"t/{name}@1", accuracy, batch_s, memory_bytes=100.0, load_s=load_s)


class Cluster:
    """Workers that hold what was wanted, a view a second."""

    def __init__(self, variants: Sequence[VariantFacts], workers: Mapping[str, int]) -> None:
        self.view = make_cluster_view(CLASSES, make_workers(workers), variants)

    def step(
        self, policy: InfaasScaling, demands: Sequence[Demand], seconds: int = 1
    ) -> dict[str, int]:
        """Ask once a second and load what is wanted; instances wanted in the end, by name."""
        for _ in range(seconds):
            rate = sum(demand.rate_per_s for demand in demands)
            self.view = replace(
                self.view,
                now_s=self.view.now_s + 1.0,
                demands=tuple(demands),
                arrivals_per_s={"t": rate},
            )
            targets = policy.targets(self.view, {})
            self._load(targets.instances)
        return {f"{p.variant_id}:{p.device_class}": n for p, n in targets.instances.items()}

    def _load(self, instances: Mapping[Placement, int]) -> None:
        workers = []
        for worker in self.view.workers:
            number = int(worker.worker_id.rpartition("/")[2])
            held = tuple(
                Instance(worker.worker_id, placement.variant_id, 100, 1.0, 0.0, 0)
                for placement, count in instances.items()
                if placement.device_class == worker.device_class and number < count
            )
            workers.append(replace(worker, instances=held))
        self.view = replace(self.view, workers=tuple(workers))


def kind(rate: float, limit_s: float = math.inf, accuracy: float = 0.0) -> Demand:
    return Demand("t", limit_s, accuracy, rate)


def test_before_anything_was_asked_for_every_task_has_its_soonest_loaded() -> None:
    cluster = Cluster(
        [variant("a/v", 60, {CPU: 0.1}), variant("b/v", 80, {CPU: 0.2}, 5.0)], {CPU: 2}
    )
    policy = InfaasScaling()
    targets = policy.targets(replace(cluster.view, arrivals_per_s={}), {})
    assert targets.instances == {Placement("t/a/v@1", CPU): 1}
    assert targets.reason is Reason.DEMAND


def test_what_nothing_running_can_serve_is_started() -> None:
    variants = [
        variant("a/v", 60, {CPU: 0.1}),
        variant("b/v", 80, {CPU: 0.2}, 5.0),
        variant("c/v", 90, {CPU: 0.3}, 2.0),
    ]
    cluster = Cluster(variants, {CPU: 4})
    wanted = cluster.step(InfaasScaling(), [kind(1.0, 1.0), kind(1.0, 1.0, 75)])
    assert wanted == {"t/c/v@1:cpu-1": 1, "t/a/v@1:cpu-1": 1}


def test_with_accuracy_as_the_objective_the_most_accurate_is_started_and_used_first() -> None:
    variants = [variant("a/v", 60, {CPU: 0.1}), variant("b/v", 80, {CPU: 0.2}, 5.0)]
    cluster, policy = Cluster(variants, {CPU: 4}), InfaasScaling(objective="accuracy")
    assert cluster.step(policy, [kind(1.0, 0.15)]) == {"t/a/v@1:cpu-1": 1}  # b is too slow
    assert cluster.step(policy, [kind(1.0, 0.3)])["t/b/v@1:cpu-1"] == 1
    assert cluster.step(policy, [kind(1.0, 0.3)], 30) == {"t/b/v@1:cpu-1": 1}, "a is of no use"
    cheap = Cluster(variants, {CPU: 4})
    assert cheap.step(InfaasScaling(), [kind(1.0, 0.3)], 30) == {"t/a/v@1:cpu-1": 1}


def test_replicas_follow_demand_up_at_once_and_down_with_patience() -> None:
    cluster = Cluster([variant("a/v", 60, {CPU: 0.1})], {CPU: 8})
    policy = InfaasScaling()
    name = "t/a/v@1:cpu-1"
    assert cluster.step(policy, [kind(9.0, 1.0)]) == {name: 1}
    assert cluster.step(policy, [kind(33.0, 1.0)], 2) == {
        name: 4
    }  # (33 - 0.95 x 10) / 10 more, rounded up
    assert cluster.step(policy, [kind(12.0, 1.0)], 9) == {name: 4}
    assert cluster.step(policy, [kind(12.0, 1.0)], 3) == {name: 3}
    assert cluster.step(policy, [kind(12.0, 1.0)], 60) == {name: 2}


def test_growth_ends_where_memory_does_and_the_last_variant_stays() -> None:
    cluster = Cluster([variant("a/v", 60, {CPU: 0.1})], {CPU: 3})
    policy = InfaasScaling()
    assert cluster.step(policy, [kind(1e6, 1.0)], 5) == {"t/a/v@1:cpu-1": 3}
    assert cluster.step(policy, [], 100) == {"t/a/v@1:cpu-1": 1}


def test_upgrade_where_replicas_find_no_room_and_downgrade_when_it_is_over() -> None:
    cluster = Cluster([variant("a/v", 60, {CPU: 0.1, GPU: 0.02})], {CPU: 1, GPU: 1})
    policy = InfaasScaling()
    cpu, gpu = "t/a/v@1:cpu-1", "t/a/v@1:gpu-1"
    assert cluster.step(policy, [kind(5.0, 1.0)], 3) == {cpu: 1}
    assert cluster.step(policy, [kind(60.0, 1.0)], 3) == {gpu: 1, cpu: 1}
    assert cluster.step(policy, [kind(5.0, 1.0)], 20) == {cpu: 1, gpu: 1}
    assert cluster.step(policy, [kind(5.0, 1.0)], 3) == {cpu: 1}


def test_past_the_cap_of_replicas_an_upgrade_is_preferred() -> None:
    def grown(policy: InfaasScaling) -> dict[str, int]:
        cluster = Cluster([variant("a/v", 60, {CPU: 0.1, GPU: 0.02})], {CPU: 8, GPU: 1})
        cluster.step(policy, [kind(5.0, 1.0)], 3)
        assert cluster.step(policy, [kind(18.0, 1.0)]) == {cpu: 2}
        return cluster.step(policy, [kind(28.0, 1.0)])

    cpu, gpu = "t/a/v@1:cpu-1", "t/a/v@1:gpu-1"
    assert grown(InfaasScaling()) == {gpu: 1, cpu: 2}
    assert grown(InfaasScaling(cpu_replicas=3)) == {cpu: 3}
    assert grown(InfaasScaling(cpu_replicas=None)) == {cpu: 3}


def test_of_what_is_as_soon_loaded_the_smaller_batch_is_started() -> None:
    large, small = variant("a/v", 60, {CPU: 0.1}), variant("b/v", 60, {CPU: 0.1})
    small = replace(small, batch_s={CPU: small.batch_s[CPU][:3]})
    cluster = Cluster([large, small], {CPU: 2})
    assert cluster.step(InfaasScaling(), [kind(1.0, 1.0)]) == {"t/b/v@1:cpu-1": 1}


@pytest.mark.parametrize("cap", [-1, 1.5])
def test_a_cap_is_a_whole_number(cap: float) -> None:
    with pytest.raises(InvalidInputError, match="cpu_replicas"):
        InfaasScaling(cpu_replicas=cap)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("busy", "wanted"),
    [((0.95, 0.81), {CPU: 3}), ((0.95, 0.79), {}), ((0.0, 0.9), {}), ((0.81,), {CPU: 2})],
)
def test_a_worker_more_where_even_the_least_busy_one_is_busy(
    busy: Sequence[float], wanted: Mapping[str, int]
) -> None:
    cluster = Cluster([variant("a/v", 60, {CPU: 0.1})], {CPU: len(busy)})
    states = [replace(w, busy_share=b) for w, b in zip(cluster.view.workers, busy, strict=True)]
    targets = InfaasScaling().targets(replace(cluster.view, workers=tuple(states)), {})
    assert targets.workers == wanted


def test_a_worker_fewer_only_after_it_was_idle_for_long() -> None:
    cluster, policy = Cluster([variant("a/v", 60, {CPU: 0.1})], {CPU: 2}), InfaasScaling()
    seen = [
        policy.targets(replace(cluster.view, now_s=float(second)), {}).workers
        for second in range(32)
    ]
    assert seen == [{}] * 30 + [{CPU: 1}, {}]
    left_alone = InfaasScaling(worker_patience_s=None)
    assert left_alone.targets(cluster.view, {}).workers == {}


def test_patience_is_no_less_than_nothing() -> None:
    with pytest.raises(InvalidInputError, match="cpu_patience_s: got -1"):
        InfaasScaling(cpu_patience_s=-1.0)
