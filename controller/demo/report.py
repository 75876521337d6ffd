"""The demo's results as one JSON document; the page is drawn from it alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from modelless.controller.demo.answers import ClothesAnswer, Photo, PhotoAnswer
from modelless.controller.demo.burst import BurstResult, offered_per_s
from modelless.controller.demo.load_spec import KindSpec
from modelless.controller.demo.profiles import Profiled, Profiles, frontier, short_name
from modelless.controller.demo.query_log import Bin, Tally

SCHEMA = "modelless-demo/1"
"""Goes up when a field changes its meaning or goes away; a new field changes nothing."""

_BINS = 60


@dataclass(slots=True)
class Findings:
    """The results of the stages, in the order of the stages.

    Attributes:
        made_at: when the demo began, with a time zone.
        version: of modelless.
        profiles: of every variant.
        stages: name and seconds of each stage that ended.
        first_answer_s: from starting the cluster to its first answer.
        photos, photo_answers: who was asked about, and what was said.
        clothes: the labelled images under each SLO.
        burst, burst_kinds: what the burst came to, and what was asked in it.
        notes: what a reader should know, in sentences.
    """

    made_at: datetime
    version: str
    profiles: Profiles
    stages: list[tuple[str, float]] = field(default_factory=list)
    first_answer_s: float | None = None
    photos: Sequence[Photo] = ()
    photo_answers: Sequence[PhotoAnswer] = ()
    clothes: Sequence[ClothesAnswer] = ()
    burst: BurstResult | None = None
    burst_kinds: Sequence[KindSpec] = ()
    notes: list[str] = field(default_factory=list)


def document_of(findings: Findings) -> dict[str, Any]:
    """The findings as plain data, fit for JSON: no NaN, no infinity, units in the names."""
    profiles = findings.profiles
    device = profiles.device_class
    return {
        "schema": SCHEMA,
        "made_at": findings.made_at.isoformat(timespec="seconds"),
        "modelless": findings.version,
        "machine": {
            "cpu_model": profiles.cpu_model,
            "cores": profiles.cores,
            "device_class": device.name,
            "price_usd_per_hour": device.price_usd_per_hour,
        },
        "stages": [
            {"name": name, "seconds": round(seconds, 2)} for name, seconds in findings.stages
        ],
        "first_answer_s": _rounded(findings.first_answer_s, 2),
        "notes": list(findings.notes),
        "variants": [
            _variant(member, member in frontier(members))
            for members in profiles.by_task.values()
            for member in members
        ],
        "photos": _photos(findings),
        "clothes": [_clothes(answer) for answer in findings.clothes],
        "burst": _burst(findings),
    }


def _variant(member: Profiled, on_frontier: bool) -> dict[str, Any]:
    variant, one = member.variant, member.one
    return {
        "id": variant.id,
        "task": variant.task,
        "short_name": member.short_name,
        "precision": variant.precision.value,
        "resolution_px": variant.resolution_px,
        **_accuracy(variant.accuracy.percent, variant.accuracy.provenance.value),
        "accuracy_source": variant.accuracy.source,
        "accuracy_low": variant.accuracy.low_percent,
        "accuracy_high": variant.accuracy.high_percent,
        "p50_ms": one.p50_s * 1e3,
        "p90_ms": one.p90_s * 1e3,
        "p99_ms": one.p99_s * 1e3,
        "throughput_per_s": max(point.throughput_per_s for point in member.points.values()),
        "memory_bytes": one.memory_bytes,
        "load_s": one.load_s,
        "artifact_bytes": variant.artifact_bytes,
        "is_trusted": member.is_trusted,
        "on_frontier": on_frontier,
        "p50_ms_by_batch": {
            str(batch): point.p50_s * 1e3 for batch, point in sorted(member.points.items())
        },
    }


def _accuracy(percent: float, provenance: str) -> dict[str, Any]:
    return {"accuracy": percent, "accuracy_provenance": provenance}


def _photos(findings: Findings) -> dict[str, Any]:
    answers = findings.photo_answers
    judged = [answer for answer in answers if answer.is_judged]
    used = sorted({answer.variant for answer in answers if answer.variant})
    slos = {answer.slo.name: answer.slo for answer in answers}
    return {
        "photos": [
            {"name": photo.name, "acceptable": sorted(photo.acceptable)}
            for photo in findings.photos
        ],
        "slos": [
            {"name": slo.name, "limits": slo.limits, "is_feasible": slo.is_feasible}
            for slo in slos.values()
        ],
        "answers": [_photo_answer(answer) for answer in answers],
        "distinct_variants": used,
        "judged": len(judged),
        "sane": sum(answer.is_sane for answer in judged),
        "answered": sum(answer.reply.is_answer for answer in answers),
        "sane_of_answered": sum(answer.is_sane for answer in answers),
    }


def _photo_answer(answer: PhotoAnswer) -> dict[str, Any]:
    said = answer.reply.parameters
    return {
        "photo": answer.photo,
        "slo": answer.slo.name,
        "status": answer.reply.status,
        "error": answer.reply.error,
        "label": answer.label,
        "score": answer.score,
        "is_sane": answer.is_sane,
        "is_judged": answer.is_judged,
        "variant": answer.variant,
        "short_name": short_name(answer.variant) if answer.variant else "",
        "accuracy": said.get("accuracy"),
        "accuracy_provenance": said.get("accuracy_provenance"),
        "predicted_ms": said.get("predicted_latency_ms"),
        "observed_ms": said.get("observed_latency_ms"),
        "client_ms": round(answer.reply.latency_ms, 3),
        "cost_usd": said.get("cost_usd"),
    }


def _clothes(answer: ClothesAnswer) -> dict[str, Any]:
    return {
        "slo": answer.slo.name,
        "limits": answer.slo.limits,
        "images": answer.images,
        "right": answer.right,
        "refused": answer.refused,
        "measured_percent": answer.measured_percent,
        "measured_low": answer.low_percent,
        "measured_high": answer.high_percent,
        "stated_percent": answer.stated_percent,
        "variants": [
            {"variant": name, "short_name": short_name(name), "images": count}
            for name, count in answer.by_variant.items()
        ],
    }


def _burst(findings: Findings) -> dict[str, Any] | None:
    burst = findings.burst
    if burst is None:
        return None
    query_log = burst.query_log
    accuracies = {
        member.variant.id: member.accuracy_percent
        for members in findings.profiles.by_task.values()
        for member in members
    }
    length_s = max(0.5, burst.seconds / _BINS)
    main_task = max(
        (kind.task for kind in query_log.kinds),
        key=lambda task: sum(k.weight for k in findings.burst_kinds if k.task == task),
        default="",
    )
    lags_ms = sorted(row.lag_ms for row in query_log.rows)
    return {
        "seconds": burst.seconds,
        "steps": [step.model_dump() for step in burst.steps],
        "capacity_per_s": burst.capacity.per_s,
        "mean_service_ms": burst.capacity.mean_service_s * 1e3,
        "gateways": burst.capacity.gateways,
        "main_task": main_task,
        "total": tally_fields(query_log.tally(), accuracies),
        "main_task_total": tally_fields(query_log.of_task(main_task), accuracies),
        "kinds": [
            {
                "name": spec.name,
                "task": spec.task,
                "limits": spec.limits,
                "weight": spec.weight,
                **tally_fields(tally, accuracies),
            }
            for spec, (_, tally) in zip(findings.burst_kinds, query_log.of_kinds(), strict=True)
        ],
        "bins": _bins(query_log.bins(length_s), burst, accuracies),
        "main_task_bins": _bins(query_log.bins(length_s, main_task), burst, accuracies),
        "client_cpu_share": burst.client_cpu_s / burst.seconds,
        "client_lag_p99_ms": lags_ms[int(0.99 * (len(lags_ms) - 1))] if lags_ms else None,
        "memory_bytes": burst.memory_bytes,
    }


def _bins(
    bins: Iterable[Bin], burst: BurstResult, accuracies: Mapping[str, float]
) -> list[dict[str, Any]]:
    return [
        {
            "start_s": round(one.start_s, 3),
            "length_s": one.length_s,
            "offered_per_s": offered_per_s(burst.steps, one.start_s + one.length_s / 2),
            **tally_fields(one.tally, accuracies),
        }
        for one in bins
    ]


def tally_fields(tally: Tally, accuracies: Mapping[str, float]) -> dict[str, Any]:
    """A tally as plain data.

    Args:
        tally: what was counted.
        accuracies: of the variants by id, per cent.
    """
    return {
        "sent": tally.sent,
        "answered": tally.answered,
        "in_time": tally.in_time,
        "in_time_by_server": tally.in_time_by_server,
        "refused": tally.refused,
        "errors": tally.errors,
        "outcomes": {outcome.value: count for outcome, count in tally.outcomes.items()},
        "share_in_time": _rounded(tally.share_in_time, 5),
        "mean_accuracy": _rounded(tally.mean_accuracy, 3),
        "right": tally.right,
        "judged": tally.judged,
        "p50_ms": _rounded(tally.p50_ms, 3),
        "p90_ms": _rounded(tally.p90_ms, 3),
        "p99_ms": _rounded(tally.p99_ms, 3),
        "by_variant": [
            {
                "variant": name,
                "short_name": short_name(name),
                "accuracy": accuracies.get(name, 0.0),
                "answers": count,
            }
            for name, count in tally.by_variant.items()
        ],
    }


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
