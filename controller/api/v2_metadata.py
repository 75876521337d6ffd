"""Replies that describe the server and its models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

import modelless
from modelless.controller.api.v2_reply import Reply, render_json
from modelless.policies.scopes import scopes_of
from modelless.variants.vocabulary import Task, TensorSpec

PLATFORM = "modelless"

EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "parameters",
    "statistics",
)
"""Extensions of the protocol the server has, by the names clients look for."""

_NOT_READY = 503
_TYPES = {"BYTES": "TYPE_STRING"}


def server_metadata() -> Reply:
    """``GET /v2``: name, version and extensions."""
    return render_json(
        {"name": "modelless", "version": modelless.__version__, "extensions": list(EXTENSIONS)}
    )


def server_live(problem: str = "") -> Reply:
    """``GET /v2/health/live``: 200 if the server can go on, else 503 with the ``problem``."""
    if problem:
        return render_json({"live": False, "problem": problem}, _NOT_READY)
    return render_json({"live": True})


def server_ready(ready: bool, not_served: Mapping[str, str] = MappingProxyType({})) -> Reply:
    """``GET /v2/health/ready``: 200 if the server can answer queries, else 503.

    ``not_served`` says of tasks that are left out, by name, why and what to do about it.
    """
    told: dict[str, Any] = {"live": True, "ready": ready}  # the protocol's text says "live"
    if not_served:
        told["not_served"] = dict(not_served)
    return render_json(told, 200 if ready else _NOT_READY)


def model_ready(name: str, ready: bool, reason: str = "") -> Reply:
    """``GET /v2/models/{name}/ready``: 200 if a query for ``name`` can be answered, else 503.

    ``reason`` says why it never can be as things are, if so.
    """
    told: dict[str, Any] = {"name": name, "ready": ready}
    if reason and not ready:
        told["reason"] = reason
    return render_json(told, 200 if ready else _NOT_READY)


def model_metadata(name: str, task: Task, versions: Sequence[str]) -> Reply:
    """``GET /v2/models/{name}``: the signature of its task. ``name`` is as the client asked.

    Of a task whose answers are texts, ``parameters.decoding`` says how its output is read.
    """
    told: dict[str, Any] = {
        "name": name,
        "versions": list(versions),
        "platform": PLATFORM,
        "inputs": [_describe(spec) for spec in task.inputs],
        "outputs": [_describe(spec) for spec in task.outputs],
    }
    if task.decoding is not None:
        decoding = {"kind": "ctc", **asdict(task.decoding), "labels": list(task.labels)}
        told["parameters"] = {"decoding": decoding}
    return render_json(told)


def model_config(name: str, task: Task, max_batch_items: int) -> Reply:
    """``GET /v2/models/{name}/config``: as much of Triton's model configuration as is true here.

    ``max_batch_items`` is the most items one query may have; shapes leave out axis 0, as there.
    """
    return render_json(
        {
            "name": name,
            "platform": PLATFORM,
            "backend": PLATFORM,
            "max_batch_size": max_batch_items,
            "input": [_configure(spec) for spec in task.inputs],
            "output": [_configure(spec) for spec in task.outputs],
        }
    )


def model_statistics(
    names: Iterable[tuple[str, str, str]], statistics: Mapping[str, Mapping[str, Sequence[float]]]
) -> Reply:
    """``GET /v2/models/{name}/stats``: counts and times of each name's queries and batches.

    Args:
        names: of each row, the name, the version to show, and the scope.
        statistics: of the cluster since its control loop began; see ``ClusterMetrics.statistics``.
    """
    rows = []
    for name, version, scope in names:
        served, refused, latency_s = _sum_within(scope, statistics.get("queries", {}))
        items, batches, busy_s = _sum_within(scope, statistics.get("batches", {}))
        stats = {
            "success": _duration(served, latency_s),
            "fail": _duration(refused, 0.0),
            "compute_infer": _duration(batches, busy_s),
        }
        rows.append(
            {
                "name": name,
                "version": version,
                "inference_count": int(items),
                "execution_count": int(batches),
                "inference_stats": stats,
            }
        )
    return render_json({"model_stats": rows})


def _sum_within(scope: str, rows: Mapping[str, Sequence[float]]) -> Iterable[float]:
    """Return the sums of the three figures in the rows of a scope and the scopes within it."""
    found = [row for within, row in rows.items() if scope in scopes_of(within)]
    return map(sum, zip(*found, strict=True)) if found else (0, 0, 0)


def _duration(count: float, seconds: float) -> dict[str, int]:
    return {"count": int(count), "ns": round(seconds * 1e9)}


def repository_index(tasks: Iterable[tuple[str, bool, str]]) -> Reply:
    """``POST /v2/repository/index``: what can be asked for.

    Args:
        tasks: of each, the name, whether it is served now, and why it cannot be, if so.
    """
    rows: list[dict[str, str]] = []
    for name, is_served, reason in tasks:
        row = {"name": name, "version": "", "state": "READY" if is_served else "UNAVAILABLE"}
        rows.append(row | {"reason": reason} if reason else row)
    return render_json(rows)


def _describe(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}


def _configure(spec: TensorSpec) -> dict[str, Any]:
    data_type = _TYPES.get(spec.datatype, f"TYPE_{spec.datatype}")
    return {"name": spec.name, "data_type": data_type, "dims": list(spec.shape[1:])}
