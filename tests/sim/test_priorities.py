"""A higher priority that is in a hurry is not kept waiting by a lower one that is not."""

from __future__ import annotations

import pytest

from modelless.controller.sim.run import simulate

from .worlds import world

WORKERS = 4
QUICKEST_MS = 4.5
VARIANTS = (("quick", 65, 1), ("middling", 74, 3), ("slow", 81, 8))  # times as long


def run(urgent_per_s: float, other_per_s: float, other_ms: float, seed: int) -> dict[str, float]:
    """Shares in time, by priority: the higher one, 1, is due in 10 ms."""
    variants = [
        {
            "model": model,
            "accuracy": accuracy,
            "points": [
                {
                    "device": "cpu",
                    "batch": batch,
                    "p50_ms": ms,
                    "p90_ms": 1.05 * ms,
                    "p99_ms": 1.1 * ms,
                }
                for batch in (1, 2, 4, 8)
                for ms in (times * QUICKEST_MS * (1 + batch) / 2,)
            ],
        }
        for model, accuracy, times in VARIANTS
    ]
    streams = [(urgent_per_s, 10, 1), (other_per_s, other_ms, 0)]
    summary = simulate(
        world(
            seed=seed,
            duration_s=15,
            devices=[{"name": "cpu", "count": WORKERS}],
            tasks=[{"name": "t", "variants": {"kind": "written", "variants": variants}}],
            queries=[
                {
                    "tasks": ["t"],
                    "arrivals": {"kind": "poisson", "rate_per_s": rate},
                    "slos": [
                        {"latency_ms": latency_ms, "priority": priority, "tenant": f"{priority}"}
                    ],
                }
                for rate, latency_ms, priority in streams
            ],
            policies={"selection": "best-value"},
        )
    )
    return {name: of["attainment"] for name, of in summary.figures()["tenants"].items()}


@pytest.mark.parametrize("urgent_per_s", [50, 100])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_higher_priority_with_a_tight_limit_is_in_time_before_a_lower_one(
    urgent_per_s: float, seed: int
) -> None:
    """The lower one alone would take nearly all devices, at their quickest and in full batches.

    So not all can be in time. At half of that load nearly all can, and both have 94 to 98 %.
    """
    in_time = run(urgent_per_s, 1500, 40, seed)
    assert in_time["1"] >= in_time["0"] + 0.02
    assert in_time["0"] >= 0.8


@pytest.mark.parametrize("urgent_per_s", [50, 100])
@pytest.mark.parametrize("other_per_s", [250, 474, 550])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_lower_priority_that_can_wait_does_not_block_it(
    urgent_per_s: float, other_per_s: float, seed: int
) -> None:
    """A twentieth of the higher one may be lost to the lower one, and some to each other."""
    in_time = run(urgent_per_s, other_per_s, 300, seed)
    assert in_time["1"] >= 0.9
    assert in_time["0"] >= 0.99
