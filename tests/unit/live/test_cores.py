"""Which CPU cores a device keeps to."""

import os

import pytest

from modelless.controller.live.front.gateway import cores_of

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="cores can be kept to on Linux only"
)


def test_like_devices_have_cores_of_their_own(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 2, 5, 7})
    assert [cores_of(rank, 2, 2) for rank in range(2)] == [{1, 2}, {5, 7}]
    assert [cores_of(rank, 1, 3) for rank in range(3)] == [{1}, {2}, {5}]


@pytest.mark.parametrize(
    ("rank", "threads", "devices"), [(0, 1, 3), (1, 2, 2), (2, 1, 2), (-1, 1, 2)]
)
def test_too_few_cores_or_an_odd_rank_keep_to_none(monkeypatch, rank, threads, devices):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    assert cores_of(rank, threads, devices) == frozenset()
