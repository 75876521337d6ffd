"""The instances: who can serve what, and what each row looks like to a policy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelless.controller.dispatch.messages import WorkerReport
from modelless.controller.dispatch.ready_instances import (
    WORTHWHILE_ROWS,
    ReadyInstances,
    find_shortlist,
)
from modelless.policies.scopes import in_scope
from modelless.policies.selection.cheapest_feasible import CheapestFeasible
from modelless.policies.selection.most_accurate_feasible import MostAccurateFeasible
from modelless.policies.views import Bind, Candidates
from modelless.variants.estimates import Estimates, Load
from modelless.variants.vocabulary import Placement

from .world import DEVICES, LADDER, FakeCostModel, make_query, make_variant

INT8, FP32, LITE2 = LADDER


def make_instances(
    variants: dict[str, tuple[float, float]] = LADDER, max_batch: int = 4
) -> ReadyInstances:
    return ReadyInstances(
        {name: make_variant(name, accuracy) for name, (_, accuracy) in variants.items()},
        DEVICES,
        FakeCostModel({name: latency for name, (latency, _) in variants.items()}),
        max_batch,
    )


def test_rows_are_placements_with_their_columns() -> None:
    instances = make_instances()
    instances.update_worker(WorkerReport("w0", "cpu-1", (INT8, LITE2), hop_s=0.001))
    instances.update_worker(WorkerReport("g0", "h200", (INT8,)))
    candidates = instances.candidates("imagenet", 2, 5.0)
    rows = {placement: row for row, placement in enumerate(candidates.placements)}
    assert set(rows) == {
        Placement(INT8, "cpu-1"),
        Placement(LITE2, "cpu-1"),
        Placement(INT8, "h200"),
    }
    row = rows[Placement(LITE2, "cpu-1")]
    assert candidates.accuracy_percent[row] == 80.0
    assert candidates.estimates.p50_s[row] == pytest.approx(0.001 + 0.060)
    assert candidates.estimates.p99_s[row] == pytest.approx(0.001 + 0.072)
    assert candidates.cost_usd[row] == pytest.approx(0.05 * 0.060 / 3600)  # the hop costs no device
    assert candidates.free_at_s[row] == candidates.now_s == 5.0


def test_every_array_is_read_only() -> None:
    instances = make_instances()
    instances.update_worker(WorkerReport("w0", "cpu-1", (INT8, LITE2)))
    candidates = instances.candidates("imagenet", 1, 5.0)
    estimates = candidates.estimates
    for column in (
        candidates.accuracy_percent,
        candidates.cost_usd,
        candidates.free_at_s,
        estimates.p50_s,
        estimates.p90_s,
        estimates.p99_s,
        estimates.memory_bytes,
        estimates.load_s,
    ):
        assert column.shape == (2,)
        assert column.dtype == np.float64
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 0.0


def test_what_a_policy_kept_does_not_change() -> None:
    instances = make_instances()
    instances.update_worker(WorkerReport("w0", "cpu-1", (INT8,)))
    before = instances.candidates("imagenet", 1, 5.0)
    instances.set_backlog("w0", 9.0, {0: 1.0})
    assert before.free_at_s[0] == 5.0
    assert instances.candidates("imagenet", 1, 5.0).free_at_s[0] == 10.0


def test_the_wait_is_that_of_the_worker_that_starts_soonest() -> None:
    instances = make_instances()
    instances.update_worker(WorkerReport("a", "cpu-1", (INT8, FP32)))
    instances.update_worker(WorkerReport("b", "cpu-1", (INT8,), hop_s=0.5))
    instances.set_backlog("a", 7.0, {0: 2.0})
    instances.set_backlog("b", 1.0, {0: 1.0})
    candidates = instances.candidates("imagenet", 1, 5.0)
    free_at_s = dict(zip(candidates.placements, candidates.free_at_s, strict=True))
    assert free_at_s[Placement(INT8, "cpu-1")] == pytest.approx(
        6.5
    )  # b at 6.0, and half a way more
    assert free_at_s[Placement(FP32, "cpu-1")] == pytest.approx(9.0)
    assert instances.find_soonest_worker(Placement(INT8, "cpu-1"), 5.0) == "b"
    assert instances.find_soonest_worker(Placement(FP32, "cpu-1"), 5.0) == "a"
    instances.set_backlog("b", 1.0, {0: 3.6})
    assert instances.find_soonest_worker(Placement(INT8, "cpu-1"), 5.0) == "a"


def test_of_equals_the_first_by_id_whatever_the_order_of_reports() -> None:
    for names in (("a", "b", "c"), ("c", "b", "a")):
        instances = make_instances()
        for name in names:
            instances.update_worker(WorkerReport(name, "cpu-1", (INT8,)))
        assert instances.find_soonest_worker(Placement(INT8, "cpu-1"), 0.0) == "a"


def test_a_worker_keeps_its_load_when_others_come_and_go() -> None:
    instances = make_instances()
    instances.update_worker(WorkerReport("m", "cpu-1", (INT8,)))
    instances.set_backlog("m", 7.0, {0: 2.0})
    instances.update_worker(WorkerReport("a", "cpu-1", (FP32,)))
    instances.update_worker(WorkerReport("z", "cpu-1", (FP32,)))
    instances.remove_worker("a")
    candidates = instances.candidates("imagenet/lite0/int8", 1, 5.0)
    assert candidates.free_at_s.tolist() == [9.0]
    instances.set_backlog("nobody", 99.0, {0: 0.0})


def test_workers_are_counted_by_device_class() -> None:
    instances = make_instances()
    assert instances.worker_counts == {}
    for name, device_class in (("a", "cpu-1"), ("b", "cpu-1"), ("c", "gpu-1")):
        instances.update_worker(WorkerReport(name, device_class, (INT8,)))
    assert instances.worker_counts == {"cpu-1": 2, "gpu-1": 1}
    instances.update_worker(WorkerReport("b", "gpu-1", (INT8,)))
    instances.remove_worker("a")
    assert instances.worker_counts == {"gpu-1": 2}


def test_a_report_that_says_nothing_new() -> None:
    instances = make_instances()
    report = WorkerReport("w0", "cpu-1", (INT8,))
    assert instances.update_worker(report)
    assert not instances.update_worker(report)
    assert instances.update_worker(report._replace(hop_s=0.1))


def test_unknown_variants_are_no_rows() -> None:
    instances = make_instances()
    instances.update_worker(WorkerReport("w0", "cpu-1", (INT8, "imagenet/not/registered@1")))
    assert len(instances.candidates("imagenet", 1, 0.0).placements) == 1
    assert set(instances.residents("w0")) == {INT8}
    assert instances.groups["w0"] in instances.groups_by_scope["imagenet/lite0"]
    assert instances.groups["w0"] not in instances.groups_by_scope["imagenet/not"]


def test_workers_that_hold_the_same_of_a_scope_share_its_shelf() -> None:
    instances = make_instances()
    instances.update_worker(WorkerReport("w0", "cpu-1", (INT8, FP32)))
    instances.update_worker(WorkerReport("w1", "cpu-1", (FP32, INT8)))
    assert instances.groups["w0"] is instances.groups["w1"]
    assert instances.residents("w0") is instances.residents("w1")
    for scope in ("imagenet", "imagenet/lite0/int8"):
        assert instances.groups_by_scope[scope] == {instances.groups["w0"]}
    instances.update_worker(WorkerReport("w1", "cpu-1", (INT8,)))
    first, second = instances.groups["w0"], instances.groups["w1"]
    whole, part = (
        instances.groups_by_scope["imagenet"],
        instances.groups_by_scope["imagenet/lite0/int8"],
    )
    assert whole == part == {first, second}  # the part was known before the change
    instances.update_worker(WorkerReport("w0", "cpu-1", (INT8,)))
    assert part == {second}  # the other one has no workers any more
    instances.update_worker(WorkerReport("w0", "cpu-1", (INT8,), hop_s=0.1))
    assert instances.groups["w0"] is not second  # it is further away


def test_residents_by_batch_size() -> None:
    instances = make_instances(max_batch=3)
    instances.update_worker(WorkerReport("w0", "cpu-1", (INT8,), hop_s=0.001))
    resident = instances.residents("w0")[INT8]
    assert resident.p50_s == pytest.approx([0.0, 0.011, 0.016, 0.021])
    assert resident.p99_s == pytest.approx([0.0, 0.013, 0.019, 0.025])
    assert resident.accuracy_percent == 70.0


def test_refresh_asks_again_and_takes_the_load_in() -> None:
    instances = make_instances()
    instances.update_worker(WorkerReport("w0", "cpu-1", (INT8,)))
    assert instances.candidates("imagenet", 1, 0.0).estimates.p50_s[0] == pytest.approx(0.010)
    instances.refresh_estimates(Load(1.0))
    assert instances.load == Load(1.0)
    assert instances.candidates("imagenet", 1, 0.0).estimates.p50_s[0] == pytest.approx(0.020)
    assert instances.residents("w0")[INT8].p50_s[1] == pytest.approx(0.020)


def test_scopes_nobody_heard_of_are_not_kept() -> None:
    instances = make_instances()
    instances.update_worker(WorkerReport("w0", "cpu-1", (INT8,)))
    for number in range(100):
        assert instances.candidates(f"made-up-{number}", 1, 0.0).placements == ()
    assert len(instances._scopes) == 0
    for number in range(100):
        instances.candidates("imagenet", number + 1, 0.0)
    assert len(instances._scopes["imagenet"].by_items) == 64


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        ("imagenet", True),
        ("imagenet/lite0", True),
        ("imagenet/lite0/int8", True),
        ("imagenet/lite0/int8@1", True),
        ("imagenet/lite0/int8@2", False),
        ("imagenet/lite0/int", False),
        ("imagenet/lite", False),
        ("image", False),
        ("", False),
        ("imagenet/lite0/int8/1", False),
        ("imagenet/lite0/int8@1/more", False),
    ],
)
def test_in_scope(scope: str, expected: bool) -> None:
    assert in_scope(make_variant(INT8).id, scope) is expected


# -- the shortlist ----------------------------------------------------------------------------


def random_candidates(rng: np.random.Generator, rows: int, sets: int) -> Candidates:
    """With many ties, so that equals meet."""
    p50_s = rng.integers(1, 30, rows) / 100.0
    p50_s[rng.random(rows) < 0.05] = np.inf
    p99_s = p50_s * rng.choice([1.0, 1.5], rows)
    p99_s[rng.random(rows) < 0.02] = np.nan
    accuracy = rng.integers(50, 90, rows).astype(np.float64)
    cost = p50_s * rng.choice([1.0, 3.0], rows)
    estimates = Estimates(p50_s, p50_s, p99_s, p50_s, p50_s)
    workers_of = rng.integers(0, sets, rows)
    free_at_s = rng.integers(0, 20, sets)[workers_of] / 100.0
    placements = tuple(Placement(f"t/m/{row:04}@1", "cpu-1") for row in rng.permutation(rows))
    shortlist = find_shortlist(accuracy, cost, estimates, workers_of)
    return Candidates(placements, accuracy, cost, estimates, free_at_s, 0.0, shortlist)


@given(seed=st.integers(0, 10_000), rows=st.integers(WORTHWHILE_ROWS, 400), sets=st.integers(1, 5))
def test_a_choice_from_the_shortlist_is_as_good_as_one_from_all(
    seed: int, rows: int, sets: int
) -> None:
    rng = np.random.default_rng(seed)
    short = random_candidates(rng, rows, sets)
    assert short.shortlist is not None
    assert len(short.shortlist) < rows
    full = Candidates(
        short.placements,
        short.accuracy_percent,
        short.cost_usd,
        short.estimates,
        short.free_at_s,
        short.now_s,
    )
    for policy in (CheapestFeasible(), MostAccurateFeasible(), CheapestFeasible("p50")):
        for _ in range(5):
            query = make_query(
                1,
                0.0,
                latency_ms=float(rng.uniform(1, 500)),
                min_accuracy=float(rng.uniform(40, 95)),
                max_cost_usd=float(rng.choice([np.inf, 0.1])),
            )
            a, b = (policy.on_arrival(query, c, rng) for c in (short, full))
            assert type(a) is type(b)
            assert a.reason is b.reason
            if isinstance(a, Bind) and isinstance(b, Bind):
                assert short.accuracy_percent[a.row] == full.accuracy_percent[b.row]
                if isinstance(policy, CheapestFeasible):
                    assert short.cost_usd[a.row] == full.cost_usd[b.row]
                else:
                    finish = [
                        c.free_at_s[row] + c.estimates.p99_s[row]
                        for c, row in ((short, a.row), (full, b.row))
                    ]
                    assert finish[0] == finish[1]


def test_few_rows_are_all_worth_looking_at() -> None:
    rng = np.random.default_rng(0)
    assert random_candidates(rng, WORTHWHILE_ROWS - 1, 2).shortlist is None


def test_unknown_rows_are_not_worth_looking_at() -> None:
    rows = WORTHWHILE_ROWS
    unknown = np.full(rows, np.inf)
    estimates = Estimates(unknown, unknown, unknown, unknown, unknown)
    shortlist = find_shortlist(unknown, unknown, estimates, np.zeros(rows, dtype=np.intp))
    assert shortlist is not None
    assert len(shortlist) == 0


def test_thousands_of_rows_end_to_end() -> None:
    rng = np.random.default_rng(1)
    variants = {
        f"imagenet/m{i}/x@1": (float(rng.uniform(0.001, 0.1)), float(rng.uniform(50, 90)))
        for i in range(1000)
    }
    instances = make_instances(variants, max_batch=1)
    for number in range(4):
        instances.update_worker(WorkerReport(f"w{number}", "cpu-1", tuple(variants)[number::4]))
    candidates = instances.candidates("imagenet", 1, 0.0)
    assert len(candidates.placements) == 1000
    assert candidates.shortlist is not None
    assert len(candidates.shortlist) < 300
    choice = CheapestFeasible().on_arrival(
        make_query(1, 0.0, latency_ms=50.0, min_accuracy=80.0), candidates, rng
    )
    assert isinstance(choice, Bind)
    cheapest = min(
        latency
        for latency, accuracy in variants.values()
        if accuracy >= 80.0 and latency * 1.2 <= 0.05
    )
    assert candidates.estimates.p50_s[choice.row] == pytest.approx(cheapest)
