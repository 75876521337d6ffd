"""A fixed range of seeds, seeds that once failed, and a check that a run is always the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simtest.__main__ import run, run_seed
from tests.simtest.schedule import RESTLESS, Item, Schedule, Setup
from tests.simtest.shrink import shrink

KEPT = {
    "a gateway whose process was paused gave its own device up for good, because only the workers "
    "of pools were told to dispatch again": Schedule(
        179,
        Setup(
            gateways=3,
            own_device=True,
            min_workers=0,
            memory_mib=2500,
            scaling=RESTLESS,
            limits=("accuracy", "deadline", "late", "priority", "cancel", "scope"),
        ),
        (
            Item(2.1849221692478147, "load", "beta", 8.361465916955858, 15.0),
            Item(7.3861539146263135, "crash", "gateway:2"),
            Item(8.08176915121758, "hang", "gateway:1", 3.0032129816619664),
        ),
    ),
}
"""Schedules that once failed, shrunken, by what it was."""


@pytest.mark.parametrize("seed", range(12))
def test_every_invariant_holds(seed: int) -> None:
    outcome = run_seed(seed)
    assert not outcome.name, outcome.message


@pytest.mark.parametrize("schedule", KEPT.values(), ids=lambda each: str(each.seed))
def test_what_was_mended_stays_mended(schedule: Schedule) -> None:
    outcome = run(schedule)
    assert not outcome.name, outcome.message


def test_a_seed_is_the_same_run_whatever_the_hash_seed() -> None:
    code = (
        "from tests.simtest.__main__ import run_seed\n"
        "print(*[run_seed(seed).trace for seed in (3, 5)])"
    )
    traces = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(traces) == 1


def test_shrinking_leaves_what_the_failure_needs() -> None:
    needed = Item(3.0, "crash", "worker:0")
    items = (Item(1.0, "load", "both", 5.0, 30.0), Item(2.0, "hang", "gateway:0", 1.0), needed)
    setup = Setup(gateways=3, hop_s=0.01)
    small = shrink(Schedule(1, setup, items), lambda tried: needed in tried.items)
    assert (small.items, small.setup) == ((needed,), Setup())
