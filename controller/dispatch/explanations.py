"""Explains decisions, as plain JSON: what a receipt says, and why no other candidate was chosen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from modelless.controller.dispatch.receipts import Receipt, finite
from modelless.policies.reasons import Reason
from modelless.policies.selection.feasibility import latency_column
from modelless.policies.views import Candidates, QueryView


def explain_receipt(receipt: Receipt) -> dict[str, Any]:
    """Return a receipt as plain JSON, with the reasons for and against every candidate.

    Unlimited and unknown values are None.
    """
    query = receipt.query
    out: dict[str, Any] = {
        "query_id": query.query_id,
        "scope": query.scope,
        "tenant": query.tenant,
        "latency_ms": _ms(query.deadline_s - query.arrival_s),
        "is_default_latency": query.has_default_deadline,
        "min_accuracy": query.min_accuracy_percent,
        "max_cost_usd": finite(query.max_cost_usd),
        "priority": query.priority,
        "when_late": "serve" if query.serve_late else "refuse",
        "demoted": receipt.standing is not None and receipt.standing.demoted,
        "items": query.items,
        "item_size": query.size or None,
        "outcome": receipt.outcome,
        "reason": receipt.reason.value if receipt.reason else None,
        "variant": receipt.variant_id or None,
        "device_class": receipt.device_class or None,
        "worker": receipt.worker_id or None,
        "predicted_latency_ms": _ms(receipt.predicted_latency_s),
        "observed_latency_ms": _ms(receipt.observed_latency_s),
        "predicted_cost_usd": receipt.predicted_cost_usd,
        "cost_usd": receipt.cost_usd,
        "waited_ms": _ms(receipt.started_s - query.arrival_s),
        "batch_items": receipt.batch_items,
        "attempts": receipt.attempts,
        "rebinds": receipt.rebinds,
    }
    if receipt.is_cached:
        out["cached"] = True
    if query.request_id:
        out["request_id"] = query.request_id
    if query.traceparent:
        out["trace_id"] = query.traceparent.split("-")[1]
    if receipt.problem:
        out["problem"] = receipt.problem
    shown, row, first = receipt.candidates, receipt.chosen_row, receipt.first_choice
    if first is not None:
        out["first_choice"] = first.explain(query)
        if shown is not first.candidates:
            shown = first.candidates
            row = shown.row_of(receipt.variant_id, receipt.device_class)
    if shown is not None:
        out["candidates"] = explain_candidates(query, shown, row, receipt.quantile)
    return out


def explain_choice(receipt: Receipt, most: int = 16) -> dict[str, Any]:
    """Return the choice and the nearest runners-up, with what ruled each out, as plain JSON.

    Args:
        most: how many runners-up to return. Those that miss the fewest limits come first, and
            of these the most accurate.
    """
    query, candidates, row = receipt.query, receipt.candidates, receipt.chosen_row
    reason = receipt.reason.value if receipt.reason else None
    if candidates is None:
        return {"reason": reason, "choice": None, "runners_up": [], "others": 0}
    with np.errstate(invalid="ignore"):
        finish_s = candidates.free_at_s + latency_column(candidates.estimates, receipt.quantile)
        misses = (candidates.accuracy_percent < query.min_accuracy_percent).astype(int)
        misses += ~(finish_s <= query.deadline_s)
        misses += candidates.cost_usd > query.max_cost_usd
    order = np.lexsort((candidates.estimates.p50_s, -candidates.accuracy_percent, misses))
    rows = [int(each) for each in order[: most + 1] if each != row][:most]
    others = explain_candidates(query, candidates, row, receipt.quantile, rows)
    choice = None
    if row is not None:
        (choice,) = explain_candidates(query, candidates, row, receipt.quantile, [row])
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
                "cost_usd": finite(cost_usd),
                "misses": misses,
                "chosen": row == chosen,
            }
        )
    return explained


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None or not math.isfinite(seconds) else seconds * 1e3
