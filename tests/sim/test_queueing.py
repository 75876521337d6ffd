"""The simulator against queueing theory, where theory knows the answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelless.controller.sim.run import simulate

from .books import Books
from .worlds import world

SERVICE_S = 0.01


@pytest.mark.parametrize("load", [0.5, pytest.param(0.8, marks=pytest.mark.slow)])
def test_one_server_of_fixed_speed_waits_as_pollaczek_and_khinchine_say(
    load: float, tmp_path: Path
) -> None:
    point = {"device": "one", "p50_ms": 10, "p90_ms": 10, "p99_ms": 10}
    file = world(
        tmp_path,
        duration_s=300 if load < 0.6 else 400,
        devices=[{"name": "one"}],
        tasks=[
            {
                "name": "t",
                "variants": {
                    "kind": "written",
                    "variants": [{"model": "m", "accuracy": 70, "points": [point]}],
                },
            }
        ],
        queries=[{"tasks": ["t"], "arrivals": {"kind": "poisson", "rate_per_s": load / SERVICE_S}}],
        limits={"max_batch": 1, "max_queued": 100_000, "default_latency_ms": 60_000},
    )
    figures = simulate(file).figures()
    assert figures["attainment"] == 1.0
    assert figures["utilisation"]["one"] == pytest.approx(load, rel=0.03)
    expected_wait_s = load * SERVICE_S / (2.0 * (1.0 - load))
    wait_s = figures["latency_ms"]["mean"] / 1e3 - SERVICE_S
    assert wait_s == pytest.approx(expected_wait_s, rel=0.08 if load < 0.6 else 0.15)


def test_drawn_latencies_have_the_profile_s_quantiles(tmp_path: Path) -> None:
    point = {"device": "one", "p50_ms": 10, "p90_ms": 14, "p99_ms": 30}
    file = world(
        tmp_path,
        duration_s=300,
        devices=[{"name": "one"}],
        tasks=[
            {
                "name": "t",
                "variants": {
                    "kind": "written",
                    "variants": [{"model": "m", "accuracy": 70, "points": [point]}],
                },
            }
        ],
        queries=[{"tasks": ["t"], "arrivals": {"kind": "poisson", "rate_per_s": 20}}],
        limits={"max_batch": 1},
    )
    log = tmp_path / "log.parquet"
    simulate(file, log=log)
    busy_s = sorted(row["finish_s"] - row["start_s"] for row in Books(file, log).ran)
    for level, expected_s in ((0.5, 0.010), (0.9, 0.014), (0.99, 0.030)):
        assert busy_s[int(level * len(busy_s))] == pytest.approx(expected_s, rel=0.08)


def test_neighbours_slow_each_other(tmp_path: Path) -> None:
    means = []
    for contention in (0.0, 0.5):
        file = world(
            tmp_path,
            duration_s=5,
            devices=[{"name": "c", "count": 4, "per_host": 4, "contention": contention}],
            tasks=[
                {"name": "vision", "variants": {"kind": "ladder", "count": 1, "latency_ms": [9, 9]}}
            ],
            queries=[{"tasks": ["vision"], "arrivals": {"kind": "poisson", "rate_per_s": 150}}],
            limits={"max_batch": 1},
        )
        log = tmp_path / f"{contention}.csv"
        simulate(file, log=log)
        rows = Books(file, log).ran
        means.append(sum(row["finish_s"] - row["start_s"] for row in rows) / len(rows))
    assert means[0] * 1.1 < means[1] < means[0] * 2.5


def test_a_far_worker_is_handed_its_next_batch_a_hop_early(tmp_path: Path) -> None:
    """10 ms there, 20 ms of work, 10 ms back: it works all the time, and not every other moment.

    It is no neighbour of itself.
    """
    point = {"device": "one", "p50_ms": 20, "p90_ms": 20.2, "p99_ms": 20.4}
    model = {"model": "m", "accuracy": 70, "points": [point]}
    file = world(
        tmp_path,
        duration_s=20,
        devices=[{"name": "one", "site": "far", "contention": 0.5}],
        network={"delays": [{"between": ["core", "far"], "one_way_ms": 10}]},
        tasks=[{"name": "t", "variants": {"kind": "written", "variants": [model]}}],
        queries=[{"tasks": ["t"], "arrivals": {"kind": "poisson", "rate_per_s": 100}}],
        limits={"max_batch": 1, "default_latency_ms": 500},
    )
    log = tmp_path / "log.parquet"
    figures = simulate(file, log=log).figures()
    books = Books(file, log)
    books.check(figures)
    assert len(books.ran) / 20.0 == pytest.approx(50.0, rel=0.03)
