"""Receipts: a record of each query's decision and outcome. The latest ones can be asked for."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from modelless.controller.dispatch.exploration import FirstChoice
from modelless.policies.reasons import AnyReason, Reason
from modelless.policies.selection.feasibility import latency_column
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
            until it is answered.
        batch_items: items of the batch that it ran in; 0 until it ran.
        run_s: the device's time for that batch; None until it is answered.
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
        return _finite(float(self.candidates.cost_usd[row]))

    @property
    def chosen_row(self) -> int | None:
        """The row of ``candidates`` that serves the query; None if there is none."""
        if self.row is not None or self.candidates is None or self.outcome not in _CHOSEN:
            return self.row
        # It was chosen when a worker fell idle.
        return self.candidates.row_of(self.variant_id, self.device_class)

    def explain(self) -> dict[str, Any]:
        """Return the receipt as plain JSON, with the reasons for and against every candidate.

        Unlimited and unknown values are None.
        """
        query = self.query
        out: dict[str, Any] = {
            "query_id": query.query_id,
            "scope": query.scope,
            "tenant": query.tenant,
            "latency_ms": _ms(query.deadline_s - query.arrival_s),
            "is_default_latency": query.has_default_deadline,
            "min_accuracy": query.min_accuracy_percent,
            "max_cost_usd": _finite(query.max_cost_usd),
            "priority": query.priority,
            "when_late": "serve" if query.serve_late else "refuse",
            "demoted": self.standing is not None and self.standing.demoted,
            "items": query.items,
            "item_size": query.size or None,
            "outcome": self.outcome,
            "reason": self.reason.value if self.reason else None,
            "variant": self.variant_id or None,
            "device_class": self.device_class or None,
            "worker": self.worker_id or None,
            "predicted_latency_ms": _ms(self.predicted_latency_s),
            "observed_latency_ms": _ms(self.observed_latency_s),
            "predicted_cost_usd": self.predicted_cost_usd,
            "cost_usd": self.cost_usd,
            "waited_ms": _ms(self.started_s - query.arrival_s),
            "batch_items": self.batch_items,
            "attempts": self.attempts,
            "rebinds": self.rebinds,
        }
        if self.is_cached:
            out["cached"] = True
        if query.request_id:
            out["request_id"] = query.request_id
        if query.traceparent:
            out["trace_id"] = query.traceparent.split("-")[1]
        if self.problem:
            out["problem"] = self.problem
        shown, row, first = self.candidates, self.chosen_row, self.first_choice
        if first is not None:
            out["first_choice"] = first.explain(query)
            if shown is not first.candidates:
                shown = first.candidates
                row = shown.row_of(self.variant_id, self.device_class)
        if shown is not None:
            out["candidates"] = explain_candidates(query, shown, row, self.quantile)
        return out

    def explain_choice(self, most: int = 16) -> dict[str, Any]:
        """Return the choice and the nearest runners-up, with what ruled each out, as plain JSON.

        Args:
            most: how many runners-up to return. Those that miss the fewest limits come first, and
                of these the most accurate.
        """
        query, candidates, row = self.query, self.candidates, self.chosen_row
        reason = self.reason.value if self.reason else None
        if candidates is None:
            return {"reason": reason, "choice": None, "runners_up": [], "others": 0}
        with np.errstate(invalid="ignore"):
            finish_s = candidates.free_at_s + latency_column(candidates.estimates, self.quantile)
            misses = (candidates.accuracy_percent < query.min_accuracy_percent).astype(int)
            misses += ~(finish_s <= query.deadline_s)
            misses += candidates.cost_usd > query.max_cost_usd
        order = np.lexsort((candidates.estimates.p50_s, -candidates.accuracy_percent, misses))
        rows = [int(each) for each in order[: most + 1] if each != row][:most]
        others = explain_candidates(query, candidates, row, self.quantile, rows)
        choice = None
        if row is not None:
            (choice,) = explain_candidates(query, candidates, row, self.quantile, [row])
        for entry in others:
            entry["why"] = why_not(entry, choice)
        count = len(order) - len(others) - (row is not None)
        return {"reason": reason, "choice": choice, "runners_up": others, "others": count}


def why_not(entry: Mapping[str, Any], chosen: Mapping[str, Any] | None) -> str:
    """Return why a candidate was not chosen, in words; see ``explain_candidates``."""
    if entry["misses"]:
        return ", ".join(entry["misses"])
    if chosen is None:
        return "within the limits"
    worse = []
    if entry["accuracy"] < chosen["accuracy"]:
        worse.append(f"{chosen['accuracy'] - entry['accuracy']:.1f} points less accurate")
    if entry["cost_usd"] > chosen["cost_usd"]:
        worse.append(f"{entry['cost_usd'] / chosen['cost_usd'] - 1.0:.0%} more expensive")
    if entry["planned_ms"] > chosen["planned_ms"]:
        worse.append(f"{entry['planned_ms'] - chosen['planned_ms']:.1f} ms slower")
    return "within the limits, but " + (", ".join(worse) or "the policy prefers another")


def explain_candidates(
    query: QueryView,
    candidates: Candidates,
    chosen: int | None,
    quantile: str = "p99",
    rows: Iterable[int] | None = None,
) -> list[dict[str, Any]]:
    """Return candidates, their estimates, and the query's limits that they miss, as plain JSON.

    These rows, or all of them. Latencies are of the query alone, in milliseconds; ``planned_ms`` is
    at the policy's quantile. By that a candidate is ``too-slow`` if it would be late even without a
    queue, and ``queue-too-long`` if it is late only because of the queue.
    """
    explained = []
    by_row_s = latency_column(candidates.estimates, quantile)
    for row in range(len(candidates.placements)) if rows is None else rows:
        placement = candidates.placements[row]
        accuracy_percent = float(candidates.accuracy_percent[row])
        cost_usd = float(candidates.cost_usd[row])
        planned_s = float(by_row_s[row])
        free_at_s = float(candidates.free_at_s[row])
        misses = []
        if accuracy_percent < query.min_accuracy_percent:
            misses.append(Reason.TOO_INACCURATE.value)
        if not math.isfinite(planned_s):
            misses.append(Reason.NOTHING_KNOWN.value)
        elif query.arrival_s + planned_s > query.deadline_s:
            misses.append(Reason.TOO_SLOW.value)
        elif not free_at_s + planned_s <= query.deadline_s:
            misses.append(Reason.QUEUE_TOO_LONG.value)
        if cost_usd > query.max_cost_usd:
            misses.append(Reason.TOO_DEAR.value)
        explained.append(
            {
                "variant": placement.variant_id,
                "device_class": placement.device_class,
                "accuracy": accuracy_percent,
                "p50_ms": _ms(float(candidates.estimates.p50_s[row])),
                "p99_ms": _ms(float(candidates.estimates.p99_s[row])),
                "planned_ms": _ms(planned_s),
                "wait_ms": _ms(free_at_s - candidates.now_s),
                "cost_usd": _finite(cost_usd),
                "misses": misses,
                "chosen": row == chosen,
            }
        )
    return explained


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


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None or not math.isfinite(seconds) else seconds * 1e3
