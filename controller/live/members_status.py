"""What the status tells of each gateway and worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from modelless.controller.live.messages import Report


def members_status(reports: Sequence[Report]) -> list[dict[str, Any]]:
    """Each member in a few figures, as plain data."""
    members = []
    for report in reports:
        instances = report.state.instances if report.state is not None else ()
        members.append(
            {
                "id": report.member_id,
                "role": "gateway" if report.is_gateway else "worker",
                "release": report.standing.release,
                "is_starting": report.standing.is_starting,
                "resizing_to": report.state.resizing_to if report.state else "",
                "device_class": report.state.device_class if report.state else None,
                "loaded": sorted(i.variant_id for i in instances if i.memory_bytes),
                "loading": sorted(i.variant_id for i in instances if not i.memory_bytes),
                "pinned": sorted(i.variant_id for i in instances if i.pinned),
                "failed_loads": dict(report.failed_loads),
                "quarantine": _quarantine_of(report.member_id, reports),
                "memory_bytes": sum(i.memory_bytes for i in instances),
                "memory_budget_bytes": report.state.memory_bytes if report.state else 0,
                "resident_bytes": report.resident_bytes,
                "tasks": report.tasks,
                "queued": report.queued,
                "arrivals_per_s": _rate(report.arrivals, report.interval_s),
            }
        )
    return members


def _quarantine_of(member_id: str, reports: Sequence[Report]) -> str:
    """Why gateways give the member no batches for now, and how many; empty if none does."""
    signs = [r.quarantined[member_id] for r in reports if member_id in r.quarantined]
    return f"{max(signs)}, say {len(signs)} gateways" if signs else ""


def _rate(counts: Mapping[str, int], interval_s: float) -> float:
    return round(sum(counts.values()) / interval_s, 1) if interval_s > 0.0 else 0.0
