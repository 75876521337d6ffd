"""The log of a load's queries: each query that was sent has one row and one outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from modelless.controller.demo.load import KindSpec


class Outcome(StrEnum):
    """The outcome of a query."""

    IN_TIME = "in time"
    LATE = "late"
    CANNOT_BE_MET = "refused: cannot be met"
    TOO_BUSY = "refused: too much waiting"
    NOT_READY = "refused: not ready"
    GIVEN_UP = "refused: deadline passed"
    ERROR = "error"


_BY_STATUS: Mapping[int, Outcome] = {
    409: Outcome.CANNOT_BE_MET,
    422: Outcome.CANNOT_BE_MET,
    429: Outcome.TOO_BUSY,
    503: Outcome.NOT_READY,
    504: Outcome.GIVEN_UP,
}


class Row(NamedTuple):
    """One query that ended.

    Attributes:
        kind: which of the load's kinds of queries.
        due_s: when it was to be sent, seconds from the load's beginning.
        status: of HTTP; 0 if no reply came.
        latency_ms: from sending until its reply was read, by the client's clock; waiting for a
            connection counts.
        lag_ms: from when it was due until the client came to send it.
        observed_ms: from arrival to reply, by the server's clock; 0 without an answer.
        variant: id of the variant that answered; empty without an answer.
        accuracy: of that variant, per cent.
        is_right: whether the answer's class is an acceptable one; None if that is not known.
        lost: why there is no reply; empty where there is one.
        error: what a reply other than 200 says, if it says so in JSON.
    """

    kind: int
    due_s: float
    status: int
    latency_ms: float
    lag_ms: float = 0.0
    observed_ms: float = 0.0
    variant: str = ""
    accuracy: float = 0.0
    is_right: bool | None = None
    lost: str = ""
    error: str = ""


@dataclass(slots=True)
class Tally:
    """Queries, counted as they end.

    Attributes:
        latencies_ms: of the answers, by the client's clock.
        accuracy_sum: of the variants that answered, per cent, each answer counting once.
        right, judged: answers known to be right, and those of which it is known.
        in_time_by_server: answers within their deadline by the server's clock, from arrival.
    """

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    by_variant: Counter[str] = field(default_factory=Counter)
    latencies_ms: list[float] = field(default_factory=list)
    accuracy_sum: float = 0.0
    right: int = 0
    judged: int = 0
    in_time_by_server: int = 0

    def add(self, row: Row, deadline_ms: float) -> None:
        self.outcomes[outcome_of(row, deadline_ms)] += 1
        if row.status != 200:
            return
        self.by_variant[row.variant] += 1
        self.latencies_ms.append(row.latency_ms)
        self.accuracy_sum += row.accuracy
        self.in_time_by_server += row.observed_ms <= deadline_ms
        if row.is_right is not None:
            self.judged += 1
            self.right += row.is_right

    @property
    def sent(self) -> int:
        return self.outcomes.total()

    @property
    def in_time(self) -> int:
        return self.outcomes[Outcome.IN_TIME]

    @property
    def late(self) -> int:
        return self.outcomes[Outcome.LATE]

    @property
    def answered(self) -> int:
        return self.in_time + self.late

    @property
    def errors(self) -> int:
        """Neither answered nor refused."""
        return self.outcomes[Outcome.ERROR]

    @property
    def refused(self) -> int:
        return self.sent - self.answered - self.errors

    @property
    def share_in_time(self) -> float | None:
        """In-time answers over all that were sent; None if none was."""
        return self.in_time / self.sent if self.sent else None

    @property
    def mean_accuracy(self) -> float | None:
        """Of the variants that answered, per cent; None without answers."""
        return self.accuracy_sum / self.answered if self.answered else None

    def latency_ms(self, quantile: float) -> float | None:
        """A quantile of the answers' latency; None without answers."""
        return float(np.quantile(self.latencies_ms, quantile)) if self.latencies_ms else None


def outcome_of(row: Row, deadline_ms: float) -> Outcome:
    """The outcome of a query. A late answer comes after the deadline."""
    if row.status == 200:
        return Outcome.LATE if row.latency_ms > deadline_ms else Outcome.IN_TIME
    return _BY_STATUS.get(row.status, Outcome.ERROR)


class QueryLog:
    """All queries of a load.

    Args:
        kinds: of queries; a row names one by its place.

    Attributes:
        rows: in the order in which the queries ended.
    """

    def __init__(self, kinds: Sequence[KindSpec]) -> None:
        self.kinds = tuple(kinds)
        self.rows: list[Row] = []
        self.total = Tally()
        self.by_kind = [Tally() for _ in self.kinds]
        self.by_task = {kind.task: Tally() for kind in self.kinds}

    def add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            kind = self.kinds[row.kind]
            self.rows.append(row)
            for tally in (self.total, self.by_kind[row.kind], self.by_task[kind.task]):
                tally.add(row, kind.deadline_ms)

    def recent(self, now_s: float, window_s: float, task: str | None = None) -> Tally:
        """Those due in the ``window_s`` seconds before ``now_s``, of ``task`` if it is given."""
        since_s = now_s - window_s
        found = Tally()
        for row in reversed(self.rows):  # in the order in which they ended: look further back
            if row.due_s < since_s - 2.0 * window_s:
                break
            kind = self.kinds[row.kind]
            if since_s <= row.due_s < now_s and task in (None, kind.task):
                found.add(row, kind.deadline_ms)
        return found

    def bins(self, length_s: float, task: str | None = None) -> list[Tally]:
        """The queries by when they were due, in slices of ``length_s`` seconds, none left out.

        Args:
            length_s: more than 0.
            task: only of this one.
        """
        end_s = max((row.due_s for row in self.rows), default=-1.0)
        slices = [Tally() for _ in range(int(end_s // length_s) + 1)]
        for row in self.rows:
            kind = self.kinds[row.kind]
            if task in (None, kind.task):
                slices[int(row.due_s // length_s)].add(row, kind.deadline_ms)
        return slices
