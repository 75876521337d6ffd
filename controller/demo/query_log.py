"""The log of a load's queries: each query that was sent has one row and one outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np


class Outcome(StrEnum):
    """The outcome of a query."""

    IN_TIME = "in time"
    LATE = "late"
    CANNOT_BE_MET = "refused: cannot be met"
    TOO_BUSY = "refused: too much waiting"
    NOT_READY = "refused: not ready"
    GIVEN_UP = "refused: deadline passed"
    ERROR = "error"

    @property
    def is_answer(self) -> bool:
        """Whether the client got an answer."""
        return self in (Outcome.IN_TIME, Outcome.LATE)

    @property
    def is_refusal(self) -> bool:
        """Whether the server said no in an orderly way."""
        return self.startswith("refused")


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
        kind: which of the burst's kinds of queries.
        due_s: when it was to be sent, seconds from the burst's beginning.
        status: of HTTP; 0 if no reply came.
        latency_ms: from sending until its reply was read, by the client's clock; waiting for a
            connection counts.
        lag_ms: from when it was due until the client came to send it.
        observed_ms: from arrival to reply, by the server's clock; 0 without an answer.
        variant: id of the variant that answered; empty without an answer.
        accuracy: of that variant, per cent.
        is_right: whether the answer's class is an acceptable one; None if that is not known.
        lost: why there is no reply; empty where there is one.
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


class Kind(NamedTuple):
    """A kind of queries.

    Attributes:
        name: for people.
        task: what is asked for.
        deadline_ms: by which the client wants its answer; inf for none.
    """

    name: str
    task: str
    deadline_ms: float


@dataclass(frozen=True, slots=True)
class Tally:
    """Some queries, counted.

    Attributes:
        sent: all of them.
        outcomes: how many of each.
        by_variant: how many answers each variant gave.
        mean_accuracy: of the variants that answered, per cent, each answer counting once; None
            without any.
        right, judged: answers known to be right, and those of which it is known.
        p50_ms, p90_ms, p99_ms: latency of the answers by the client's clock; None without any.
        in_time_by_server: answers within their deadline by the server's clock, from arrival.
    """

    sent: int
    outcomes: Mapping[Outcome, int]
    by_variant: Mapping[str, int]
    mean_accuracy: float | None
    right: int
    judged: int
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    in_time_by_server: int

    @property
    def in_time(self) -> int:
        """Answers within their limits."""
        return self.outcomes.get(Outcome.IN_TIME, 0)

    @property
    def answered(self) -> int:
        """Answers, in time or late."""
        return sum(count for outcome, count in self.outcomes.items() if outcome.is_answer)

    @property
    def refused(self) -> int:
        """Orderly refusals."""
        return sum(count for outcome, count in self.outcomes.items() if outcome.is_refusal)

    @property
    def errors(self) -> int:
        """Neither answered nor refused."""
        return self.outcomes.get(Outcome.ERROR, 0)

    @property
    def share_in_time(self) -> float | None:
        """In-time answers over all that were sent; None if none was."""
        return self.in_time / self.sent if self.sent else None


@dataclass(frozen=True, slots=True)
class Bin:
    """A slice of time: queries by when they were due.

    Attributes:
        start_s, length_s: seconds from the burst's beginning.
        tally: of the queries due in it.
    """

    start_s: float
    length_s: float
    tally: Tally


class TallyBuilder:
    """Counts queries as they come, so that what has been counted need not be counted again."""

    def __init__(self) -> None:
        self._outcomes: Counter[Outcome] = Counter()
        self._by_variant: Counter[str] = Counter()
        self._latencies_ms: list[float] = []
        self._accuracy_sum = 0.0
        self._right = self._judged = self._in_time_by_server = 0

    def add(self, row: Row, deadline_ms: float) -> None:
        """Enter a query whose client wanted its answer by ``deadline_ms``."""
        self._outcomes[outcome_of(row, deadline_ms)] += 1
        if row.status != 200:
            return
        self._by_variant[row.variant] += 1
        self._latencies_ms.append(row.latency_ms)
        self._accuracy_sum += row.accuracy
        self._in_time_by_server += row.observed_ms <= deadline_ms
        if row.is_right is not None:
            self._judged += 1
            self._right += row.is_right

    def tally(self) -> Tally:
        """The counts so far."""
        answers = len(self._latencies_ms)
        quantiles: Sequence[float | None] = (None, None, None)
        if answers:
            quantiles = np.quantile(self._latencies_ms, [0.5, 0.9, 0.99]).tolist()
        p50_ms, p90_ms, p99_ms = quantiles
        return Tally(
            sent=self._outcomes.total(),
            outcomes={each: self._outcomes[each] for each in Outcome if self._outcomes[each]},
            by_variant=dict(self._by_variant.most_common()),
            mean_accuracy=self._accuracy_sum / answers if answers else None,
            right=self._right,
            judged=self._judged,
            p50_ms=p50_ms,
            p90_ms=p90_ms,
            p99_ms=p99_ms,
            in_time_by_server=self._in_time_by_server,
        )


def outcome_of(row: Row, deadline_ms: float) -> Outcome:
    """The outcome of a query. A late answer comes after the deadline."""
    if row.status == 200:
        return Outcome.LATE if row.latency_ms > deadline_ms else Outcome.IN_TIME
    return _BY_STATUS.get(row.status, Outcome.ERROR)


class QueryLog:
    """All queries of a load.

    Args:
        kinds: of queries; a row names one by its place.
    """

    def __init__(self, kinds: Sequence[Kind]) -> None:
        self.kinds = tuple(kinds)
        self.rows: list[Row] = []
        self._all = TallyBuilder()
        self._by_kind = [TallyBuilder() for _ in self.kinds]
        self._by_task = {kind.task: TallyBuilder() for kind in self.kinds}

    def add(self, rows: Iterable[Row]) -> None:
        """Enter queries that ended."""
        for row in rows:
            kind = self.kinds[row.kind]
            self.rows.append(row)
            for account in (self._all, self._by_kind[row.kind], self._by_task[kind.task]):
                account.add(row, kind.deadline_ms)

    def tally(self) -> Tally:
        """All of them."""
        return self._all.tally()

    def of_kinds(self) -> list[tuple[Kind, Tally]]:
        """Those of each kind, in their order."""
        return [
            (kind, account.tally()) for kind, account in zip(self.kinds, self._by_kind, strict=True)
        ]

    def of_task(self, task: str) -> Tally:
        """Those that asked for ``task``."""
        return self._by_task[task].tally() if task in self._by_task else TallyBuilder().tally()

    def recent(self, now_s: float, window_s: float, task: str | None = None) -> Tally:
        """Those due in the ``window_s`` seconds before ``now_s``, of ``task`` if it is given."""
        since_s = now_s - window_s
        found = []
        for row in reversed(self.rows):  # in the order in which they ended: look further back
            if row.due_s < since_s - 2.0 * window_s:
                break
            if since_s <= row.due_s < now_s and task in (None, self.kinds[row.kind].task):
                found.append(row)
        return self._count(found)

    def bins(self, length_s: float, task: str | None = None) -> list[Bin]:
        """The queries by when they were due, in slices of ``length_s`` seconds, none left out.

        Args:
            length_s: more than 0.
            task: only of this one.
        """
        if not self.rows:
            return []
        count = int(max(row.due_s for row in self.rows) // length_s) + 1
        slices: list[list[Row]] = [[] for _ in range(count)]
        for row in self.rows:
            if task in (None, self.kinds[row.kind].task):
                slices[int(row.due_s // length_s)].append(row)
        return [
            Bin(place * length_s, length_s, self._count(rows)) for place, rows in enumerate(slices)
        ]

    def _count(self, rows: Iterable[Row]) -> Tally:
        account = TallyBuilder()
        for row in rows:
            account.add(row, self.kinds[row.kind].deadline_ms)
        return account.tally()
