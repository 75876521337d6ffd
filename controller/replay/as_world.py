"""Writes a recording as a world to simulate: arrivals, limits, devices, profiles and policies.

The world holds no outcome: latencies come from the profiles that the cluster began with, and the
policies decide on loads. So a simulated run beside the recorded one shows how true the simulator
is, and a run with other policies shows what they would have done.
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from modelless.common.errors import EnvironmentUnfitError, InvalidInputError, NotFoundError
from modelless.common.files import write_whole
from modelless.controller.config import Settings
from modelless.controller.control.served_versions import Service
from modelless.controller.dispatch.messages import WorkerReport
from modelless.controller.replay.codec import decode
from modelless.controller.replay.snapshot import Snapshot, read_snapshot
from modelless.controller.replay.tape import SUFFIX, TapeReader
from modelless.policies.scopes import base_of, task_of
from modelless.policies.views import QueryView
from modelless.profiler.cost_model.serving_model import PlacementFigures, best_points
from modelless.variants.registry.versions import Line

_COLUMNS: Final = (
    "arrival_s", "task", "latency_ms", "min_accuracy", "max_cost_usd", "tenant", "priority",
    "items", "when_late",
)  # fmt: skip
_MIB: Final = 1 << 20

MOST_LETTERS: Final = 100
MOST_QUEUED: Final = 1_000_000
MOST_WORKERS: Final = 100_000
"""The most that a world may say, for settings of a cluster that have no bound."""


class Arrival(NamedTuple):
    """A recorded query, its arrival by the time of day, seconds."""

    at_s: float
    query: QueryView


def write_world(recording: Path, world: Path) -> dict[str, Any]:
    """Write the world and its trace beside it; return their paths and sizes.

    Queries of more items than a batch may have were refused on arrival, and are left out
    (``too_large``), and so are those of tasks without a profile (``unmeasured``).

    Raises:
        NotFoundError: no gateway or no query was recorded.
        InvalidInputError: a tape cannot be read, or no world can hold a query.
        EnvironmentUnfitError: a file cannot be written.
    """
    import yaml

    gateways = gateways_in(recording)
    if not gateways:
        raise NotFoundError(
            f"no gateway's recording in {recording}: 'modelless up --record {recording}' makes one"
        )
    known = read_snapshot(TapeReader(gateways[0]).header)
    max_batch = known.settings.limits.max_batch
    asked = arrivals_in(recording)
    fitting = [arrival for arrival in asked if arrival.query.items <= max_batch]
    if not fitting:
        raise NotFoundError(f"no query was recorded in {recording}")
    tasks = _tasks(known, _lines(recording))
    measured = {task["name"] for task in tasks}
    arrivals = [arrival for arrival in fitting if task_of(arrival.query.scope) in measured]
    if not arrivals:
        names = sorted({task_of(arrival.query.scope) for arrival in fitting})
        allowed = f"of those profiled on its devices, {', '.join(sorted(measured))}"
        raise InvalidInputError.of("recording: tasks", names, allowed)
    trace = world.with_suffix(".trace.csv")
    start_s = arrivals[0].at_s
    document = {
        "name": world.stem[:MOST_LETTERS],
        "description": f"recorded on {len(gateways)} gateways; profiles as they were then",
        "duration_s": round(arrivals[-1].at_s - start_s + 1.0, 3),
        "devices": _devices(known.settings, recording, len(gateways), known),
        "network": {"worker_hop_ms": round(_hop_s(gateways) * 500.0, 4)},
        "tasks": tasks,
        "queries": [
            {
                "tasks": sorted({task_of(arrival.query.scope) for arrival in arrivals}),
                "arrivals": {"kind": "trace", "path": trace.name},
            }
        ],
        "policies": known.settings.policies.model_dump(mode="json"),
        "limits": {
            "default_latency_ms": known.settings.limits.default_latency_ms,
            "max_queued": min(known.settings.limits.max_queued, MOST_QUEUED),
            "max_batch": max_batch,
        },
    }
    try:
        _write_trace(trace, arrivals, start_s)
        write_whole(world, yaml.safe_dump(document, sort_keys=False).encode(), mode=0o644)
    except OSError as error:
        raise EnvironmentUnfitError(f"{world} cannot be written: {error}") from None
    span_s = arrivals[-1].at_s - start_s
    return {
        "world": str(world),
        "trace": str(trace),
        "queries": len(arrivals),
        "too_large": len(asked) - len(fitting),
        "unmeasured": len(fitting) - len(arrivals),
        "span_s": span_s,
    }


def _write_trace(path: Path, arrivals: Sequence[Arrival], start_s: float) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(_COLUMNS)
    for at_s, query in arrivals:
        writer.writerow(
            (
                f"{at_s - start_s:.6f}",
                query.scope,
                _latency_ms(query),
                f"{query.min_accuracy_percent:g}" if query.min_accuracy_percent else "",
                query.max_cost_usd if query.max_cost_usd < math.inf else "",
                query.tenant,
                query.priority or "",
                query.items,
                "serve" if query.serve_late else "",
            )
        )
    write_whole(path, text.getvalue().encode(), mode=0o644)


def _latency_ms(query: QueryView) -> str:
    """Return the client's own limit; blank if it named none, for the world has the same default."""
    latency_s = query.deadline_s - query.arrival_s
    is_own = latency_s < math.inf and not query.has_default_deadline
    return f"{latency_s * 1e3:.6g}" if is_own else ""


