"""Decisions in words, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from modelless.controller.control.messages import Entry, EntryKind
from modelless.policies.reasons import Reason

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
