"""The simulation bites: each fault that is put into a machine on purpose is found by some seed.

``python -m tests.simtest.test_mutations`` looks for the first seed that finds each.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from modelless.controller.control.machine import Control
from modelless.controller.device.load_backoff import LoadBackoff
from modelless.controller.device.load_queue import LoadQueue
from modelless.controller.device.machine import Device
from modelless.controller.dispatch import dispatcher
from modelless.controller.dispatch.dispatcher import Dispatcher
from modelless.controller.dispatch.open_queries import OpenQueries
from modelless.controller.dispatch.quarantine import Quarantine
from modelless.controller.dispatch.queues import WaitingQueries
from tests.simtest.__main__ import run_seed
from tests.simtest.members import Member


def _never(inner: Any, *arguments: Any, **named: Any) -> list[Any]:
    return []


def _without_last(inner: Any, *arguments: Any) -> list[Any]:
    return inner(*arguments)[:-1]


def _twice(inner: Any, *arguments: Any) -> None:
    inner(*arguments)
    inner(*arguments)


def _free_at_once(inner: Any, device: Device, copy: Any, effects: list[Any]) -> None:
    copy.leases, leases = 0, copy.leases
    inner(device, copy, effects)
    copy.leases = leases


def _without_minimum(inner: Any, selection: Any, query: Any, *others: Any, **named: Any) -> Any:
    return inner(selection, query._replace(min_accuracy_percent=0.0), *others, **named)


def _room_for_all(inner: Any, device: Device, load: Any, now_s: float) -> bool:
    device.memory_bytes, most = 1 << 60, device.memory_bytes
    is_set = inner(device, load, now_s)
    device.memory_bytes = most
    return is_set


def _any_control(inner: Any, member: Member, *arguments: Any, **named: Any) -> Any:
    alive = [each.name for each in member.cluster.controls if each.is_alive]
    member.control = alive[int(member.now_s * 10.0) % len(alive)] if alive else ""
    return inner(member, *arguments, **named)


MUTATIONS: dict[str, tuple[Any, str, Callable[..., Any], int]] = {
    "a variant in use is freed": (Device, "_free_if_unused", _free_at_once, 41),
    "a completion is dropped": (OpenQueries, "complete_batch", _without_last, 0),
    "the minimum accuracy is skipped": (dispatcher, "ask_on_query", _without_minimum, 0),
    "memory is not set aside": (Device, "_set_aside", _room_for_all, 73),
    "a load starts twice": (LoadQueue, "put", _twice, 0),
    "a lost worker is not forgotten": (Dispatcher, "_on_worker_lost", _never, 0),
    "a returned batch is forgotten": (Dispatcher, "_rechoose_returned", _never, 0),
    "a displaced query is forgotten": (Dispatcher, "_rechoose", _never, 0),
    "deadlines are forgotten": (WaitingQueries, "find_expired", _never, 0),
    "a silent member is never forgotten": (Control, "_forget_silent", _never, 0),
    "a wait is told once": (Control, "_with_waits", lambda inner, control, report: report, 0),
    "a quarantine never ends": (Quarantine, "release_due", _never, 7),
    "control decides before it knows all": (Control, "is_settled", lambda *_: True, 0),
    "a load that failed is never tried again": (
        LoadBackoff, "barred", lambda inner, backoff, now_s: inner(backoff, -1e9), 0,
    ),
    "an old control process is obeyed": (Member, "call_control", _any_control, 0),
    "versions are never withdrawn": (
        sys.modules[Control.__module__], "version_effects", _never, 21,
    ),
}  # fmt: skip
"""Where each is, what it changes, and a seed that finds it."""

QUICK = ("a completion is dropped", "a load starts twice", "a displaced query is forgotten")


def find(name: str, seeds: range) -> str:
    """Put a fault into the machine; returns what the first seed that finds it says."""
    owner, attribute, fault, _ = MUTATIONS[name]
    inner = getattr(owner, attribute)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, attribute, lambda *of, **named: fault(inner, *of, **named))
        found = (outcome for outcome in map(run_seed, seeds) if outcome.name)
        return next((f"seed {each.seed}: {each.name}" for each in found), "")


@pytest.mark.parametrize("name", QUICK)
def test_a_fault_in_a_machine_is_found(name: str) -> None:
    seed = MUTATIONS[name][-1]
    assert find(name, range(seed, seed + 1))


if __name__ == "__main__":
    for each in MUTATIONS:
        began_s = time.process_time()
        print(
            f"{each}: {find(each, range(300))}, {time.process_time() - began_s:.1f} s", flush=True
        )
