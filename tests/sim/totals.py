"""What the two logs of a run add up to: each figure of its summary, counted anew from the rows.

Nothing of the simulator is used. Prices, watts and the span come from the world.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from modelless.controller.sim.worlds.world import World

Row = dict[str, Any]
LEVELS = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
UNSEEN = ("worker-slows", "site-cut")
"""Faults after which a batch may run though its queries were answered elsewhere: no row is left."""
MOST_PROBLEMS = 20
"""So many kinds of problems are counted, of policies."""


def check_totals(
    world: World, rows: Sequence[Row], control: Sequence[Row], figures: Mapping[str, Any]
) -> None:
    """Every figure of the summary is what the logs say."""
    span_s, end_s = figures["span_s"], figures["end_s"]
    assert figures["world"] == world.name
    assert span_s == (world.duration_s or pytest.approx(max(row["arrival_s"] for row in rows)))
    assert end_s >= max((row["at_s"] for row in control), default=0.0)
    _same(figures, _tally(rows, span_s), "all")
    for key, column in (("tasks", "task"), ("tenants", "tenant")):
        by_name: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            if row[column]:
                by_name[row[column]].append(row)
        assert set(figures[key]) == set(by_name)
        for name, mine in by_name.items():
            _same(figures[key][name], _tally(mine, span_s), name)
    _check_latencies(rows, figures["latency_ms"])
    _check_devices(world, rows, control, figures)
    _check_loads(world, control, figures)
    _check_problems(control, figures["policy_problems"])


def cold_loads(world: World, control: Sequence[Row]) -> Iterator[tuple[Row, float]]:
    """The row with which each load ended, well or not, and for how long it had loaded, seconds.

    A worker loads one variant at a time, in the order in which it was told. What was there when
    the world began is no load, and neither is what its worker did not live to end.
    """
    waiting: dict[str, dict[str, float]] = defaultdict(dict)  # by worker: since when
    ended_s: dict[str, float] = {}
    for row in control:
        worker, variant, action = row["worker"], row["variant"], row["action"]
        if action == "worker-up":
            waiting[worker], ended_s[worker] = {}, row["at_s"]
        elif action == "load":
            waiting[worker][variant] = row["at_s"]
        elif action == "loaded" or (action == "load-failed" and row["reason"] != "no-room"):
            assert next(iter(waiting[worker])) == variant, "loaded out of turn"
            began_s = max(waiting[worker].pop(variant), ended_s[worker])
            ended_s[worker] = row["at_s"]
            if not (world.warm_start and row["at_s"] == 0.0):
                yield row, row["at_s"] - began_s


def presences(control: Sequence[Row], end_s: float) -> Iterator[tuple[str, str, float, float]]:
    """Each stay of a worker as one device class: worker, class, from, until."""
    since: dict[str, tuple[str, float]] = {}
    for row in control:
        worker, action, at_s = row["worker"], row["action"], row["at_s"]
        if action in ("worker-down", "worker-gone", "resized"):
            device, since_s = since.pop(worker)
            yield worker, device, since_s, at_s
        if action in ("worker-up", "resized"):
            since[worker] = (row["device"], at_s)
    for worker, (device, since_s) in since.items():
        yield worker, device, since_s, end_s


def _tally(rows: Sequence[Row], span_s: float) -> dict[str, Any]:
    served = [row for row in rows if row["outcome"].startswith("served")]
    violations = Counter[str]()
    good = []
    for row in rows:
        if row["outcome"] == "served-late":
            violations["late"] += 1
        elif row["outcome"] == "served":
            if row["accuracy"] < row["min_accuracy"]:
                violations["inaccurate"] += 1
            else:
                good.append(row)
        elif row["outcome"] == "unreachable":
            violations["unreachable"] += 1
        else:
            violations[row["reason"]] += 1
    value = math.fsum(row["accuracy"] for row in good) / 100.0
    accuracy = math.fsum(row["accuracy"] for row in served)
    return {
        "queries": len(rows),
        "answered": len(served),
        "good": len(good),
        "attainment": len(good) / len(rows) if rows else None,
        "goodput_per_s": value / span_s if span_s > 0.0 else None,
        "value_per_query": value / len(rows) if rows else None,
        "mean_accuracy": accuracy / len(served) if served else None,
        "violations": dict(violations),
        "violated": len(rows) - len(good),
        "over_cost": sum(
            row["max_cost_usd"] is not None and row["cost_usd"] > row["max_cost_usd"]
            for row in served
        ),
        "cost_usd": math.fsum(row["cost_usd"] or 0.0 for row in rows),
    }


def _same(figures: Mapping[str, Any], counted: Mapping[str, Any], of: str) -> None:
    for name, value in counted.items():
        assert figures[name] == pytest.approx(value), (of, name)


def _check_latencies(rows: Sequence[Row], latency_ms: Mapping[str, Any]) -> None:
    """Quantiles within 1 %, the rest exactly."""
    answered_ms = sorted(
        1e3 * (row["answered_s"] - row["arrival_s"])
        for row in rows
        if row["outcome"].startswith("served")
    )
    if not answered_ms:
        assert set(latency_ms.values()) <= {None, 0.0}
        return
    assert latency_ms["mean"] == pytest.approx(math.fsum(answered_ms) / len(answered_ms))
    assert latency_ms["max"] == pytest.approx(answered_ms[-1])
    for name, level in LEVELS.items():
        exact_ms = answered_ms[int(level * (len(answered_ms) - 1))]
        assert latency_ms[name] == pytest.approx(exact_ms, rel=0.01), name


def _check_devices(
    world: World, rows: Sequence[Row], control: Sequence[Row], figures: Mapping[str, Any]
) -> None:
    devices = {device.name: device for device in world.devices}
    usd_per_s = {name: device.price_usd_per_hour / 3600.0 for name, device in devices.items()}
    batches = {row["batch_id"]: row for row in rows if row["batch_id"] is not None}.values()
    busy_s, alive_s = defaultdict[str, float](float), defaultdict[str, float](float)
    for row in batches:
        busy_s[row["device"]] += row["finish_s"] - row["start_s"]
    for _, device, since_s, until_s in presences(control, figures["end_s"]):
        alive_s[device] += until_s - since_s
    rent_usd = math.fsum(usd_per_s[name] * alive for name, alive in alive_s.items())
    assert figures["rent_usd"] == pytest.approx(rent_usd)
    assert set(figures["utilisation"]) == {name for name, alive in alive_s.items() if alive > 0.0}
    counted = {
        "batches": len(batches),
        "busy_cost_usd": math.fsum(usd_per_s[name] * busy for name, busy in busy_s.items()),
        "energy_wh": math.fsum(devices[n].power_w * busy for n, busy in busy_s.items()) / 3600.0,
        **{f"of {name}": busy_s[name] / alive_s[name] for name in figures["utilisation"]},
    }
    told = {**figures, **{f"of {name}": part for name, part in figures["utilisation"].items()}}
    if any(fault.kind in UNSEEN for fault in world.faults):
        for name, value in counted.items():
            assert told[name] >= value * (1.0 - 1e-9), name
        return
    _same(told, counted, "devices")
    items = sum(row["batch_size"] for row in batches)
    assert figures["mean_batch"] == pytest.approx(items / len(batches) if batches else None)


def _check_loads(world: World, control: Sequence[Row], figures: Mapping[str, Any]) -> None:
    actions = Counter(row["action"] for row in control)
    ended = list(cold_loads(world, control))
    assert figures["loads"] == sum(row["action"] == "loaded" for row, _ in ended)
    assert figures["cold_start_s"] == pytest.approx(math.fsum(took_s for _, took_s in ended))
    assert figures["failed_loads"] == actions["load-failed"]
    assert figures["unloads"] == actions["unload"]
    assert figures["evictions"] == sum(
        row["action"] == "unload" and row["for_variant"] is not None for row in control
    )


def _check_problems(control: Sequence[Row], problems: Mapping[str, int]) -> None:
    """What went wrong in planning is in both; what did on arrival, in the summary alone."""
    seen = Counter(row["reason"] for row in control if row["action"] == "policy-problem")
    for problem, count in seen.items():
        assert problems.get(problem, 0) >= count or len(problems) == MOST_PROBLEMS, problem
