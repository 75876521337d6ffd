"""Room to load: free memory, then idle loaders, then a home of one's own."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from modelless.policies.placement.room_to_load import RoomToLoad
from modelless.policies.testing import PlacementConformance
from modelless.policies.views import Instance, WorkerState


class TestRoomToLoad(PlacementConformance):
    @pytest.fixture
    def policy(self) -> RoomToLoad:
        return RoomToLoad()


def worker(name: str, *, free: int = 0, loading: int = 0) -> WorkerState:
    """A worker of 100 bytes."""
    held = [Instance(name, f"v{n}", 10, 5.0, 0.0, 0, in_use=True) for n in range(loading)]
    rest = 100 - free - 10 * loading
    held.append(Instance(name, "served", rest, 5.0, 1.0, 3, in_use=True))
    return WorkerState(name, "gpu", 100, tuple(held))


def names(variant_id: str, needed: int, *workers: WorkerState) -> list[str]:
    return [each.worker_id for each in RoomToLoad().rank(variant_id, needed, workers)]


def test_where_there_is_room_comes_first_and_the_emptiest_of_those() -> None:
    workers = worker("full", free=5), worker("some", free=30), worker("most", free=60)
    assert names("v", 20, *workers) == ["most", "some", "full"]


def test_where_there_is_none_an_idle_loader_comes_first() -> None:
    workers = worker("a", free=9, loading=2), worker("b", free=0), worker("c", free=5, loading=1)
    assert names("v", 20, *workers) == ["b", "c", "a"]


def test_what_is_in_use_and_has_served_is_not_loading() -> None:
    firsts = {names(f"v{n}", 20, worker("a"), worker("b", free=9))[0] for n in range(20)}
    assert firsts == {"a", "b"}


def test_full_and_idle_workers_share_the_variants_out_for_good() -> None:
    workers = [worker(f"w{n}", free=n) for n in range(4)]
    homes = {f"v{n}": names(f"v{n}", 20, *workers)[0] for n in range(400)}
    assert all(70 < count < 130 for count in Counter(homes.values()).values())
    # One worker less moves what was at home there, and nothing else.
    moved = [v for v, home in homes.items() if names(v, 20, *workers[:3])[0] != home]
    assert set(moved) == {v for v, home in homes.items() if home == "w3"}


def test_a_quieter_host_comes_before_more_room_but_not_before_any() -> None:
    def beside(slowdown: float, each: WorkerState) -> WorkerState:
        return replace(each, slowdowns={"v": slowdown})

    quiet, loud = beside(1.1, worker("quiet", free=30)), beside(1.6, worker("loud", free=60))
    assert names("v", 20, loud, quiet) == ["quiet", "loud"]
    assert names("other", 20, loud, quiet) == ["loud", "quiet"]
    assert names("v", 40, loud, quiet) == ["loud", "quiet"]
    alike = beside(1.14, worker("alike", free=50))
    assert names("v", 20, quiet, alike) == ["alike", "quiet"]
