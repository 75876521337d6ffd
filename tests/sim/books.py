"""A checker of the books: it reads the log and the world, and knows nothing of the simulator.

Of the simulator's code only the reader of worlds and the list of their profiles are used.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from modelless.controller.sim.profiles import build_fleet
from modelless.controller.sim.world import WorldFile
from modelless.profiler.measured_model import MeasuredCostModel
from modelless.variants.estimates import Load
from modelless.variants.vocabulary import Placement

Row = dict[str, Any]
TEXT = {"task", "variant", "device", "worker", "outcome", "reason", "tenant"}
TEXT |= {"action", "for_variant"}
WIDEST = 4.0  # standard deviations, as docs/simulator.md promises
Z90, Z99 = 1.2815515655446004, 2.3263478740408408
TINY = 1e-9


def read(path: Path) -> list[Row]:
    """The rows of a CSV log; blanks are None."""
    with path.open(encoding="utf-8", newline="") as lines:
        return [
            {
                name: (text or None) if name in TEXT else (float(text) if text else None)
                for name, text in row.items()
            }
            for row in csv.DictReader(lines)
        ]


class Books:
    """The log of one run beside its world."""

    def __init__(self, file: WorldFile, log: Path) -> None:
        self.world = file.world
        self.rows = read(log)
        self.control = read(log.with_suffix(f".control{log.suffix}"))
        self.fleet = build_fleet(file)
        self.devices = {device.name: device for device in self.world.devices}
        self.ran: list[Row] = []
        self.batches: dict[float, list[Row]] = {}
        self.group()

    def group(self) -> None:
        """Put the rows of what ran together by batch."""
        self.ran = [row for row in self.rows if row["batch_id"] is not None]
        self.batches = defaultdict(list)
        for row in self.ran:
            self.batches[row["batch_id"]].append(row)

    def check(self, figures: Mapping[str, Any]) -> None:
        """Everything."""
        self.every_query_comes_out_once()
        self.time_runs_forward()
        self.batches_are_whole()
        self.devices_do_one_thing_at_a_time()
        self.memory_suffices_and_holds_what_runs()
        self.latencies_are_those_of_the_profiles()
        self.totals_are(figures)

    def one_way_s(self, device: str) -> float:
        settings = self.devices[device]
        return self.world.delay_s(settings.site) + self.world.network.worker_hop_ms / 1e3

    def every_query_comes_out_once(self) -> None:
        ids = sorted(row["query_id"] for row in self.rows)
        assert ids == list(range(1, len(ids) + 1))
        in_order = sorted(self.rows, key=lambda row: row["query_id"])
        arrivals = [row["arrival_s"] for row in in_order]
        assert arrivals == sorted(arrivals)
        assert {row["task"] for row in self.rows} <= set(self.world.task_names)
        outcomes = {"served", "served-late", "refused", "unreachable"}
        assert {row["outcome"] for row in self.rows} <= outcomes
        for row in self.rows:
            assert row["reason"], row
            assert (row["batch_id"] is None) == (row["finish_s"] is None) == (not row["variant"])
            if row["outcome"].startswith("served"):
                assert row["batch_id"] is not None
                late = row["answered_s"] > row["deadline_s"]
                assert row["outcome"] == ("served-late" if late else "served")
            if row["outcome"] == "refused":
                assert row["batch_id"] is None

    def time_runs_forward(self) -> None:
        for row in self.ran:
            hop_s = self.one_way_s(row["device"])
            assert row["dispatch_s"] >= row["arrival_s"]
            assert row["start_s"] >= row["dispatch_s"] + hop_s - TINY
            assert row["finish_s"] > row["start_s"]
            if row["answered_s"] is not None:
                assert row["answered_s"] >= row["finish_s"] + hop_s - TINY
        for row in self.rows:
            assert row["answered_s"] is None or row["answered_s"] >= row["arrival_s"]

    def batches_are_whole(self) -> None:
        same = ("variant", "device", "worker", "dispatch_s", "start_s", "finish_s", "batch_size")
        for members in self.batches.values():
            for name in same:
                assert len({row[name] for row in members}) == 1, name
            first = members[0]
            assert sum(row["items"] for row in members) == first["batch_size"]
            assert 1 <= first["batch_size"] <= self.world.limits.max_batch
            variant = self.fleet.variants[first["variant"]]
            assert {row["task"] for row in members} == {variant.task}
            assert {row["accuracy"] for row in members} == {variant.accuracy.percent}

    def devices_do_one_thing_at_a_time(self) -> None:
        by_worker: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for members in self.batches.values():
            row = members[0]
            by_worker[row["worker"]].append((row["start_s"], row["finish_s"]))
        for spans in by_worker.values():
            spans.sort()
            for (_, finish_s), (start_s, _) in pairwise(spans):
                assert start_s >= finish_s - TINY

    def memory_suffices_and_holds_what_runs(self) -> None:
        held: dict[str, dict[str, float]] = {}
        capacity: dict[str, float] = {}
        ready: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
        for row in self.control:
            worker, variant, action = row["worker"], row["variant"], row["action"]
            if action == "worker-up":
                capacity[worker], held[worker] = row["memory_bytes"], {}
            elif action in ("worker-down", "worker-gone"):
                for name in held.pop(worker):
                    for span in ready[worker, name]:
                        span[1] = min(span[1], row["at_s"])
            elif action == "load":
                assert variant not in held[worker], "one copy a worker"
                held[worker][variant] = row["memory_bytes"]
                assert sum(held[worker].values()) <= capacity[worker]
            elif action == "loaded":
                ready[worker, variant].append([row["at_s"], math.inf])
            elif action == "load-failed" and row["reason"] != "no-room":
                del held[worker][variant]
            elif action == "unload":
                del held[worker][variant]
                ready[worker, variant][-1][1] = row["at_s"]
        for members in self.batches.values():
            row = members[0]
            spans = ready[row["worker"], row["variant"]]
            assert any(
                begin_s <= row["dispatch_s"] and row["finish_s"] <= end_s
                for begin_s, end_s in spans
            ), row

    def latencies_are_those_of_the_profiles(self) -> None:
        model = MeasuredCostModel(self.fleet.measurements)
        seen: dict[tuple[str, str, float], list[float]] = defaultdict(list)
        quantiles: dict[tuple[str, str, float], tuple[float, float, float]] = {}
        for members in self.batches.values():
            row = members[0]
            key = (row["variant"], row["device"], row["batch_size"])
            if key not in quantiles:
                placement = Placement(row["variant"], row["device"])
                told = model.estimate([placement], int(row["batch_size"]), Load())
                quantiles[key] = (told.p50_s[0], told.p90_s[0], told.p99_s[0])
            p50_s, p90_s, p99_s = quantiles[key]
            busy_s = row["finish_s"] - row["start_s"]
            device = self.devices[row["device"]]
            disturbed = 1.0 + device.contention * (device.per_host - 1)
            slowed = self._slowest(row)
            least_s = p50_s * (p50_s / p90_s) ** (WIDEST / Z90)
            most_s = p90_s * (p99_s / p90_s) ** ((WIDEST - Z90) / (Z99 - Z90))
            assert busy_s >= least_s * min(slowed, 1.0) - TINY
            assert busy_s <= most_s * disturbed * max(slowed, 1.0) + TINY
            if disturbed == 1.0 and slowed == 1.0:
                seen[key].append(busy_s)
        for key, observed in seen.items():
            if len(observed) >= 400:
                for level, bound_s in zip((0.5, 0.9, 0.99), quantiles[key], strict=True):
                    share = sum(busy_s <= bound_s + TINY for busy_s in observed) / len(observed)
                    slack = 5.0 * math.sqrt(level * (1.0 - level) / len(observed))
                    assert share >= level - slack, (key, level, share)
                    assert share <= level + slack or bound_s == quantiles[key][0] == max(observed)

    def _slowest(self, row: Row) -> float:
        factor = 1.0
        for fault in self.world.faults:
            if fault.kind == "worker-slows" and fnmatchcase(row["worker"], fault.worker):
                factor *= fault.factor
        return factor

    def totals_are(self, figures: Mapping[str, Any]) -> None:
        total = _tally(self.rows)
        for name, value in total.items():
            assert figures[name] == pytest.approx(value), name
        for task in {row["task"] for row in self.rows}:
            mine = _tally([row for row in self.rows if row["task"] == task])
            for name, value in mine.items():
                assert figures["tasks"][task][name] == pytest.approx(value), (task, name)
        answered = [
            row["answered_s"] - row["arrival_s"]
            for row in self.rows
            if row["outcome"].startswith("served")
        ]
        if answered:
            answered.sort()
            latency = figures["latency_ms"]
            assert latency["mean"] == pytest.approx(1e3 * sum(answered) / len(answered))
            assert latency["max"] == pytest.approx(1e3 * answered[-1])
            median_ms = 1e3 * answered[(len(answered) - 1) // 2]
            assert latency["p50"] == pytest.approx(median_ms, rel=0.02)
        actions = [row["action"] for row in self.control]
        assert figures["unloads"] == actions.count("unload")
        assert figures["evictions"] == sum(
            row["action"] == "unload" and row["for_variant"] is not None for row in self.control
        )
        assert figures["failed_loads"] == actions.count("load-failed")


def _tally(rows: Sequence[Row]) -> dict[str, Any]:
    served = [row for row in rows if row["outcome"].startswith("served")]
    violations: dict[str, int] = defaultdict(int)
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
    return {
        "queries": len(rows),
        "answered": len(served),
        "good": len(good),
        "value_per_query": sum(row["accuracy"] for row in good) / 100.0 / len(rows),
        "violations": dict(violations),
        "violated": len(rows) - len(good),
        "cost_usd": sum(row["cost_usd"] or 0.0 for row in rows),
        "mean_accuracy": sum(r["accuracy"] for r in served) / len(served) if served else None,
        "over_cost": sum(
            row["max_cost_usd"] is not None and row["cost_usd"] > row["max_cost_usd"]
            for row in served
        ),
    }