def _devices(
    settings: Settings, recording: Path, gateways: int, known: Snapshot
) -> list[dict[str, Any]]:
    """Return the device classes; the gateways' own devices are workers that scaling leaves."""
    counts: Counter[str] = Counter({pool.device_class: pool.workers for pool in settings.pools})
    bounds = {pool.device_class: pool for pool in settings.pools}
    sizes = {name: set(pool.sizes) for name, pool in bounds.items()}
    own = settings.gateways.device_class
    if own is not None:
        counts[own] += gateways
        sizes.setdefault(own, set()).update(settings.gateways.sizes)
    recorded = _memory_bytes(recording)
    memory_bytes = {n: recorded.get(n, known.device_classes[n].memory_bytes) for n in counts}
    for name, others in sizes.items():
        for size in sorted(others - counts.keys()):
            counts[size], memory_bytes[size] = 0, memory_bytes[name]
    spare = max(0, MOST_WORKERS - sum(counts.values())) // max(len(counts), 1)
    devices = []
    for name, count in counts.items():
        device = known.device_classes[name]
        entry: dict[str, Any] = {
            "name": name,
            "kind": device.kind,
            "count": count,
            "threads": device.threads,
            "memory_mib": memory_bytes[name] / _MIB,
            "price_usd_per_hour": device.price_usd_per_hour,
            "power_w": device.power_w,
            "per_host": max(sum(counts.values()), 1),
            "contention": round(_contention(known, name), 4),
            "sizes": sorted(sizes.get(name, ())),
        }
        if name in bounds:
            pool, fixed = bounds[name], gateways if name == own else 0
            if pool.max_cores is not None:
                entry["max_cores"] = pool.max_cores + fixed * device.threads
            entry["min_workers"] = min(pool.min_workers + fixed, count)
            entry["max_workers"] = max(min(pool.max_workers + fixed, count + spare), count)
        devices.append(entry)
    return devices


def _memory_bytes(recording: Path) -> dict[str, int]:
    """Return the memory for variants in each recorded device, by its class at the beginning."""
    paths = sorted(recording.glob(f"device-*{SUFFIX}"))
    begun = [TapeReader(path).header["arguments"] for path in paths]
    return {each["device_class"]: each["memory_bytes"] for each in begun}


def _hop_s(gateways: Sequence[Path]) -> float:
    """Return the median time that a batch travelled to a worker and back, seconds."""
    hops = [
        float(decode(WorkerReport, event[1]).hop_s)
        for path in gateways
        for _, event, _ in TapeReader(path).items()
        if event[0] == "WorkerReported"
    ]
    return median([hop for hop in hops if hop > 0.0] or [0.0])


def _contention(known: Snapshot, device_class: str) -> float:
    """Return by how much a busy neighbour slows a device, from measured pairs; 0 if none."""
    slowed = [
        run.slowdown - 1.0
        for run in known.cost_inputs.pair_runs
        if run.placement.device_class == device_class
    ]
    return median(slowed) if slowed else 0.0


def _lines(recording: Path) -> Mapping[str, Line]:
    """Return the versions in service at first, by variant; none without a control tape."""
    for path in sorted(recording.glob(f"control-*{SUFFIX}")):
        for _, event, _ in TapeReader(path).items():
            if event[0] == "VersionsChanged":
                service: Service = decode(Service, event[1])
                return service.lines
    return {}


def _tasks(known: Snapshot, lines: Mapping[str, Line]) -> list[dict[str, Any]]:
    """Return the profiled variants, each in the version that was current at first."""
    settings = known.settings
    points: dict[str, list[PlacementFigures]] = {}
    for placement, rows in best_points(known.cost_inputs.measurements).items():
        if placement.device_class in settings.device_classes:
            points.setdefault(placement.variant_id, []).extend(rows)
    tasks: dict[str, list[dict[str, Any]]] = {}
    for variant in known.variants.values():
        name = variant.id.partition("@")[0]
        measured = points.get(variant.id, [])
        if not measured or (name in lines and variant.version != lines[name].current):
            continue
        tasks.setdefault(variant.task, []).append(
            {
                "model": variant.model,
                "name": variant.name,
                "accuracy": variant.accuracy.percent,
                "memory_mib": max(row.memory_bytes for row in measured) / _MIB,
                "load_s": median(row.load_s for row in measured),
                "points": [
                    {
                        "device": row.placement.device_class,
                        "batch": row.batch,
                        "p50_ms": row.p50_s * 1e3,
                        "p90_ms": row.p90_s * 1e3,
                        "p99_ms": row.p99_s * 1e3,
                    }
                    for row in measured
                ],
            }
        )
    if not tasks:
        raise InvalidInputError("recording: nothing was profiled on the devices it ran on")
    return [
        {"name": name, "variants": {"kind": "written", "measured": True, "variants": variants}}
        for name, variants in tasks.items()
    ]


def gateways_in(folder: Path) -> list[Path]:
    """Return the tapes of the gateways."""
    return sorted(folder.glob(f"gateway-*{SUFFIX}"))


def arrivals_in(folder: Path) -> list[Arrival]:
    """Return all gateways' queries that the cache did not answer, in order of arrival."""
    found: list[Arrival] = []
    for path in gateways_in(folder):
        reader = TapeReader(path)
        offset_s = reader.header["clock"]["time_s"] - reader.header["clock"]["monotonic_s"]
        for _, event, _ in reader.items():
            if event[0] == "QueryArrived":
                query = decode(QueryView, event[1])
                query = query._replace(scope=base_of(query.scope))  # without the arm of a trial
                found.append(Arrival(query.arrival_s + offset_s, query))
    return sorted(found, key=lambda arrival: arrival.at_s)
