"""Least utilised: by how busy workers were, among those with room."""

from __future__ import annotations

from modelless.policies.placement.least_utilised import LeastUtilised
from modelless.policies.views import Instance, WorkerState


def worker(name: str, busy_share: float, free: int) -> WorkerState:
    taken = (Instance(name, "t/m/v@1", 100 - free, 1.0, 0.0, 0),)
    return WorkerState(name, "cpu-1", 100, taken, busy_share)


def test_the_least_busy_worker_with_room_comes_first() -> None:
    workers = [
        worker("busy", 0.9, 80),
        worker("idle", 0.1, 20),
        worker("idler", 0.1, 30),
        worker("full", 0.0, 5),
    ]
    ranked = LeastUtilised().rank("t/n/v@1", 10, workers)
    assert [each.worker_id for each in ranked] == ["idler", "idle", "busy", "full"]
