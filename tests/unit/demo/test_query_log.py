"""Every query that was sent comes out exactly once."""

from __future__ import annotations

import pytest

from modelless.controller.demo.load import LoadSpec
from modelless.controller.demo.query_log import Outcome, QueryLog, Row, outcome_of


@pytest.fixture
def query_log(spec: LoadSpec, rows: list[Row]) -> QueryLog:
    found = QueryLog(spec.kinds)
    found.add(rows[:4])
    found.add(rows[4:])
    return found


def test_every_query_has_one_outcome(query_log: QueryLog, rows: list[Row]) -> None:
    total = query_log.total
    assert total.outcomes == {
        Outcome.IN_TIME: 2,
        Outcome.LATE: 1,
        Outcome.CANNOT_BE_MET: 1,
        Outcome.TOO_BUSY: 1,
        Outcome.NOT_READY: 1,
        Outcome.GIVEN_UP: 1,
        Outcome.ERROR: 2,
    }
    assert total.sent == len(rows) == sum(total.outcomes.values())
    assert (total.answered, total.late, total.refused, total.errors) == (3, 1, 4, 2)
    assert total.share_in_time == pytest.approx(2 / 9)


def test_answers_are_described(query_log: QueryLog) -> None:
    total = query_log.total
    assert total.mean_accuracy == pytest.approx((74.4 + 74.4 + 92.2) / 3)
    assert (total.right, total.judged) == (1, 2)
    assert total.latency_ms(0.5) == pytest.approx(10.0)
    assert total.in_time_by_server == 3
    assert total.by_variant == {
        "imagenet/efficientnet-lite0/int8-224@1": 2,
        "fashion-mnist/cnn-xl/int8-28@1": 1,
    }


def test_kinds_and_tasks_add_up(query_log: QueryLog) -> None:
    of_quick, of_clothes = query_log.by_kind
    assert of_quick.sent + of_clothes.sent == query_log.total.sent
    assert query_log.by_task == {"imagenet": of_quick, "fashion-mnist": of_clothes}


def test_bins_leave_nothing_out(query_log: QueryLog) -> None:
    bins = query_log.bins(2.0)
    assert [one.sent for one in bins] == [3, 2, 0, 2, 2]
    assert sum(one.sent for one in query_log.bins(2.0, "imagenet")) == 6
    assert len(query_log.bins(2.0, "imagenet")) == len(bins)


def test_recent_looks_at_when_queries_were_due(query_log: QueryLog) -> None:
    assert query_log.recent(3.0, 1.0).sent == 2
    assert query_log.recent(10.0, 3.0).sent == 4
    assert query_log.recent(10.0, 3.0, "fashion-mnist").sent == 2


def test_empty_books(spec: LoadSpec) -> None:
    query_log = QueryLog(spec.kinds)
    total = query_log.total
    assert total.sent == total.answered == total.refused == total.errors == 0
    assert total.share_in_time is total.mean_accuracy is total.latency_ms(0.5) is None
    assert query_log.bins(1.0) == []
    assert query_log.recent(5.0, 5.0) == total


def test_on_the_deadline_is_in_time() -> None:
    assert outcome_of(Row(0, 0.0, 200, 50.0), 50.0) is Outcome.IN_TIME
    assert outcome_of(Row(0, 0.0, 200, 50.1), 50.0) is Outcome.LATE
