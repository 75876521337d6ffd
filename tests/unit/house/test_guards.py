"""The fixtures of tests/unit/conftest.py do what they say."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest

from tests.unit.conftest import Sleepless


def test_sleeping_is_refused(no_sleep: Sleepless) -> None:
    with pytest.raises(AssertionError, match="unit tests do not sleep"):
        time.sleep(0.001)
    no_sleep.count = 0  # that was meant


def test_asynchronous_sleeping_is_refused_and_yielding_is_not(no_sleep: Sleepless) -> None:
    asyncio.run(asyncio.sleep(0))
    with pytest.raises(AssertionError, match="unit tests do not sleep"):
        asyncio.run(asyncio.sleep(0.001))
    no_sleep.count = 0  # that was meant


def test_sleeping_that_nobody_hears_of_is_counted(no_sleep: Sleepless) -> None:
    async def sleep_unheard() -> None:
        task = asyncio.create_task(asyncio.sleep(1.0))
        await asyncio.wait([task])
        task.exception()

    asyncio.run(sleep_unheard())
    assert no_sleep.count == 1
    no_sleep.count = 0


def test_the_standard_library_may_wait_for_a_process() -> None:
    assert subprocess.run([sys.executable, "-c", ""], timeout=60, check=False).returncode == 0


def test_starting_ray_is_refused() -> None:
    import ray

    with pytest.raises(AssertionError, match="unit tests start no Ray"):
        ray.init()


def test_ray_is_whole_again_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.undo()  # as at the test's end
    assert ray.init.__module__.startswith("ray.")
