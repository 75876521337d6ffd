"""The demo's results as one JSON document; the page and the tables are drawn from it alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import modelless
from modelless.controller.demo.load import LoadSpec
from modelless.controller.demo.profiles import Profiles, frontier, is_trusted, short_name
from modelless.controller.demo.query_log import Outcome, QueryLog, Tally
from modelless.controller.demo.slos import capacity_per_s
from modelless.profiler.report.profiles import Profile

SCHEMA = "modelless-demo/1"
"""Goes up when a field changes its meaning or goes away; a new field changes nothing."""
_BINS = 60


def document_of(
    profiles: Profiles,
    *,
    made_at: datetime,
    stages: Sequence[tuple[str, float]],
    first_answer_s: float,
    photos: Mapping[str, Any],
    clothes: Sequence[Mapping[str, Any]],
    burst: Mapping[str, Any],
    notes: Sequence[str],
) -> dict[str, Any]:
    """The findings as plain data, fit for JSON: no NaN, no infinity, units in the names.

    Args:
        made_at: when the demo began, with a time zone.
        stages: name and seconds of each stage; the last one is all of it.
        first_answer_s: from starting the cluster to its first answer.
        photos, clothes: as ``asking`` gives them.
        burst: as ``burst_document`` gives it.
        notes: what a reader should know, in sentences.
    """
    device = profiles.device_class
    return {
        "schema": SCHEMA,
        "made_at": made_at.isoformat(timespec="seconds"),
        "modelless": modelless.__version__,
        "machine": {
            "cpu_model": profiles.cpu_model,
            "cores": profiles.cores,
            "device_class": device.name,
            "price_usd_per_hour": device.price_usd_per_hour,
        },
        "stages": [{"name": name, "seconds": round(seconds, 2)} for name, seconds in stages],
        "first_answer_s": round(first_answer_s, 2),
        "notes": list(notes),
        "variants": [row for each in profiles.by_task.values() for row in variants_document(each)],
        "photos": photos,
        "clothes": list(clothes),
        "burst": burst,
    }


def variants_document(members: Sequence[Profile]) -> list[dict[str, Any]]:
    """The variants of a task with their profiles."""
    kept = frontier(members)
    return [_variant(member, member in kept) for member in members]


def _variant(member: Profile, on_frontier: bool) -> dict[str, Any]:
    variant, one = member.variant, member.points[0]
    return {
        "id": variant.id,
        "task": variant.task,
        "short_name": short_name(variant.id),
        "precision": variant.precision.value,
        "resolution_px": variant.resolution_px,
        "accuracy": variant.accuracy.percent,
        "accuracy_metric": variant.accuracy.metric,
        "accuracy_provenance": variant.accuracy.provenance.value,
        "accuracy_source": variant.accuracy.source,
        "accuracy_low": variant.accuracy.low_percent,
        "accuracy_high": variant.accuracy.high_percent,
        "p50_ms": one.p50_s * 1e3,
        "p90_ms": one.p90_s * 1e3,
        "p99_ms": one.p99_s * 1e3,
        "throughput_per_s": max(point.throughput_per_s for point in member.points),
        "memory_bytes": one.memory_bytes,
        "load_s": one.load_s,
        "artifact_bytes": variant.artifact_bytes,
        "is_trusted": is_trusted(member),
        "on_frontier": on_frontier,
        "p50_ms_by_batch": {str(point.batch): point.p50_s * 1e3 for point in member.points},
    }


def burst_document(
    spec: LoadSpec,
    query_log: QueryLog,
    profiles: Profiles,
    *,
    gateways: int,
    mean_service_s: float,
    client_cpu_s: float,
    memory_bytes: int,
) -> dict[str, Any]:
    """The queries of the burst and their outcomes.

    Args:
        mean_service_s: device time and overhead of a query on an idle system, as estimated.
        client_cpu_s: processor time of the client, seconds.
        memory_bytes: of all gateways and workers, resident, at the end; 0 if unknown.
    """
    accuracies = {
        member.variant.id: member.variant.accuracy.percent
        for members in profiles.by_task.values()
        for member in members
    }
    weights = dict.fromkeys(query_log.by_task, 0.0)
    for kind in spec.kinds:
        weights[kind.task] += kind.weight
    main_task = max(weights, key=weights.__getitem__)
    lags_ms = sorted(row.lag_ms for row in query_log.rows)
    length_s = max(0.5, spec.length_s / _BINS)

    def bins_of(task: str | None) -> list[dict[str, Any]]:
        return [
            {
                "start_s": round(place * length_s, 3),
                "length_s": length_s,
                "offered_per_s": spec.offered_per_s((place + 0.5) * length_s),
                **_counts(tally, accuracies),
            }
            for place, tally in enumerate(query_log.bins(length_s, task))
        ]

    return {
        "seconds": spec.length_s,
        "steps": [step.model_dump() for step in spec.steps],
        "capacity_per_s": capacity_per_s(gateways, mean_service_s),
        "mean_service_ms": mean_service_s * 1e3,
        "gateways": gateways,
        "main_task": main_task,
        "total": _counts(query_log.total, accuracies),
        "main_task_total": _counts(query_log.by_task[main_task], accuracies),
        "kinds": [
            {
                **{name: getattr(kind, name) for name in ("name", "task", "limits", "weight")},
                **_counts(tally, accuracies),
            }
            for kind, tally in zip(spec.kinds, query_log.by_kind, strict=True)
        ],
        "bins": bins_of(None),
        "main_task_bins": bins_of(main_task),
        "client_cpu_share": client_cpu_s / spec.length_s,
        "client_lag_p99_ms": lags_ms[int(0.99 * (len(lags_ms) - 1))] if lags_ms else None,
        "memory_bytes": memory_bytes,
    }


def _counts(tally: Tally, accuracies: Mapping[str, float]) -> dict[str, Any]:
    """A tally as plain data; ``accuracies`` are those of the variants by id, per cent."""
    names = ("sent", "answered", "in_time", "in_time_by_server", "refused", "errors")
    return {
        **{name: getattr(tally, name) for name in (*names, "right", "judged")},
        "outcomes": {one.value: tally.outcomes[one] for one in Outcome if tally.outcomes[one]},
        "share_in_time": _rounded(tally.share_in_time, 5),
        "mean_accuracy": _rounded(tally.mean_accuracy, 3),
        **{f"p{p}_ms": _rounded(tally.latency_ms(p / 100.0), 3) for p in (50, 90, 99)},
        "by_variant": [
            {
                "variant": name,
                "short_name": short_name(name),
                "accuracy": accuracies.get(name, 0.0),
                "answers": count,
            }
            for name, count in tally.by_variant.most_common()
        ],
    }


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
