"""Memory: a run holds what is open and what it counts, and nothing of the queries that are over."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from modelless.controller.sim.run import simulate
from tests.sim.worlds import world

LADDER = {"kind": "ladder", "count": 4, "latency_ms": [4, 40]}
SECONDS = 2
"""Compared are two and the last ones, as what waits becomes more and less."""
FIRST_SECONDS = 4
"""Until then grows what is kept in bounded numbers."""
LEAST_KEPT_BYTES = 128
"""A query; so much or more would be found out."""


@pytest.mark.slow
def test_twice_the_queries_take_no_more_memory() -> None:
    held: list[tuple[int, int]] = []  # queries so far and bytes, once a simulated second

    def look(_: float, queries: int) -> None:
        gc.collect()
        held.append((queries, tracemalloc.get_traced_memory()[0]))

    busy = world(
        duration_s=FIRST_SECONDS + 4 * SECONDS,
        devices=[{"name": "cpu-1", "count": 4, "memory_mib": 512}],
        tasks=[{"name": "vision", "variants": LADDER}],
        queries=[
            {
                "tasks": ["vision"],
                "arrivals": {"kind": "poisson", "rate_per_s": 400},
                "slos": [{"latency_ms": 60}, {"latency_ms": 250, "min_accuracy": 75}],
            }
        ],
        policies={"selection": "best-value"},
    )
    tracemalloc.start()
    try:
        simulate(busy, progress=look)
    finally:
        tracemalloc.stop()
    early, late = held[FIRST_SECONDS : FIRST_SECONDS + SECONDS], held[-SECONDS:]
    further = late[0][0] - early[-1][0]
    assert further > 1000
    grown_bytes = min(each for _, each in late) - max(each for _, each in early)
    assert grown_bytes < LEAST_KEPT_BYTES * further
