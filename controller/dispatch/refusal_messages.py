"""Messages for refused clients: the reason, and the nearest limits that can be met."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from modelless.controller.dispatch.receipts import Receipt
from modelless.policies.reasons import AnyReason, Reason
from modelless.policies.views import Candidates, QueryView

# Reasons for which trying again is useless: the limits cannot be met, whatever the load.
_FINAL = {Reason.TOO_INACCURATE, Reason.TOO_SLOW, Reason.TOO_DEAR, Reason.LIMITS_CONFLICT}
_SOON = {Reason.QUEUE_FULL, Reason.NOTHING_READY, Reason.SHUTTING_DOWN}
_DEFAULTED = " (the server's limits.default_latency_ms, for the query names none)"


class Offer(NamedTuple):
    """Limits to ask for instead; None leaves a limit as it is."""

    latency_ms: float | None = None
    min_accuracy: float | None = None
    max_cost_usd: float | None = None

    def __str__(self) -> str:
        named = zip(self._fields, self, strict=True)
        return " and ".join(
            f"{name} {value!r}".removesuffix(".0") for name, value in named if value is not None
        )


def is_infeasible(reason: AnyReason) -> bool:
    """Whether no load, however light, would have let the query be served as it is."""
    return reason in _FINAL or reason is Reason.BAD_ITEM_COUNT


def refusal_message(receipt: Receipt, max_batch: int) -> tuple[str, float | None]:
    """Return the message for people, and after how many seconds to try again (None: never)."""
    query, candidates, reason = receipt.query, receipt.candidates, receipt.reason
    if reason is Reason.BAD_ITEM_COUNT:
        return (
            f"{query.items} items along axis 0 of one query; allowed: 1 to {max_batch} "
            "(limits.max_batch). Send several queries.",
            None,
        )
    if reason is Reason.POLICY_FAILED:
        return f"the policy that decides failed: {receipt.problem}", None
    if reason in _FINAL and candidates is not None:
        offers = ", or ".join(map(str, nearest_limits(query, candidates)))
        return (
            f"no variant of {query.scope!r} can meet {_limits(query)} ({_value(reason)})"
            + (f"; nearest feasible: {offers}" if offers else ""),
            None,
        )
    if reason is Reason.QUEUE_TOO_LONG and candidates is not None:
        took_s, waited_s = _soonest_answer(query, candidates)
        late_s = took_s - (query.deadline_s - query.arrival_s)
        now = "other queries go before it"
        if late_s > 0.0:
            now = f"now takes {took_s * 1e3:.4g} ms, {waited_s * 1e3:.4g} ms of them waiting"
        return (
            f"{_limits(query)} could be met by an idle system, but {now}; "
            "try again, or allow more latency or less accuracy",
            max(late_s, 0.05) if math.isfinite(late_s) else 1.0,
        )
    loaded = candidates.estimates.p99_s if candidates is not None else np.empty(0)
    if reason is Reason.NOTHING_READY and len(loaded) and not np.isfinite(loaded).any():
        return (
            f"variants of {query.scope!r} are loaded, but none has a profile on its device: "
            "profile them",
            1.0,
        )
    accurate = f" with min_accuracy {query.min_accuracy_percent:g} or more"
    which = f"{query.scope!r}{accurate if query.min_accuracy_percent > 0.0 else ''}"
    messages: dict[AnyReason, str] = {
        Reason.QUEUE_FULL: "too many queries are waiting; try again",
        Reason.NOTHING_READY: f"no variant of {which} is loaded yet; try again",
        Reason.DEADLINE_PASSED: "the deadline passed before the query could be run",
        Reason.WORKER_LOST: "the worker was lost while running the query, and so was its retry",
        Reason.EXECUTION_FAILED: "the variant failed while running the query",
        Reason.SHUTTING_DOWN: "the server is shutting down; try again",
    }
    message = messages.get(reason) if reason is not None else None
    return message or f"refused: {_value(reason)}", 1.0 if reason in _SOON else None


def nearest_limits(query: QueryView, candidates: Candidates) -> tuple[Offer, ...]:
    """Return the nearest limits that an idle system can meet, as alternatives to each other.

    Each changes as few limits as possible, and those as little as possible. Latency is the p99,
    and the time that the query spent on its way here. Empty if nothing is known of any candidate.
    """
    spent_s = max(candidates.now_s - query.arrival_s, 0.0)
    # The limits that can be met, and by what factor they exceed those of the query.
    need_s = candidates.estimates.p99_s + spent_s
    budget_s = query.deadline_s - query.arrival_s
    columns = (need_s, candidates.accuracy_percent, candidates.cost_usd)
    known = np.isfinite(np.stack(columns)).all(axis=0)
    if not known.any():
        return ()
    misses = np.stack(
        [
            need_s > budget_s,
            candidates.accuracy_percent < query.min_accuracy_percent,
            candidates.cost_usd > query.max_cost_usd,
        ]
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = np.stack(
            [
                need_s / budget_s if budget_s > 0.0 else need_s,
                query.min_accuracy_percent / np.maximum(candidates.accuracy_percent, 1e-9),
                candidates.cost_usd / query.max_cost_usd,
            ]
        )
    distance = np.where(misses, excess, 0.0).sum(axis=0)
    count = np.where(known, misses.sum(axis=0), len(misses) + 1)
    if count.min() == 0:  # an idle system can meet them as they are
        return ()
    offers = []
    for which in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)):
        wanted = [[number in which] for number in range(len(misses))]
        rows = np.flatnonzero((count == count.min()) & (misses == wanted).all(axis=0))
        if len(rows):
            row = rows[distance[rows].argmin()]
            latency_ms = _round_up(float(need_s[row]) * 1e3)
            accuracy = _round_down(float(candidates.accuracy_percent[row]))
            cost_usd = float(f"{float(candidates.cost_usd[row]) * 1.005:.3g}")
            offers.append(
                Offer(
                    latency_ms if misses[0, row] else None,
                    accuracy if misses[1, row] else None,
                    cost_usd if misses[2, row] else None,
                )
            )
    return tuple(offers)


def _soonest_answer(query: QueryView, candidates: Candidates) -> tuple[float, float]:
    """Return how long after its arrival the query would be answered, and how long it would wait.

    Seconds, by the p99 of the variant that would answer first of those that meet the limits when
    idle; NaN if there is none.
    """
    p99_s, free_at_s = candidates.estimates.p99_s, candidates.free_at_s
    fits = (candidates.accuracy_percent >= query.min_accuracy_percent) & (
        candidates.cost_usd <= query.max_cost_usd
    )
    fits &= (p99_s <= query.deadline_s - query.arrival_s) & np.isfinite(p99_s + free_at_s)
    if not fits.any():
        return math.nan, math.nan
    took_s, waited_s = min(
        (free_s - query.arrival_s + run_s, free_s - query.arrival_s)
        for free_s, run_s in zip(free_at_s[fits].tolist(), p99_s[fits].tolist(), strict=True)
    )
    return took_s, max(waited_s, 0.0)


def _round_up(value: float) -> float:
    """Round up to tenths, and a little more, so that rounding errors do not make it too tight."""
    return math.ceil(value * 10.0 + 1e-4) / 10.0


def _round_down(value: float) -> float:
    tenths = math.floor(value * 10.0)
    return tenths / 10.0 if tenths / 10.0 <= value else (tenths - 1) / 10.0


def _limits(query: QueryView) -> str:
    parts = []
    if query.deadline_s < float("inf"):
        latency_ms = (query.deadline_s - query.arrival_s) * 1e3
        by_whom = _DEFAULTED if query.has_default_deadline else ""
        parts.append(f"latency_ms {round(latency_ms, 6):g}{by_whom}")
    if query.min_accuracy_percent > 0.0:
        parts.append(f"min_accuracy {query.min_accuracy_percent:g}")
    if query.max_cost_usd < float("inf"):
        parts.append(f"max_cost_usd {query.max_cost_usd:g}")
    return " with ".join(parts) or "a query without limits"


def _value(reason: AnyReason | None) -> str:
    return reason.value if reason is not None else "unknown"
