"""The clairvoyant bound: no policy exceeds it, and where the optimum is known it is near."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelless.controller.sim.bound.clairvoyant import Bound, clairvoyant_bound
from modelless.controller.sim.bound.device_work import capacity, cut_times
from modelless.controller.sim.bound.memory import measures_of
from modelless.controller.sim.bound.service import (
    BatchFacts,
    Offer,
    best_offers,
    chance_within,
    mean_s,
    most_residual_s,
    offers_within,
)
from modelless.controller.sim.compare.compare import with_policies
from modelless.controller.sim.latencies import Normals, spread
from modelless.controller.sim.run import simulate
from modelless.controller.sim.worlds.world import WorldFile, load_world
from modelless.policies.systems import systems

from .worlds import DRIFT, EDGE, FAULTS, WORLDS, document, world

POLICIES = ("cheapest-feasible", "most-accurate-feasible")
LUCK = 0.004
"""By how much one run of some thousand batches may exceed what holds in expectation."""


def variant(accuracy: float, *p50_ms: float, spread: float = 1.0) -> dict[str, Any]:
    """A written variant for the device ``one``: its latencies of 1, 2, ... items."""
    points = [
        {
            "device": "one",
            "batch": n + 1,
            "p50_ms": ms,
            "p90_ms": ms * spread,
            "p99_ms": ms * spread**2,
        }
        for n, ms in enumerate(p50_ms)
    ]
    return {"model": f"m{accuracy:g}", "accuracy": accuracy, "points": points}


def one_device(
    folder: Path,
    variants: list[dict[str, Any]],
    rate_per_s: float,
    slo: dict[str, Any],
    **changes: Any,
) -> WorldFile:
    """One device that serves one task."""
    parts: dict[str, Any] = {
        "duration_s": 20,
        "devices": [{"name": "one"}],
        "tasks": [{"name": "t", "variants": {"kind": "written", "variants": variants}}],
        "queries": [
            {
                "tasks": ["t"],
                "arrivals": {"kind": "poisson", "rate_per_s": rate_per_s},
                "slos": [slo],
            }
        ],
        "limits": {"max_batch": max(len(v["points"]) for v in variants)},
    }
    return world(folder, **{**parts, **changes})


def reached(file: WorldFile, policy: str, seed: int) -> tuple[float, float]:
    """What a policy reaches: value per query and attainment."""
    figures = simulate(with_policies(file, {"selection": policy}), seed=seed).figures()
    return figures["value_per_query"], figures["attainment"]


def check(file: WorldFile, seed: int, luck: float = LUCK) -> Bound:
    """The bound, which no policy exceeds."""
    bound = clairvoyant_bound(file, seed=seed)
    assert 0.0 <= bound.value_per_query <= bound.attainment <= 1.0
    for policy in POLICIES:
        value, attainment = reached(file, policy, seed)
        assert value <= bound.value_per_query + luck
        assert attainment <= bound.attainment + luck
    return bound


# -- where the optimum is known ----------------------------------------------------------------


def test_at_little_load_it_is_the_best_accuracy_share(tmp_path: Path) -> None:
    ladder = [variant(60, 5), variant(80, 40)]
    file = one_device(tmp_path, ladder, 1, {"latency_ms": 100})
    assert check(file, 1).value_per_query == pytest.approx(0.8, abs=1e-5)
    short = one_device(tmp_path, ladder, 1, {"latency_ms": 30})
    assert check(short, 1).value_per_query == pytest.approx(0.6, abs=1e-5)


def test_what_cannot_be_in_time_or_accurate_is_worth_nothing(tmp_path: Path) -> None:
    ladder = [variant(60, 5), variant(80, 40)]
    for slo in ({"latency_ms": 4}, {"latency_ms": 30, "min_accuracy": 70}, {"min_accuracy": 90}):
        bound = check(one_device(tmp_path, ladder, 20, slo), 1, luck=0.0)
        assert bound.value_per_query < 1e-6
        assert bound.attainment < 1e-6
        assert "100.0% of queries cannot be served" in bound.why


def test_a_latency_that_just_fits_counts(tmp_path: Path) -> None:
    file = one_device(tmp_path, [variant(60, 10)], 1, {"latency_ms": 10})
    assert clairvoyant_bound(file).attainment == pytest.approx(1.0)


def test_a_chance_of_being_in_time_is_no_more_than_that(tmp_path: Path) -> None:
    file = one_device(
        tmp_path, [variant(60, 10, spread=1.5)], 2, {"latency_ms": 10}, duration_s=200
    )
    bound = check(file, 1, luck=0.05)
    assert bound.attainment == pytest.approx(0.5, abs=0.001)
    assert bound.value_per_query == pytest.approx(0.3, abs=0.001)


def test_no_queries_no_value(tmp_path: Path) -> None:
    file = one_device(tmp_path, [variant(60, 10)], 0, {"latency_ms": 100})
    assert clairvoyant_bound(file) == Bound(0.0, 1.0, "no query comes")


def test_overloaded_it_is_what_the_device_can_do_and_a_policy_comes_near(tmp_path: Path) -> None:
    file = one_device(tmp_path, [variant(70, 10)], 300, {"latency_ms": 100})
    bound = check(file, 3)
    queries = simulate(file, seed=3).figures()["queries"]
    assert bound.attainment == pytest.approx(20.0 * 100.0 / queries, rel=0.01)
    assert bound.value_per_query == pytest.approx(0.7 * bound.attainment, rel=1e-4)
    assert reached(file, "cheapest-feasible", 3)[1] > 0.93 * bound.attainment
    assert "device time is short" in bound.why


@pytest.mark.slow
def test_a_worker_that_is_far_has_two_batches_at_most(tmp_path: Path) -> None:
    """30 ms there and 30 back, 10 ms of work: two of them every 70 ms, and a policy comes near."""
    far: dict[str, Any] = {
        "devices": [{"name": "one", "count": 2, "site": "far"}],
        "network": {"delays": [{"between": ["core", "far"], "one_way_ms": 30}]},
    }
    file = one_device(tmp_path, [variant(70, 10)], 300, {"latency_ms": 300}, **far)
    bound = check(file, 3)
    queries = simulate(file, seed=3).figures()["queries"]
    assert bound.attainment == pytest.approx(20.0 * 2 * 2 / 0.07 / queries, rel=0.02)
    assert reached(file, "cheapest-feasible", 3)[1] > 0.9 * bound.attainment
    pairs = one_device(tmp_path, [variant(70, 6, 10)], 300, {"latency_ms": 300}, **far)
    assert check(pairs, 3).attainment == pytest.approx(2.0 * bound.attainment, rel=0.02)
    lost = [{"kind": "worker-dies", "worker": "one/1", "at_s": 19}]
    assert (
        check(
            one_device(tmp_path, [variant(70, 10)], 300, {"latency_ms": 300}, **far, faults=lost), 3
        ).attainment
        > 1.5 * bound.attainment
    )  # it is not known how long a lost one has what it had


@pytest.mark.slow
def test_batches_make_room_as_far_as_the_deadline_allows(tmp_path: Path) -> None:
    batched = variant(70, 10, 12, 14, 16)
    patient = one_device(tmp_path, [batched], 300, {"latency_ms": 200})
    hasty = one_device(tmp_path, [batched], 300, {"latency_ms": 13})
    queries = simulate(patient, seed=3).figures()["queries"]
    assert check(patient, 3).attainment == pytest.approx(20.0 * 250.0 / queries, rel=0.02)
    assert check(hasty, 3).attainment == pytest.approx(20.0 / 0.006 / queries, rel=0.01)
    queries_of_two = one_device(tmp_path, [batched], 200, {"latency_ms": 200, "items": 2})
    queries = simulate(queries_of_two, seed=3).figures()["queries"]
    assert check(queries_of_two, 3).attainment == pytest.approx(20.0 * 125.0 / queries, rel=0.02)


def test_time_short_it_mixes_variants_as_the_program_of_two_says(tmp_path: Path) -> None:
    # 150 a second on one device: x of them take 10 ms, the others 5: 10 x + 5 (150 - x) = 1000.
    file = one_device(tmp_path, [variant(60, 5), variant(80, 10)], 150, {"latency_ms": 2000})
    queries = simulate(file, seed=5).figures()["queries"]
    fine = 22.0 * 200.0 - queries  # the last arrivals may start up to 2 s after the 20 s
    expected = (0.6 * (queries - fine) + 0.8 * fine) / queries
    bound = check(file, 5)
    assert bound.value_per_query == pytest.approx(expected, abs=0.004)
    assert bound.attainment == pytest.approx(1.0)


def best_by_search(
    arrivals_s: list[float], latency_s: float, variants: dict[float, tuple[float, ...]]
) -> float:
    """The most accuracy that one device can answer in time, by trying everything.

    Batches are in the order of their arrivals and do not interleave: as deadlines are in the same
    order, nothing is lost by that.
    """
    best = 0.0

    def go_on(place: int, free_s: float, value: float) -> None:
        nonlocal best
        best = max(best, value)
        if place == len(arrivals_s):
            return
        go_on(place + 1, free_s, value)
        for accuracy, took_s in variants.items():
            for size in range(1, min(len(took_s), len(arrivals_s) - place) + 1):
                for mates in itertools.combinations(range(place + 1, len(arrivals_s)), size - 1):
                    last = mates[-1] if mates else place
                    end_s = max(free_s, arrivals_s[last]) + took_s[size - 1]
                    if end_s <= arrivals_s[place] + latency_s:
                        go_on(last + 1, end_s, value + size * accuracy)

    go_on(0, 0.0, 0.0)
    return best


@pytest.mark.parametrize("seed", range(4))
def test_it_is_never_below_the_best_of_all_schedules(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    arrivals_s = sorted(rng.uniform(0.0, 0.06, 9).round(4).tolist())
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s\n" + "".join(f"{at_s}\n" for at_s in arrivals_s))
    file = one_device(
        tmp_path,
        [variant(60, 15, 20), variant(85, 35, 50)],
        0,
        {},
        duration_s=None,
        queries=[
            {
                "tasks": ["t"],
                "arrivals": {"kind": "trace", "path": "trace.csv"},
                "slos": [{"latency_ms": 60}],
            }
        ],
    )
    best = best_by_search(arrivals_s, 0.06, {0.60: (0.015, 0.020), 0.85: (0.035, 0.050)})
    count = len(arrivals_s)
    bound = check(file, 1, luck=0.0)
    assert best / count > 0.2
    assert bound.value_per_query >= best / count - 1e-9
    assert bound.value_per_query <= 0.85 + 1e-6


# -- no policy exceeds it ----------------------------------------------------------------------


@pytest.mark.parametrize("load", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("seed", [1, 2])
def test_small_world(load: float, seed: int) -> None:
    check(world(duration_s=5, load=load), seed)


@pytest.mark.parametrize(
    "changes", [EDGE, DRIFT, {"faults": FAULTS}], ids=["edge", "drift", "faults"]
)
@pytest.mark.parametrize("load", [1.0, pytest.param(4.0, marks=pytest.mark.slow)])
def test_far_sites_cold_starts_and_faults(changes: dict[str, Any], load: float) -> None:
    check(world(**changes, duration_s=6, load=load), 3)


@pytest.mark.parametrize(
    "name",
    [
        *("steady", "bursty", "flash-crowd", "failures"),
        pytest.param("edge-core", marks=pytest.mark.slow),
        pytest.param("tables/edge-core", marks=[pytest.mark.shared_data, pytest.mark.slow]),
    ],
)
def test_benchmark_worlds(name: str) -> None:
    file = load_world(WORLDS / f"{name}.yaml")
    short = file.world.model_copy(update={"duration_s": 5.0, "load": 2.0})
    check(WorldFile(short, file.folder), 4)


@pytest.mark.slow
def test_noise_helps_nobody_on_average(tmp_path: Path) -> None:
    noisy = one_device(tmp_path, [variant(70, 8, 10, spread=1.8)], 300, {"latency_ms": 60})
    gaps = []
    for seed in range(1, 3):
        bound = clairvoyant_bound(noisy, seed=seed)
        gaps += [bound.attainment - reached(noisy, name, seed)[1] for name in POLICIES]
    assert min(gaps) > -0.02
    assert np.mean(gaps) > 0.0


def test_neighbours_cost_what_no_order_of_starts_avoids(tmp_path: Path) -> None:
    bounds = []
    for contention in (0.0, 0.5):
        device = {"name": "one", "count": 4, "per_host": 4, "contention": contention}
        file = one_device(
            tmp_path, [variant(70, 10)], 900, {"latency_ms": 100}, devices=[device], duration_s=6
        )
        bounds.append(check(file, 2).attainment)
    expected = (1.0 + 1.0 / 1.5 + 1.0 / 2.0 + 1.0 / 2.5) / 4.0
    assert bounds[1] / bounds[0] == pytest.approx(expected, rel=1e-3)


# -- it moves as it should ---------------------------------------------------------------------


def test_it_falls_as_load_rises() -> None:
    bounds = [clairvoyant_bound(world(duration_s=2, load=load)) for load in (0.2, 2, 10, 50)]
    values = [bound.value_per_query for bound in bounds]
    assert all(later < earlier for earlier, later in itertools.pairwise(values[1:]))
    assert values[1] <= values[0] + 0.01  # another mix of clients
    assert bounds[-1].attainment < 0.8


def test_seeds_are_the_arrivals(tmp_path: Path) -> None:
    file = world(duration_s=1, load=8)
    assert clairvoyant_bound(file) == clairvoyant_bound(file, seed=7)
    assert (
        clairvoyant_bound(file).value_per_query != clairvoyant_bound(file, seed=8).value_per_query
    )


def overloaded(folder: Path, **changes: Any) -> float:
    device = {"name": "one", "count": 2, **changes.pop("device", {})}
    file = one_device(
        folder,
        [variant(70, 10)],
        400,
        {"latency_ms": 50},
        devices=[device],
        duration_s=10,
        **changes,
    )
    return check(file, 1, luck=0.01).attainment


@pytest.mark.slow
def test_faults_cost_and_growth_helps(tmp_path: Path) -> None:
    whole = overloaded(tmp_path)
    dies = {"kind": "worker-dies", "worker": "one/0", "at_s": 2, "back_s": 8}
    assert overloaded(tmp_path, faults=[dies]) == pytest.approx(0.7 * whole, rel=0.03)
    cut = {"kind": "site-cut", "site": "far", "at_s": 2, "until_s": 7}
    far = {"delays": [{"between": ["core", "far"], "one_way_ms": 1}]}
    there = overloaded(tmp_path, network=far, device={"site": "far"}, faults=[cut])
    assert there == pytest.approx(0.5 * whole, rel=0.03)
    soon = {"max_workers": 4, "start_s": 5}
    assert overloaded(tmp_path, device=soon) == pytest.approx(1.5 * whole, rel=0.04)
    quick = {"kind": "worker-slows", "worker": "one/0", "at_s": 1, "until_s": 9, "factor": 0.5}
    assert overloaded(tmp_path, faults=[quick]) > 1.4 * whole


def test_clients_that_are_cut_off_are_lost(tmp_path: Path) -> None:
    file = world(
        **EDGE,
        duration_s=10,
        faults=[{"kind": "site-cut", "site": "home", "at_s": 0, "until_s": 10}],
    )
    bound = check(file, 1)
    assert bound.attainment == pytest.approx(0.6, abs=0.05)
    assert "site cut off" in bound.why
    alone = world(
        **{**EDGE, "queries": EDGE["queries"][1:]},
        duration_s=2,
        faults=[{"kind": "site-cut", "site": "home", "at_s": 0, "until_s": 10}],
    )
    assert check(alone, 1).attainment == 0.0


def test_before_the_first_load_nothing_is_served(tmp_path: Path) -> None:
    slow = {**variant(70, 10), "load_s": 5}
    cold = one_device(tmp_path, [slow], 5, {"latency_ms": 100}, warm_start=False)
    assert check(cold, 1).attainment == pytest.approx(0.75, abs=0.06)


def test_what_fits_no_memory_is_not_counted_on(tmp_path: Path) -> None:
    large = {**variant(90, 10), "memory_mib": 2000}
    file = one_device(tmp_path, [variant(70, 10), large], 5, {"latency_ms": 100})
    assert check(file, 1).value_per_query == pytest.approx(0.7, abs=1e-5)


# -- where memory is short ---------------------------------------------------------------------


def short_of_memory(folder: Path, load_s: float, *rates_per_s: float, **changes: Any) -> WorldFile:
    """Tasks of one variant each, of which a device holds one."""
    names = "abcd"[: len(rates_per_s)]
    held = {**variant(80, 10), "memory_mib": 80, "load_s": load_s}
    parts: dict[str, Any] = {
        "duration_s": 20,
        "devices": [{"name": "one", "memory_mib": 100}],
        "tasks": [
            {"name": name, "variants": {"kind": "written", "variants": [held]}} for name in names
        ],
        "queries": [
            {
                "tasks": [name],
                "arrivals": {"kind": "poisson", "rate_per_s": rate_per_s},
                "slos": [{"latency_ms": 100}],
            }
            for name, rate_per_s in zip(names, rates_per_s, strict=True)
        ],
        "limits": {"max_batch": 1},
    }
    return world(folder, **{**parts, **changes})


def asked(file: WorldFile, seed: int) -> dict[str, int]:
    """How many queries come for each task."""
    told = simulate(file, seed=seed).figures()["tasks"]
    return {name: tally["queries"] for name, tally in told.items()}


def test_what_cannot_be_loaded_in_time_is_left_to_what_is_held(tmp_path: Path) -> None:
    file = short_of_memory(tmp_path, 30, 20, 10)
    counts = asked(file, 2)
    bound = check(file, 2, luck=0.0)
    assert bound.attainment == pytest.approx(counts["a"] / sum(counts.values()), abs=1e-5)
    assert bound.value_per_query == pytest.approx(0.8 * bound.attainment, abs=1e-5)
    assert "memory is short: one holds 62% of what could serve there" in bound.why
    devices = [{"name": "one", "memory_mib": 160}]
    roomy = clairvoyant_bound(short_of_memory(tmp_path, 30, 20, 10, devices=devices), seed=2)
    assert roomy.attainment == pytest.approx(1.0)
    assert "memory" not in roomy.why


@pytest.mark.slow
def test_a_change_of_what_is_held_costs_the_time_of_its_load(tmp_path: Path) -> None:
    trace = tmp_path / "early.csv"
    trace.write_text("arrival_s\n" + "".join(f"{n / 20}\n" for n in range(200)), encoding="utf-8")
    late = short_of_memory(tmp_path, 1, 20, 20).world.model_dump(mode="json")["queries"][1]
    early = {**late, "tasks": ["a"], "arrivals": {"kind": "trace", "path": "early.csv"}}
    queries = [early, {**late, "start_s": 10}]
    reached = [
        check(short_of_memory(tmp_path, load_s, 20, 20, queries=queries), 2).attainment
        for load_s in (5, 2.5)
    ]
    assert reached == pytest.approx([0.75, 0.875], abs=0.05)


def test_no_more_is_done_than_by_the_copies_that_there_is_memory_for(tmp_path: Path) -> None:
    devices = [{"name": "one", "count": 3, "memory_mib": 100}]
    crowded = short_of_memory(tmp_path, 30, 200, 30, 30, 1, devices=devices, duration_s=10)
    # A copy serves 100 a second: two of the first and one of another are the best to hold.
    assert check(crowded, 1).attainment == pytest.approx(230 / 261, abs=0.03)
    devices = [{**devices[0], "memory_mib": 320}]
    roomy = short_of_memory(tmp_path, 30, 200, 30, 30, 1, devices=devices, duration_s=10)
    assert clairvoyant_bound(roomy, seed=1).attainment > 0.97


@pytest.mark.parametrize("seed", range(5))
def test_whatever_fits_a_worker_measures_at_most_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    memory_bytes = int(rng.integers(5, 60))
    sizes_bytes = rng.integers(1, memory_bytes + 1, 4)
    measures = measures_of(memory_bytes, sizes_bytes.tolist())
    most = [range(memory_bytes // size + 1) for size in sizes_bytes]
    for copies in itertools.product(*most):
        if np.dot(copies, sizes_bytes) <= memory_bytes:
            assert (measures @ copies).max() <= 1.0 + 1e-9
    assert measures_of(100, [80, 51, 50, 30])[1].tolist() == [1.0, 1.0, 0.5, 0.0]


FAMILY: dict[str, Any] = {
    **DRIFT,
    "duration_s": 15,
    "devices": [{"name": "cpu-1", "count": 2, "memory_mib": 400}],
    "tasks": [
        {
            "name": "task",
            "copies": 8,
            "variants": {
                "kind": "ladder",
                "count": 3,
                "latency_ms": [5, 20],
                "memory_mib": [60, 120],
                "load_s": [2, 5],
            },
        }
    ],
}
"""Families of variants, of which a quarter fits, and loads that take long."""

MODELLESS = systems()["modelless"].policies
ON_DEMAND = {"scaling": "on-demand", "placement": "room-to-load", "eviction": "belady"}


@pytest.mark.parametrize(
    ("load", "is_warm"),
    [
        (0.1, True),
        pytest.param(1.0, False, marks=pytest.mark.slow),
        pytest.param(2.0, True, marks=pytest.mark.slow),
    ],
)
def test_short_of_memory_it_is_below_one_and_above_everybody(load: float, is_warm: bool) -> None:
    file = world(**{**FAMILY, "load": load, "warm_start": is_warm})
    bound = check(file, 1)
    assert "memory is short" in bound.why
    assert bound.value_per_query < 0.795
    for policies in (MODELLESS, {"selection": "best-value", **ON_DEMAND}):
        figures = simulate(with_policies(file, policies), seed=1).figures()
        assert figures["value_per_query"] <= bound.value_per_query + LUCK
        assert figures["attainment"] <= bound.attainment + LUCK


# -- its parts ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "quantiles", [(1.0, 1.0, 1.0), (1.0, 1.2, 1.9), (1.0, 1.0, 3.0), (1.0, 2.0, 2.0)]
)
def test_means_and_chances_are_those_of_the_draws(quantiles: tuple[float, float, float]) -> None:
    drawn = spread(*quantiles)
    normals = Normals(1, "test")
    samples = np.array([drawn.at(normals()) for _ in range(40_000)])
    assert mean_s(drawn) == pytest.approx(samples.mean(), rel=0.015)
    for limit_s in (0.2, 0.8, 1.0, 1.1, 1.5, 2.0, 4.0, 30.0):
        share = float(np.mean(samples <= limit_s + 1e-9))
        assert chance_within(drawn, limit_s) == pytest.approx(share, abs=0.01)
    for age_s in (0.0, 0.7, 1.0, 1.3, 1.8):
        left_s = samples[samples > age_s] - age_s
        if len(left_s) > 200:
            assert most_residual_s(drawn) >= left_s.mean() * 0.97


def test_only_offers_that_some_price_makes_best_are_kept() -> None:
    offers = [Offer(2.0, 3.0), Offer(1.0, 2.0), Offer(1.5, 2.1), Offer(4.0, 3.0), Offer(3.0, 3.5)]
    kept = best_offers(offers)
    assert kept == [Offer(1.0, 2.0), Offer(2.0, 3.0), Offer(3.0, 3.5)]
    for price in np.linspace(0.0, 4.0, 41):
        best = max(max(o.worth - price * o.cost_s for o in offers), 0.0)
        assert max(max(o.worth - price * o.cost_s for o in kept), 0.0) == pytest.approx(best)


def test_a_query_that_may_be_run_again_pays_for_each_attempt() -> None:
    batch = BatchFacts(1, 80.0, 1.0, spread(1.0, 1.5, 2.0))
    once = offers_within([batch], 1, 1.0, retried=False, weighted=True)
    again = offers_within([batch], 1, 1.0, retried=True, weighted=True)
    assert once == [Offer(1.0, pytest.approx(0.4))]
    assert again == [Offer(pytest.approx(2.0), 0.8)]
    assert not offers_within([batch], 2, 1.0, retried=False, weighted=True)


def test_capacity_by_window(tmp_path: Path) -> None:
    faults = [
        {"kind": "worker-dies", "worker": "one/1", "at_s": 2},
        {"kind": "site-cut", "site": "far", "at_s": 6, "until_s": 9},
        {"kind": "site-cut", "site": "far", "at_s": 7, "until_s": 8},
    ]
    file = one_device(
        tmp_path,
        [variant(70, 10)],
        5,
        {},
        devices=[
            {"name": "one", "count": 2, "site": "far", "start_s": 3, "per_host": 2, "contention": 1}
        ],
        network={"delays": [{"between": ["core", "far"], "one_way_ms": 1}]},
        faults=faults,
    )
    assert cut_times(file.world, "far") == [(6.0, 8.0), (7.0, 8.0)]
    able = capacity(file.world, file.world.devices[0], 0.01, np.arange(11.0))
    assert able.work_s.tolist() == [1.5, 1.5, 1, 1, 1, 2, 0, 0, 2, 2]
    assert able.carry_s == pytest.approx(0.01 * (2 * 3 + 2))


def test_long_worlds_get_longer_windows() -> None:
    brief = clairvoyant_bound(world(duration_s=2))
    long = clairvoyant_bound(world(duration_s=60))

    def window_s(bound: Bound) -> float:
        return float(bound.why.rpartition("windows of ")[2].split()[0])

    assert window_s(brief) < window_s(long)


def test_policies_of_the_world_do_not_matter() -> None:
    changed = document(duration_s=3, policies={"selection": "cheapest-feasible"})
    assert clairvoyant_bound(world(**changed)) == clairvoyant_bound(world(duration_s=3))
