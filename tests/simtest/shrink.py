"""Makes a failing schedule smaller: fewer items, a plainer world, a shorter run.

Delta debugging (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE
Transactions on Software Engineering 2002), and then one feature after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.simtest.schedule import Schedule, Setup

MOST_RUNS = 150


def shrink(schedule: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """Return a schedule that is as small as can be found in ``MOST_RUNS`` and still ``fails``."""
    left = MOST_RUNS

    def try_with(**changes: Any) -> bool:
        nonlocal left, schedule
        tried = schedule._replace(**changes)
        left -= tried != schedule
        if tried == schedule or left < 0 or not _may_be_drawn(tried.setup) or not fails(tried):
            return False
        schedule = tried
        return True

    size = max(len(schedule.items) // 2, 1)
    while size >= 1:
        start = 0
        while start < len(schedule.items):
            items = schedule.items
            if not try_with(items=items[:start] + items[start + size :]):
                start += size
        size //= 2
    for name, plain in vars(Setup()).items():
        try_with(setup=replace(schedule.setup, **{name: plain}))
    for number in range(len(schedule.items)):
        while (item := schedule.items[number]).length_s > 0.1:
            shorter = item._replace(length_s=item.length_s / 2.0)
            if not try_with(
                items=(*schedule.items[:number], shorter, *schedule.items[number + 1 :])
            ):
                break
    return schedule


def _may_be_drawn(setup: Setup) -> bool:
    """Whether ``draw`` might return such a world; others may fail by themselves."""
    in_bounds = setup.min_workers <= setup.workers <= setup.max_workers
    return in_bounds and (setup.workers > 0 or setup.own_device)
