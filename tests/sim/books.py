"""A checker of the books: it reads the log and the world, and knows nothing of the simulator.

Of the simulator's code only the reader of worlds, the queries that they say will come, and the list
of their profiles are used.
"""

from __future__ import annotations

import csv
import importlib
import math
from collections import defaultdict
from collections.abc import Mapping
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any

from modelless.controller.sim.worlds.profiles import build_fleet
from modelless.controller.sim.worlds.query_streams import queries
from modelless.controller.sim.worlds.world import WorldFile
from modelless.profiler.cost_model.serving_model import ServingCostModel
from modelless.variants.estimates import Load
from modelless.variants.vocabulary import Placement

from .totals import Row, check_totals, cold_loads, presences

TEXT = {"task", "variant", "device", "worker", "outcome", "reason", "tenant"}
TEXT |= {"action", "for_variant"}
WIDEST = 4.0  # standard deviations, as docs/simulator.md promises
Z90, Z99 = 1.2815515655446004, 2.3263478740408408
TINY = 1e-9


def read(path: Path) -> list[Row]:
    """The rows of a log, Parquet or CSV; blanks are None."""
    if path.suffix == ".parquet":
        table = importlib.import_module("pyarrow.parquet").read_table(path)
        return [
            {name: value if value != "" else None for name, value in row.items()}
            for row in table.to_pylist()
        ]
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
        self.file = file
        self.world = file.world
        self.rows = read(log)
        self.control = read(log.with_suffix(f".control{log.suffix}"))
        self.fleet = build_fleet(file)
        self.facts = {facts.variant_id: facts for facts in self.fleet.facts}
        self.devices = {device.name: device for device in self.world.devices}
        self.ran: list[Row] = []
        self.batches: dict[int, list[Row]] = {}
        self.group()

    def group(self) -> None:
        """Put the rows of what ran together by batch."""
        self.ran = [row for row in self.rows if row["batch_id"] is not None]
        self.batches = defaultdict(list)
        for row in self.ran:
            self.batches[row["batch_id"]].append(row)

    def check(self, figures: Mapping[str, Any]) -> None:
        """Everything."""
        self.what_was_asked_is_there(figures["seed"])
        self.every_query_comes_out_once()
        self.time_runs_forward()
        self.batches_are_whole()
        self.devices_do_one_thing_at_a_time()
        self.workers_are_there_and_no_more_than_may_be(figures["end_s"])
        self.memory_suffices_and_holds_what_runs()
        self.loads_take_what_the_profiles_say()
        self.latencies_are_those_of_the_profiles()
        self.totals_are(figures)

    def one_way_s(self, device: str) -> float:
        settings = self.devices[device]
        return self.world.delay_s(settings.site) + self.world.network.worker_hop_ms / 1e3

    def what_was_asked_is_there(self, seed: int) -> None:
        """No query is lost, none is made up, and each wants what its client wanted."""
        asked = list(queries(self.file, seed))
        assert len(asked) == len(self.rows)
        for row, (arrival_s, task, client, _size) in zip(
            sorted(self.rows, key=lambda row: row["query_id"]), asked, strict=True
        ):
            slo = client.slo
            assert (row["arrival_s"], row["task"], row["items"]) == (arrival_s, task, slo.items)
            assert (row["tenant"] or "") == (slo.tenant or "")
            assert row["min_accuracy"] == slo.min_accuracy
            assert row["max_cost_usd"] == slo.max_cost_usd
            assert row["deadline_s"] == arrival_s + client.latency_s

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
            usd_per_s = self.devices[first["device"]].price_usd_per_hour / 3600.0
            each_usd = usd_per_s * (first["finish_s"] - first["start_s"]) / first["batch_size"]
            for row in members:
                assert math.isclose(row["cost_usd"], each_usd * row["items"], rel_tol=1e-9)

    def devices_do_one_thing_at_a_time(self) -> None:
        by_worker: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for members in self.batches.values():
            row = members[0]
            by_worker[row["worker"]].append((row["start_s"], row["finish_s"]))
        for spans in by_worker.values():
            spans.sort()
            for (_, finish_s), (start_s, _) in pairwise(spans):
                assert start_s >= finish_s - TINY

    def workers_are_there_and_no_more_than_may_be(self, end_s: float) -> None:
        stays: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
        for worker, device, since_s, until_s in presences(self.control, end_s):
            stays[worker, device].append((since_s, until_s))
        for members in self.batches.values():
            row = members[0]
            assert any(
                since_s <= row["dispatch_s"] <= until_s
                for since_s, until_s in stays[row["worker"], row["device"]]
            ), row
        for row in self.control:
            if row["action"] == "scale":
                pool = self.devices[row["device"]]
                assert row["count"] <= (
                    pool.count if pool.max_workers is None else pool.max_workers
                )
            elif row["action"] in ("resize", "resized"):
                pool = self.devices[_pool_of(row["worker"])]
                assert row["device"] in (pool.name, *pool.sizes)

    def memory_suffices_and_holds_what_runs(self) -> None:
        held: dict[str, dict[str, float]] = {}
        capacity: dict[str, float] = {}
        most: dict[str, float] = {}  # of workers that are resized: what they held meanwhile
        began_s: dict[str, float] = {}
        # From when on there, until when given work, until when there.
        ready: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
        for row in self.control:
            worker, variant, action = row["worker"], row["variant"], row["action"]
            if action == "worker-up":
                assert worker not in held, "up twice"
                capacity[worker], held[worker] = row["memory_bytes"], {}
            elif action in ("worker-down", "worker-gone"):
                most.pop(worker, None)
                for name in held.pop(worker):
                    for span in ready[worker, name]:
                        span[1:] = [min(end_s, row["at_s"]) for end_s in span[1:]]
            elif action == "load":
                assert variant not in held[worker], "one copy a worker"
                assert row["memory_bytes"] == self._size(variant, row["device"])
                held[worker][variant] = row["memory_bytes"]
                assert sum(held[worker].values()) <= capacity[worker]
                if worker in most:
                    most[worker] = max(most[worker], sum(held[worker].values()))
            elif action == "loaded":
                ready[worker, variant].append([row["at_s"], math.inf, math.inf])
            elif action == "load-failed" and row["reason"] != "no-room":
                del held[worker][variant]
            elif action == "unload":
                del held[worker][variant]
                assert ready[worker, variant], "unloaded before it was loaded"
                ready[worker, variant][-1][1:] = [row["at_s"]] * 2
            elif action == "resize":
                most[worker], began_s[worker] = sum(held[worker].values()), row["at_s"]
            elif action == "resized":
                sizes = {name: self._size(name, row["device"]) for name in held[worker]}
                free = capacity[worker] - most.pop(worker) - sum(sizes.values())
                assert free >= 0, "no room for second copies"
                held[worker] = sizes
                for (holder, name), spans in ready.items():  # what is left behind ends what it runs
                    if holder == worker and spans[-1][1] == row["at_s"]:
                        spans[-1][2] = math.inf
                        fits = self._size(name, row["device"]) <= free
                        assert not (fits and self._ran(holder, name, began_s[holder], row["at_s"]))
        for members in self.batches.values():
            row = members[0]
            spans = ready[row["worker"], row["variant"]]
            assert any(
                begin_s <= row["dispatch_s"] <= last_s and row["finish_s"] <= end_s
                for begin_s, last_s, end_s in spans
            ), row

    def _ran(self, worker: str, variant: str, since_s: float, until_s: float) -> bool:
        return any(
            (row["worker"], row["variant"]) == (worker, variant)
            and since_s < row["dispatch_s"] < until_s
            for row in self.ran
        )

    def _size(self, variant_id: str, device: str) -> int:
        return math.ceil(self.facts[variant_id].memory_bytes[device])

    def loads_take_what_the_profiles_say(self) -> None:
        for row, took_s in cold_loads(self.world, self.control):
            slowed = self._slowest(row)
            load_s = self.facts[row["variant"]].load_s[row["device"]]
            assert load_s * min(slowed, 1.0) - TINY <= took_s <= load_s * max(slowed, 1.0) + TINY

    def latencies_are_those_of_the_profiles(self) -> None:
        model = ServingCostModel(self.fleet.measurements)
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
            neighbours = self.devices[_pool_of(row["worker"])].per_host - 1
            disturbed = 1.0 + self.devices[row["device"]].contention * neighbours
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
        check_totals(self.world, self.rows, self.control, figures)


def _pool_of(worker: str) -> str:
    return worker.rpartition("/")[0]
