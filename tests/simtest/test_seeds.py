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
    "the eviction policy declined for good what a gateway's clients asked for, as it counted the "
    "copy of another gateway, which these clients do not reach": Schedule(
        20029426,
        Setup(
            gateways=2,
            workers=0,
            min_workers=0,
            own_device=True,
            memory_mib=600,
            scaling="on-demand",
            eviction="miss-cost",
            limits=("accuracy", "deadline"),
        ),
        (Item(9.22, "load", "alpha", 4.99, 2.0),),
    ),
    "INFaaS scaling loaded nothing of a task that was asked for, as there was no room beside what "
    "another task no longer needed": Schedule(
        20002565,
        Setup(
            memory_mib=600,
            profiled=1.3,
            scaling="infaas-autoscaler",
            limits=("accuracy", "priority", "cancel"),
        ),
        (Item(6.4, "load", "alpha", 2.13, 10.0), Item(7.45, "promote", "beta/one/int8", value=3)),
    ),
    "a gateway that was paused while it shut down took queries that came meanwhile, and never "
    "ended them": Schedule(
        3001243,
        Setup(workers=2, own_device=True, end_s=13.0),
        (
            Item(0.43, "hang", "control:1", 1.09),
            Item(1.21, "upgrade"),
            Item(2.49, "hang", "control:2", 1.36),
            Item(3.0, "load", "beta", 10.0, 25.0),
            Item(3.42, "hang", "gateway:2", 2.81),
            Item(3.48, "upgrade"),
            Item(11.44, "hang", "gateway:2", 0.39),
        ),
    ),
    "each of two gateways held, in its own device, the only copy of what the other's clients asked "
    "for, and was to keep it for them, though they do not reach it": Schedule(
        3001351,
        Setup(
            gateways=2,
            workers=0,
            min_workers=0,
            max_workers=0,
            own_device=True,
            memory_mib=600,
            scaling="proteus",
            end_s=12.0,
        ),
        (Item(2.0, "load", "both", 8.0, 20.0),),
    ),
    "a gateway whose process was paused gave its own device up for good, as dispatch was told of "
    "it only when its variants changed": Schedule(
        1,
        Setup(workers=0, min_workers=0, max_workers=0, own_device=True, end_s=15.0),
        (Item(4.0, "load", "both", 10.0, 60.0), Item(9.5, "hang", "gateway:0", 4.0)),
    ),
    "an earlier version in a pinned scope kept the room that the current one needed, for "
    "good": Schedule(
        2,
        Setup(memory_mib=600, pinned=("beta/one",), end_s=12.0),
        (Item(2.0, "load", "both", 9.0, 20.0), Item(7.0, "promote", "beta/one/int8", value=2)),
    ),
    "not a failure, but what no seed does: a task is retired under load, and another variant while "
    "a gateway hangs; both come back, and no query waits for what is gone": Schedule(
        4,
        Setup(gateways=2, memory_mib=1500, end_s=30.0),
        (
            Item(2.0, "load", "both", 24.0, 15.0),
            Item(6.0, "retire", "beta/one/int8", 16.0),
            Item(6.5, "retire", "beta/two/fp32", 14.0),
            Item(8.0, "hang", "gateway:0", 3.0),
            Item(9.0, "retire", "alpha/middle/fp32", 12.0),
        ),
    ),
    "a device that was resized took a copy that still ran a batch of the former class, and was to "
    "go, for one of the new class when it was ordered again": Schedule(
        13,
        Setup(
            gateways=2,
            max_workers=0,
            memory_mib=2500,
            sizes=("cpu-2",),
            scaling=RESTLESS,
            limits=("cost", "tenants", "priority", "cancel", "scope"),
        ),
        (
            Item(0.6983258274946866, "canary", "beta/one/int8", value=3),
            Item(0.7451063172345802, "load", "alpha", 9.364699866903377, 30.0),
            Item(3.0, "load", "beta", 4.644036792802405, 25.0),
        ),
    ),
    "a variant was ready when the order of a resize arrived, and not yet when it was made: the "
    "former class's memory was set aside for it": Schedule(
        828,
        Setup(
            gateways=3,
            workers=3,
            own_device=True,
            max_workers=5,
            memory_mib=600,
            sizes=("cpu-2",),
            scaling=RESTLESS,
            preload=("alpha", "beta"),
            limits=("deadline", "tenants", "items", "scope"),
        ),
        (
            Item(0.35383833042465096, "crash", "starting:1", 0.29114227232487766),
            Item(3.2975019385366546, "load", "both", 2.556741134509441, 10.0),
        ),
    ),
    "a query that waited for a load was never loaded for, as the report of its arrival was "
    "lost": Schedule(
        3,
        Setup(memory_mib=1500, scaling="on-demand", end_s=6.0),
        (Item(1.0, "load", "both", 2.0, 5.0),),
    ),
    "what clients at a gateway waited for was loaded first on another gateway's own device, which "
    "they do not reach, and for them only after their patience": Schedule(
        41199,
        Setup(
            gateways=2,
            own_device=True,
            scaling="on-demand",
            limits=("accuracy", "cost", "late", "cancel", "scope"),
        ),
        (Item(0.9716491930077358, "load", "beta", 0.4, 25.0),),
    ),
    "a variant that had been slow was believed to be slow for good, as nothing was sent to it any "
    "more": Schedule(
        4,
        Setup(
            workers=0,
            max_workers=0,
            own_device=True,
            memory_mib=2500,
            learns=True,
            limits=("accuracy",),
        ),
        (Item(1.0, "load", "both", 19.0, 10.0), Item(3.0, "slow", "gateway:0", 17.0, 4.0)),
    ),
}
"""Schedules that once failed, shrunken, by what it was."""


@pytest.mark.parametrize("seed", range(12))
def test_every_invariant_holds(seed: int) -> None:
    outcome = run_seed(seed)
    assert not outcome.name, outcome.message


@pytest.mark.parametrize("schedule", KEPT.values(), ids=lambda each: f"kept-{each.seed}")
def test_what_was_mended_stays_mended(schedule: Schedule) -> None:
    outcome = run(schedule)
    assert not outcome.name, outcome.message


def test_a_seed_is_the_same_run_whatever_the_hash_seed() -> None:
    code = (
        "from tests.simtest.__main__ import draw, run\n"
        "print(*[run(draw(seed), hashes=True).trace for seed in (3, 5)])"
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
