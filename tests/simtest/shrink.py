"""Makes a failing schedule smaller: fewer items, a plainer world, a shorter run.

Delta debugging (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE
Transactions on Software Engineering 2002), and then one feature after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

from tests.simtest.schedule import Schedule, Setup

MOST_RUNS = 150


def shrink(
    schedule: Schedule, fails: Callable[[Schedule], bool], most_runs: int = MOST_RUNS
) -> Schedule:
    """Return a schedule that is as small as can be found and still fails.

    Args:
        schedule: that fails.
        fails: whether another one fails in the same way.
        most_runs: of ``fails``.
    """
    left = most_runs

    def still_fails(tried: Schedule) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and fails(tried)

    size = max(len(schedule.items) // 2, 1)
    while size >= 1:
        start = 0
        while start < len(schedule.items):
            items = schedule.items[:start] + schedule.items[start + size :]
            if still_fails(schedule._replace(items=items)):
                schedule = schedule._replace(items=items)
            else:
                start += size
        size //= 2
    plain = Setup()
    for field in fields(Setup):
        simpler = replace(schedule.setup, **{field.name: getattr(plain, field.name)})
        if simpler != schedule.setup and still_fails(schedule._replace(setup=simpler)):
            schedule = schedule._replace(setup=simpler)
    for number in range(len(schedule.items)):
        item = schedule.items[number]
        while item.length_s > 0.1:
            item = item._replace(length_s=item.length_s / 2.0)
            items = (*schedule.items[:number], item, *schedule.items[number + 1 :])
            if not still_fails(schedule._replace(items=items)):
                break
            schedule = schedule._replace(items=items)
    return schedule
