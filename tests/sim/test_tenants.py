"""A tenant that floods the system crowds out only itself, whatever the policy."""

from __future__ import annotations

import pytest

from modelless.controller.sim.run import simulate
from modelless.controller.sim.summary import Summary

from .worlds import world

WORKERS = 4
CAPACITY_PER_S = WORKERS * 8 / 0.090  # in full batches


def run(policy: str, small: float, flood: float, small_ms: float, flood_ms: float) -> Summary:
    """Two tenants that ask for so much of the capacity, within so long."""
    points = [
        {"device": "cpu", "batch": b, "p50_ms": ms, "p90_ms": ms + 1, "p99_ms": ms + 2}
        for b, ms in ((1, 20), (2, 30), (4, 50), (8, 90))
    ]
    streams = [("small", small, small_ms), ("flood", flood, flood_ms)]
    return simulate(
        world(
            duration_s=30,  # of which a moment passes before the flood is noticed
            devices=[{"name": "cpu", "count": WORKERS}],
            tasks=[
                {
                    "name": "t",
                    "variants": {
                        "kind": "written",
                        "variants": [{"model": "m", "accuracy": 70, "points": points}],
                    },
                }
            ],
            queries=[
                {
                    "tasks": ["t"],
                    "arrivals": {"kind": "poisson", "rate_per_s": share * CAPACITY_PER_S},
                    "slos": [{"latency_ms": latency_ms, "tenant": tenant}],
                }
                for tenant, share, latency_ms in streams
            ],
            policies={"selection": policy},
        )
    )


@pytest.mark.parametrize("policy", ["best-value", "cheapest-feasible"])
@pytest.mark.parametrize(
    ("small_ms", "flood_ms"),
    [
        (200, 200),
        pytest.param(400, 400, marks=pytest.mark.slow),
        pytest.param(3000, 200, marks=pytest.mark.slow),
    ],
)
def test_who_asks_for_a_fifth_gets_it_beside_who_asks_for_three_times_all(
    policy: str, small_ms: float, flood_ms: float
) -> None:
    tenants = run(policy, 0.2, 3.0, small_ms, flood_ms).figures()["tenants"]
    assert tenants["small"]["attainment"] >= 0.99
    assert tenants["flood"]["attainment"] * 3.0 >= 0.65  # nearly all that is left


@pytest.mark.parametrize("policy", ["clockwork", "slack-fit", "most-accurate-feasible"])
@pytest.mark.parametrize(
    "small_ms", [300, pytest.param(3000, marks=pytest.mark.slow)], ids=["alike", "patient"]
)
def test_whatever_the_policy(policy: str, small_ms: float) -> None:
    tenants = run(policy, 0.2, 3.0, small_ms, 300).figures()["tenants"]
    assert tenants["small"]["attainment"] >= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["best-value", "cheapest-feasible"])
def test_two_that_flood_get_the_same(policy: str) -> None:
    tenants = run(policy, 2.0, 4.0, 300, 300).figures()["tenants"]
    served = [tenants["small"]["attainment"] * 2.0, tenants["flood"]["attainment"] * 4.0]
    assert served[0] == pytest.approx(served[1], rel=0.15)
    assert sum(served) >= 0.8


@pytest.mark.parametrize("policy", ["best-value", "cheapest-feasible"])
def test_without_overload_nobody_is_held_back(policy: str) -> None:
    tenants = run(policy, 0.1, 0.5, 300, 300).figures()["tenants"]
    assert tenants["small"]["attainment"] >= 0.99
    assert tenants["flood"]["attainment"] >= 0.99
