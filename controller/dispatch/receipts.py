"""Receipts: a record of each query's decision and outcome. The latest ones can be asked for."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

from modelless.controller.dispatch.exploration import FirstChoice
from modelless.policies.reasons import AnyReason, Reason
from modelless.policies.views import Candidates, QueryView

_CHOSEN = ("running", "served", "served-late")


@dataclass(slots=True)
class Receipt:
    """One query's decision and outcome. Times are in seconds.

    Attributes:
        candidates: the candidates of the last choice; None if there was no choice.
        quantile: of the latency that the policy compares with deadlines.
        row: the chosen row of ``candidates``; None if the query was refused or deferred.
        reason: the reason of the choice or the refusal.
        problem: the error of a policy, for people; empty if there is none.
        variant_id, device_class, worker_id: the placement and worker that the query was last bound
            to, and at the end those that served it; empty before.
        predicted_latency_s: from arrival to answer, the median, as predicted when it was bound.
        started_s: when it was last handed to a worker, on the driver's clock; NaN before.
        observed_latency_s: from arrival to answer; None until it is answered.
        cost_usd: its share, by items, of the price of the device time that its batch took; None
            until that has ended, which may be after the query was cancelled.
        batch_items: items of the batch that it ran in; 0 until it ran.
        run_s: the device's time for that batch; None until it has ended.
        attempts: how often it was handed to a worker.
        rebinds: how often the policy chose anew because the query would have been late.
        outcome: ``waiting``, ``running``, ``served``, ``served-late``, ``refused`` or
            ``cancelled``.
        standing: the query as it waits, if that differs: demoted, or with a later deadline.
        first_choice: what was chosen at first; None if no query is explored.
    """

    query: QueryView
    candidates: Candidates | None = None
    quantile: str = "p99"
    row: int | None = None
    reason: AnyReason | None = None
    problem: str = ""
    variant_id: str = ""
    device_class: str = ""
    worker_id: str = ""
    predicted_latency_s: float = float("nan")
    started_s: float = float("nan")
    observed_latency_s: float | None = None
    cost_usd: float | None = None
    batch_items: int = 0
    run_s: float | None = None
    attempts: int = 0
    rebinds: int = 0
    outcome: str = "waiting"
    standing: QueryView | None = None
    first_choice: FirstChoice | None = None

    @property
    def is_cached(self) -> bool:
        """Whether the answer came from the cache."""
        return self.reason is Reason.CACHED

    @property
    def predicted_cost_usd(self) -> float | None:
        """The price of the device time for the query alone, as predicted; None if unknown."""
        row = self.chosen_row
        if self.candidates is None or row is None:
            return None
        return finite(float(self.candidates.cost_usd[row]))

    @property
    def chosen_row(self) -> int | None:
        """The row of ``candidates`` that serves the query; None if there is none."""
        if self.row is not None or self.candidates is None or self.outcome not in _CHOSEN:
            return self.row
        # It was chosen when a worker fell idle.
        return self.candidates.row_of(self.variant_id, self.device_class)


class RecentReceipts:
    """The latest receipts by query id, bounded by the rows of candidates that they hold.

    Args:
        max_rows: candidate rows (about 16 bytes each) that all receipts together may hold.
    """

    def __init__(self, max_rows: int = 1_000_000) -> None:
        self.max_rows = max_rows
        self._receipts: OrderedDict[int, Receipt] = OrderedDict()
        self._rows = 0

    def add(self, receipt: Receipt) -> None:
        """Add the receipt of a closed query; the oldest are dropped when there are too many."""
        before = self._receipts.pop(receipt.query.query_id, None)
        self._receipts[receipt.query.query_id] = receipt
        self._rows += _weight(receipt) - (_weight(before) if before is not None else 0)
        while self._rows > self.max_rows and len(self._receipts) > 1:
            _, oldest = self._receipts.popitem(last=False)
            self._rows -= _weight(oldest)

    def get(self, query_id: int) -> Receipt | None:
        return self._receipts.get(query_id)

    def newest(self, last: Receipt | None, most: int) -> list[Receipt]:
        """Return at most ``most`` of the newest receipts, oldest first, that came after ``last``.

        ``last`` None stands for the beginning.
        """
        found: list[Receipt] = []
        for receipt in reversed(self._receipts.values()):
            if receipt is last or len(found) >= most:
                break
            found.append(receipt)
        return found[::-1]

    def __len__(self) -> int:
        return len(self._receipts)


def _weight(receipt: Receipt) -> int:
    return 32 + (len(receipt.candidates.placements) if receipt.candidates is not None else 0)


def finite(value: float) -> float | None:
    """Return the value; None if it is infinite or unknown."""
    return value if math.isfinite(value) else None
