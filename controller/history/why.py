"""Why a query was answered as it was, and decisions in words, for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from modelless.controller.control.messages import Entry, EntryKind
from modelless.controller.history.entries import Told, Wanted, read_entries
from modelless.policies.reasons import Reason
from modelless.policies.scopes import in_scope
from modelless.variants.store import Store

_REASONS: Final = {
    Reason.CHEAPEST_FEASIBLE: "the cheapest that keeps all limits",
    Reason.MOST_ACCURATE_FEASIBLE: "the most accurate that keeps all limits",
    Reason.BEST_VALUE: "the best value: accuracy for the device time it takes from others",
    Reason.BEST_FIT: "what fits the time that is left best",
    Reason.PLANNED: "its share in the control plane's plan",
    Reason.IN_TURN: "its turn",
    Reason.AT_RANDOM: "drawn at random",
    Reason.ALWAYS: "the policy always takes it",
    Reason.LATE_BINDING: "chosen when the device fell idle",
    Reason.DEFERRED: "left open until a device falls idle",
    Reason.CACHED: "the same inputs were answered before",
    Reason.NOTHING_READY: "nothing that serves it was loaded, nor could be in time",
    Reason.NOTHING_KNOWN: "nothing is known of what could serve it",
    Reason.TOO_INACCURATE: "nothing loaded is as accurate as was asked for",
    Reason.TOO_SLOW: "nothing would be in time, even without a queue",
    Reason.TOO_DEAR: "everything costs more than was allowed",
    Reason.LIMITS_CONFLICT: "each limit can be kept, but not all at once",
    Reason.BAD_ITEM_COUNT: "more items than a batch may have",
    Reason.QUEUE_TOO_LONG: "the queue was too long to be in time",
    Reason.QUEUE_FULL: "the queue was full",
    Reason.DEADLINE_PASSED: "its deadline passed while it waited",
    Reason.WORKER_LOST: "its worker was lost, and the one after it",
    Reason.EXECUTION_FAILED: "the batch failed",
    Reason.POLICY_FAILED: "the selection policy failed",
    Reason.CANCELLED: "the client went away",
    Reason.SHUTTING_DOWN: "the server was shutting down",
    Reason.WANTED: "wanted by the scaling policy",
    Reason.UNWANTED: "not wanted any more",
    Reason.ROOM_NEEDED: "room was needed",
    Reason.DEMAND: "by demand",
    Reason.FORECAST: "by the forecast",
    Reason.OPTIMISED: "by the plan's optimum",
    Reason.FALLBACK: "taken where nothing better was found",
    Reason.FIXED_SIZE: "its size is fixed",
}


def reason_text(reason: str | None) -> str:
    """A reason's value in words; what has none is said as it is."""
    if reason is None:
        return "no reason yet"
    try:
        return _REASONS.get(Reason(reason), reason.replace("-", " "))
    except ValueError:
        return reason


def entry_text(entry: Entry) -> str:
    """An entry's why, at what cost and in whose place, in a line."""
    details = entry.details
    sake = f"for {details['for']}" if details.get("for") else ""
    resize = f"{details.get('size_before')} to {details.get('size')}"
    parts = [reason_text(entry.reason)]
    if entry.kind == EntryKind.LOAD:
        parts += _cost(details, "expects")
        if details.get("displaced"):
            parts.append("in place of " + ", ".join(details["displaced"]))
        parts += _rates(details)
    elif entry.kind == EntryKind.LOADED:
        parts += _cost(details, "took")
    elif entry.kind == EntryKind.UNLOADED:
        parts += [sake, *_cost(details, "freed")]
    elif entry.kind == EntryKind.UNLOAD:
        parts += [sake, *_cost(details, "frees", "again in")]
        if details.get("unused_s") is not None:
            parts.append(f"unused for {details['unused_s']:.1f} s")
    elif entry.kind == EntryKind.PLAN:
        parts += [str(details.get("quality", "")), *_rates(details)]
    elif entry.kind in (EntryKind.SCALE, EntryKind.RESIZE):
        scale = f"{details.get('workers_before')} to {details.get('workers')} workers"
        parts.append(scale if entry.kind == EntryKind.SCALE else resize)
        if details.get("busy_share") is not None:
            parts.append(f"{details['busy_share']:.0%} busy")
        parts += _rates(details)
    elif entry.kind in (EntryKind.RESIZED, EntryKind.RESIZE_FAILED):
        parts.append(resize)
    elif entry.kind in (EntryKind.WORKER_UP, EntryKind.WORKER_GONE):
        held = ", ".join(details.get("holds") or details.get("held") or ["nothing loaded"])
        parts += [str(details.get("device_class", "")), f"with {held}"]
    elif {"before", "after"} <= details.keys():
        parts += _change(details["before"], details["after"])
    if details.get("gateway"):
        parts.append(f"says gateway {details['gateway']}")
    if details.get("who"):
        parts.append(f"by {details['who']}")
    if details.get("worker"):
        parts.append(f"in {details.get('worker')} ({details.get('device_class')})")
    return "; ".join(part for part in parts if part)


def _change(before: Any, after: Any) -> list[str]:
    """What a change of a version's pointer, or of an accuracy, changed."""
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return []
    parts = []
    if before.get("current") != after.get("current"):
        parts.append(f"version {before.get('current')} to {after.get('current')}")
    if before.get("canary") != after.get("canary"):
        number = after.get("canary") or before.get("canary")
        parts.append(f"canary of version {number} {'on' if after.get('canary') else 'off'}")
    if before.get("percent") != after.get("percent"):
        parts.append(f"{before.get('percent', 0.0):.4g} to {after.get('percent', 0.0):.4g} %")
    return parts


def _cost(details: Mapping[str, Any], verb: str, takes: str = "") -> list[str]:
    figures = []
    if details.get("memory_bytes") is not None:
        figures.append(f"{details['memory_bytes'] / 2**20:.1f} MiB")
    if details.get("load_s") is not None:
        figures.append(f"{takes} {details['load_s']:.2f} s".strip())
    return [f"{verb} " + ", ".join(figures)] if figures else []


def _rates(details: Mapping[str, Any]) -> list[str]:
    parts = []
    if details.get("arrivals_per_s"):
        parts.append(f"{details['arrivals_per_s']:.1f} queries/s")
    if details.get("unmet_per_s"):
        parts.append(f"{details['unmet_per_s']:.1f}/s asked in vain")
    return parts


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
