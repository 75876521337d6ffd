"""The backlogs: what was shown stays as it was, however late anybody looks."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np

from modelless.controller.dispatch.backlog import ReadyCandidates, WorkerBacklogs
from modelless.policies.views import Candidates
from modelless.variants.estimates import Estimates
from modelless.variants.vocabulary import Placement


def test_a_snapshot_tells_when_workers_begin_and_never_changes() -> None:
    backlogs = WorkerBacklogs(np.array([1.0, 7.0]))
    backlogs.set(0, 1.0, {0: 0.5})
    shown = backlogs.snapshot_at(3.0)
    backlogs.set(0, 100.0, {0: 100.0})
    backlogs.set(1, 2.0, {0: 0.25})
    assert shown.starts_s(0).tolist() == [3.5, 7.0]
    assert backlogs.snapshot_at(3.0).starts_s(0).tolist() == [200.0, 3.25]
    other = backlogs.rearranged(np.array([1, -1])).snapshot_at(0.0)
    assert other.starts_s(0).tolist() == [2.25, 0.0]


def test_what_goes_behind_a_query_does_not_keep_it_waiting() -> None:
    backlogs = WorkerBacklogs(np.array([1.0, 7.0]))
    backlogs.set(0, 4.0, {0: 0.5, -18: 0.25})
    backlogs.set(1, 7.0, {1: 2.0})
    shown = backlogs.snapshot_at(3.0)
    assert shown.starts_s(-18).tolist() == [4.25, 7.0]
    assert shown.starts_s(0).tolist() == [4.75, 7.0]
    assert shown.starts_s(1).tolist() == [4.75, 9.0]
    backlogs.set(1, 7.0, {})  # what has gone is gone from every rank
    assert backlogs.snapshot_at(3.0).starts_s(1).tolist() == [4.75, 7.0]


def test_at_one_moment_it_is_worked_out_once() -> None:
    backlogs = WorkerBacklogs(np.zeros(2))
    assert backlogs.snapshot_at(1.0) is backlogs.snapshot_at(1.0)
    assert backlogs.snapshot_at(1.0) is not backlogs.snapshot_at(2.0)


def candidates(calls: list[int]) -> ReadyCandidates:
    one = np.ones(1)

    def free_at_s() -> np.ndarray:
        calls.append(1)
        return np.array([4.0])

    return ReadyCandidates(
        (Placement("t/m/v@1", "cpu-1"),),
        one,
        one,
        Estimates(one, one, one, one, one),
        free_at_s,
        3.0,
    )


def test_candidates_work_out_when_workers_are_free_once_and_if_asked() -> None:
    calls: list[int] = []
    made = candidates(calls)
    assert not calls
    assert made.free_at_s.tolist() == made.free_at_s.tolist() == [4.0]
    assert len(calls) == 1
    assert not made.free_at_s.flags.writeable


def test_candidates_are_replaced_and_pickled_as_any_others() -> None:
    made = candidates([])
    other = replace(made, shortlist=np.arange(1))
    assert other.free_at_s.tolist() == [4.0]
    assert other.now_s == 3.0
    again = pickle.loads(pickle.dumps(made))  # noqa: S301  (our own)
    assert type(again) is Candidates
    assert again.free_at_s.tolist() == [4.0]
