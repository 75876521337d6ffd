"""Why a query was answered as it was: its receipt, and what the control plane did before it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from modelless.controller.control.messages import EntryKind
from modelless.controller.history.entries import Told, Wanted, read_entries
from modelless.controller.history.words import entry_text, reason_text
from modelless.policies.reasons import Reason
from modelless.policies.scopes import in_scope
from modelless.variants.store import Store

AROUND_S: Final = 60.0
"""How far back entries are shown with a receipt; what explains an absence may be older."""

_ABSENCE_S: Final = 24 * 3600.0
_MOST: Final = 1000


def context_of(store: Store, receipt: Mapping[str, Any]) -> tuple[list[Told], list[str]]:
    """Entries of the last minute before the query arrived, about its task or no task at all, and
    for each variant that was not loaded, why.
    """
    arrived = datetime.fromisoformat(receipt["arrived_at"])
    task = str(receipt["scope"]).partition("/")[0]
    since, lately = arrived - timedelta(seconds=_ABSENCE_S), arrived - timedelta(seconds=AROUND_S)
    of_task = read_entries(store, Wanted(since, arrived, task=task, most=_MOST))
    kinds = (
        EntryKind.SCALE, EntryKind.RESIZE, EntryKind.RESIZED, EntryKind.RESIZE_FAILED,
        EntryKind.PLAN, EntryKind.WORKER_UP, EntryKind.WORKER_GONE, EntryKind.POLICY_PROBLEM,
    )  # fmt: skip
    of_nobody = read_entries(store, Wanted(lately, arrived, kinds=kinds, most=_MOST))
    shown = [told for told in of_task if told.at >= lately] + of_nobody
    return sorted(shown, key=lambda told: told.number), absences(receipt, of_task, arrived)


def absences(receipt: Mapping[str, Any], entries: Iterable[Told], arrived: datetime) -> list[str]:
    """Why variants of the query's scope were not among its candidates: a line each."""
    if receipt.get("cached"):
        return []
    there = {candidate["variant"] for candidate in receipt.get("candidates") or ()}
    last: dict[str, Told] = {}
    kinds = (EntryKind.LOAD, EntryKind.LOADED, EntryKind.UNLOAD, EntryKind.LOAD_FAILED)
    for told in entries:
        if told.entry.kind in kinds and in_scope(told.entry.subject, str(receipt["scope"])):
            last[told.entry.subject] = told
    lines = []
    for variant_id, told in sorted(last.items()):
        if variant_id in there:
            continue
        ago_s = (arrived - told.at).total_seconds()
        entry = told.entry
        if entry.kind == EntryKind.UNLOAD:
            sake = f" for {entry.details['for']}" if entry.details.get("for") else ""
            what = f"evicted {ago_s:.1f} s before{sake}: {reason_text(entry.reason)}"
        elif entry.kind == EntryKind.LOAD_FAILED:
            what = f"its load had failed {ago_s:.1f} s before: {entry.reason}"
        elif entry.kind == EntryKind.LOAD:
            what = f"its load had been decided {ago_s:.1f} s before, and had not ended"
        else:
            what = f"loaded {ago_s:.1f} s before in {entry.details.get('worker')}, not there now"
        lines.append(f"{variant_id} was not ready: {what}")
    return lines


def words(receipt: Mapping[str, Any]) -> list[str]:
    """What was asked, what was decided and why, and what came of it: a line each."""
    limits = [f"{receipt['items']} item" + ("s" if receipt["items"] != 1 else "")]
    if receipt.get("item_size"):
        limits[0] += f" of about {receipt['item_size']:,} numbers"
    if receipt["latency_ms"] is not None:
        default = " (the server's default)" if receipt.get("is_default_latency") else ""
        limits.append(f"within {receipt['latency_ms']:g} ms{default}")
    if receipt["min_accuracy"]:
        limits.append(f"at least {receipt['min_accuracy']:g} %")
    if receipt["max_cost_usd"] is not None:
        limits.append(f"for at most {receipt['max_cost_usd']:.3g} USD")
    if receipt["priority"]:
        limits.append(f"priority {receipt['priority']}")
    if receipt["tenant"]:
        limits.append(f"tenant {receipt['tenant']}")
    if receipt.get("when_late") == "serve":
        limits.append("late rather than not at all")
    lines = [f"asked for {receipt['scope']}: " + ", ".join(limits)]
    if receipt.get("demoted"):
        lines.append("stood behind the others of its priority: late, or beyond its tenant's share")
    why = reason_text(receipt["reason"])
    if receipt["outcome"] == "refused":
        lines.append(_refusal(receipt, why))
    elif receipt.get("cached"):
        lines.append(f"{receipt['variant']} from the cache: {why}")
    elif receipt["variant"] is not None:
        lines.append(f"{receipt['variant']} on {receipt['device_class']}, chosen as {why}")
    else:
        lines.append(f"nothing chosen: {why}")
    if receipt.get("problem"):
        lines.append(f"the policy's problem: {receipt['problem']}")
    if receipt["attempts"]:
        lines.append(_course(receipt))
    if receipt["rebinds"] or receipt["attempts"] > 1:
        lines.append(
            f"chosen for anew {receipt['rebinds']} times because it would have been late; "
            f"handed to a worker {receipt['attempts']} times"
        )
    return lines


def _refusal(receipt: Mapping[str, Any], why: str) -> str:
    took_ms, limit_ms = receipt["observed_latency_ms"], receipt["latency_ms"]
    if None not in (took_ms, limit_ms):
        if receipt["reason"] == Reason.DEADLINE_PASSED and took_ms < limit_ms:
            why = "nothing could have it done in time any more: the devices were busy with others"
        elif receipt["reason"] == Reason.QUEUE_TOO_LONG and took_ms >= limit_ms:
            why = "its time was over when the gateway came to it, which has too much to do"
    return f"refused after {_ms(took_ms)}: {why}"


def _course(receipt: Mapping[str, Any]) -> str:
    parts = [
        f"waited {_ms(receipt.get('waited_ms'))}",
        f"ran in {receipt['worker']} in a batch of {receipt['batch_items']}",
    ]
    observed, predicted = receipt["observed_latency_ms"], receipt["predicted_latency_ms"]
    if receipt["outcome"].startswith("served") and observed is not None:
        took = f"answered after {_ms(observed)}"
        if predicted:
            took += f", predicted {_ms(predicted)} ({observed / predicted - 1.0:+.0%})"
        parts.append(took)
    if receipt.get("cost_usd") is not None:
        parts.append(f"cost {receipt['cost_usd']:.3g} USD")
    if receipt["outcome"] == "served-late":
        parts.append("late")
    elif receipt["outcome"] in ("running", "cancelled"):
        parts.append(str(receipt["outcome"]))
    return "; ".join(parts)


def entry_lines(entries: Sequence[Told], arrived: datetime) -> list[str]:
    """Entries, each with the time from it to the query's arrival."""
    return [
        f"{(arrived - told.at).total_seconds():6.1f} s before: {told.entry.kind} "
        f"{told.entry.subject}: {entry_text(told.entry)}"
        for told in entries
    ]


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"
