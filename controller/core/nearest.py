"""What to tell a client who is refused: why, and the nearest limits that can be met."""

from __future__ import annotations

import numpy as np

from modelless.controller.core.receipts import Receipt
from modelless.policies.reasons import Reason
from modelless.policies.views import Candidates, QueryView

# Not worth trying again as it is: the limits themselves cannot be met, whatever the load.
_FINAL = {Reason.TOO_INACCURATE, Reason.TOO_SLOW, Reason.TOO_DEAR, Reason.LIMITS_CONFLICT}
_SOON = {Reason.QUEUE_TOO_LONG, Reason.QUEUE_FULL, Reason.NOTHING_READY, Reason.SHUTTING_DOWN}


def is_infeasible(reason: Reason) -> bool:
    """Whether no load, however light, would have let the query be served within its limits."""
    return reason in _FINAL


def refusal_message(receipt: Receipt, max_batch: int) -> tuple[str, float | None]:
    """The message for a person, and after how many seconds trying again makes sense (or None)."""
    query, candidates, reason = receipt.query, receipt.candidates, receipt.reason
    if query.items > max_batch:
        return (
            f"{query.items} items in one query; allowed: 1 to {max_batch}. Send several queries.",
            None,
        )
    if reason in _FINAL and candidates is not None:
        return f"no variant of {query.scope!r} can meet {_limits(query)} ({_value(reason)}); " + (
            nearest_feasible(query, candidates)
        ), None
    if reason is Reason.QUEUE_TOO_LONG and candidates is not None:
        wait_s = float(np.min(candidates.free_at_s)) - candidates.now_s
        return (
            f"{_limits(query)} could be met by an idle system, but the queue is "
            f"{wait_s * 1e3:.0f} ms long; try again, or allow more latency or less accuracy",
            max(wait_s, 0.05),
        )
    messages = {
        Reason.QUEUE_FULL: "too many queries are waiting; try again",
        Reason.NOTHING_READY: f"no variant of {query.scope!r} is loaded yet; try again",
        Reason.DEADLINE_PASSED: "the deadline passed before the query could be run",
        Reason.WORKER_LOST: "the worker was lost while running the query, and so was its retry",
        Reason.EXECUTION_FAILED: "the variant failed while running the query",
        Reason.SHUTTING_DOWN: "the server is shutting down; try again",
    }
    message = messages.get(reason) if reason is not None else None
    return message or f"refused: {_value(reason)}", 1.0 if reason in _SOON else None


def nearest_feasible(query: QueryView, candidates: Candidates) -> str:
    """The nearest limits that can be met, one limit relaxed at a time, as a sentence.

    Latency here is the p99 of an idle system.
    """
    latency_s = candidates.estimates.p99_s
    budget_s = query.deadline_s - candidates.now_s
    accurate = candidates.accuracy_percent >= query.min_accuracy_percent
    cheap = candidates.cost_usd <= query.max_cost_usd
    quick = latency_s <= budget_s
    offers = []
    if (accurate & cheap).any():
        row = int(np.where(accurate & cheap, latency_s, np.inf).argmin())
        if not quick[row]:
            offers.append(f"latency_ms {_round_up(float(latency_s[row]) * 1e3):g}")
    if (quick & cheap).any():
        row = int(np.where(quick & cheap, candidates.accuracy_percent, -1.0).argmax())
        if not accurate[row]:
            offers.append(f"min_accuracy {_round_down(float(candidates.accuracy_percent[row])):g}")
    if (accurate & quick).any():
        row = int(np.where(accurate & quick, candidates.cost_usd, np.inf).argmin())
        if not cheap[row]:
            offers.append(f"max_cost_usd {float(candidates.cost_usd[row]) * 1.005:.3g}")
    if not offers:
        best = int(candidates.accuracy_percent.argmax())
        fastest = int(latency_s.argmin())
        return (
            f"the most accurate reaches {candidates.accuracy_percent[best]:.1f} % in "
            f"{latency_s[best] * 1e3:.1f} ms, the fastest {candidates.accuracy_percent[fastest]:.1f} % "
            f"in {latency_s[fastest] * 1e3:.1f} ms"
        )
    return "nearest feasible: change one of " + ", or ".join(offers)


def _round_up(value: float) -> float:
    return float(np.ceil(value * 10.0) / 10.0)


def _round_down(value: float) -> float:
    return float(np.floor(value * 10.0) / 10.0)


def _limits(query: QueryView) -> str:
    parts = []
    if query.deadline_s < float("inf"):
        parts.append(f"latency_ms {(query.deadline_s - query.arrival_s) * 1e3:g}")
    if query.min_accuracy_percent > 0.0:
        parts.append(f"min_accuracy {query.min_accuracy_percent:g}")
    if query.max_cost_usd < float("inf"):
        parts.append(f"max_cost_usd {query.max_cost_usd:g}")
    return " with ".join(parts) or "a query without limits"


def _value(reason: Reason | None) -> str:
    return reason.value if reason is not None else "unknown"
