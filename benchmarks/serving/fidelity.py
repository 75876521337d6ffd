"""How true the simulator is: live runs, recorded, beside the same arrivals simulated from profiles.

Each scenario brings modelless up with ``--record``, sends an open-loop load, takes it down, makes a
world of the recording (arrivals, devices, and the profiles it began with; nothing of what batches
took) and simulates that. The gaps are of goodput (the good queries' accuracies, summed, a second)
and of mean accuracy. Every recording is replayed, too, and must give identical effects.

    python benchmarks/serving/fidelity.py --home HOME [--task imagenet] [--seconds 60]
        [--scenarios steady loads]

``HOME`` has the task registered and profiled on this machine, for cpu-1 and cpu-2. The last three
scenarios have memory for few variants, a worker that may be resized, and a version on trial, in a
copy of ``HOME``: the simulator loads and resizes, but tries no versions. The figures mean something
only on a machine that does nothing else; a scenario takes about 40 seconds more than its load.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import onnx
from open_loop import SIDES_PX, send, spec_of

from modelless.controller.demo.cluster_process import running_cluster
from modelless.controller.replay.as_world import gateways_in, write_world
from modelless.controller.replay.codec import decode
from modelless.controller.replay.replay import replay, tapes_in
from modelless.controller.replay.snapshot import read_snapshot
from modelless.controller.replay.tape import TapeReader
from modelless.controller.sim.run import simulate
from modelless.controller.sim.worlds.world import load_world
from modelless.controller.usecases.client import get_json
from modelless.controller.usecases.registry.versions import begin_canary
from modelless.policies.views import QueryView
from modelless.profiler.devices.host import read_facts
from modelless.profiler.measure.records import Records
from modelless.variants.registry.registry import open_registry

GOAL_GOODPUT_PERCENT = 2.0  # the mean of the scenarios' gaps, whatever their signs
GOAL_ACCURACY_POINTS = 0.5


class Scenario(NamedTuple):
    """A load.

    Attributes:
        steps: shares of the scenario's seconds, and rates relative to ``--per-s``.
        kinds: (weight, limits) of each kind of client.
        settings: of the cluster, besides the task and the recording.
        has_canary: a second version of the quickest variant is tried on half of the queries.
    """

    name: str
    steps: tuple[tuple[float, float], ...]
    kinds: tuple[tuple[float, dict[str, float]], ...]
    settings: Mapping[str, Any] = MappingProxyType({})
    has_canary: bool = False


_MIXED = (
    (2.0, {"latency_ms": 60.0}),
    (2.0, {"latency_ms": 150.0, "min_accuracy": 70.0}),
    (1.0, {"latency_ms": 400.0, "min_accuracy": 75.0}),
)
_INSISTING = (
    (14.0, {"latency_ms": 200.0, "min_accuracy": 70.0}),
    (5.0, {"latency_ms": 200.0, "min_accuracy": 74.0}),
    (1.0, {"latency_ms": 200.0, "min_accuracy": 77.0}),
)
_WAVES = ((0.2, 0.3), (0.2, 1.4)) * 2 + ((0.2, 0.3),)
_SURGES = ((0.2, 0.5), (0.2, 4.0)) * 2 + ((0.2, 0.5),)
_RESIZABLE = {
    "gateways": {"count": 1, "device_class": None},
    "pools": [{"device_class": "cpu-1", "workers": 1, "max_workers": 1, "sizes": ["cpu-2"]}],
}
SCENARIOS = (
    Scenario("light", ((1.0, 0.3),), _MIXED),
    Scenario("steady", ((1.0, 1.0),), _MIXED),
    Scenario("burst", ((0.4, 0.5), (0.2, 3.0), (0.4, 0.5)), _MIXED),
    Scenario("ramp", ((0.25, 0.4), (0.25, 0.8), (0.25, 1.2), (0.25, 1.6)), _MIXED),
    Scenario("tight", ((1.0, 0.8),), ((1.0, {"latency_ms": 40.0}),)),
    Scenario("overload", ((1.0, 3.0),), _MIXED),
    Scenario("lax", ((1.0, 1.5),), ((1.0, {"latency_ms": 500.0}),)),
    Scenario("floors", ((1.0, 0.8),), _INSISTING),
    Scenario("waves", _WAVES, _MIXED),
    Scenario("pauses", ((0.2, 1.2), (0.2, 0.05)) * 2 + ((0.2, 1.2),), _MIXED),
    Scenario("loads", _SURGES, _MIXED, {"gateways": {"memory_bytes": 120 << 20}}),
    Scenario("resizes", _SURGES, _MIXED, _RESIZABLE),
    Scenario("canary", ((1.0, 0.8),), _MIXED, has_canary=True),
)


@dataclass(slots=True)
class Outcomes:
    """Counts of outcomes as clients see them: a good answer is in time and accurate enough.

    Attributes:
        queries, good, answered: numbers of queries.
        value: sum of the good queries' accuracies, 0 to 1 each.
        accuracy: sum of the answered queries' accuracies, per cent.
    """

    queries: int = 0
    good: int = 0
    answered: int = 0
    value: float = 0.0
    accuracy: float = 0.0

    def figures(self, span_s: float) -> dict[str, Any]:
        """Return the figures under the simulator's names; ``span_s``: their time span, seconds."""
        return {
            "queries": self.queries,
            "attainment": self.good / self.queries if self.queries else None,
            "goodput_per_s": self.value / span_s if span_s > 0.0 else None,
            "mean_accuracy": self.accuracy / self.answered if self.answered else None,
        }


def outcomes_in(folder: Path) -> Outcomes:
    """Return the counts of the outcomes of a recording's queries."""
    total = Outcomes()
    for path in gateways_in(folder):
        reader = TapeReader(path)
        variants = read_snapshot(reader.header).variants
        for query, variant_id, answered_s in _course(reader):
            total.queries += 1
            if variant_id is None:
                continue
            percent = variants[variant_id].accuracy.percent
            total.answered += 1
            total.accuracy += percent
            if answered_s <= query.deadline_s and percent >= query.min_accuracy_percent:
                total.good += 1
                total.value += percent / 100.0
    return total


def _course(reader: TapeReader) -> Iterator[tuple[QueryView, str | None, float]]:
    """Yield each query, the variant that answered it or None, and the time of the answer.

    What the cache answered is left out, as in ``arrivals_in``: nothing was decided about it.
    """
    asked: dict[int, QueryView] = {}
    ran: dict[int, str] = {}
    for now_s, event, effects in reader.items():
        if event[0] == "QueryArrived":
            query = decode(QueryView, event[1])
            asked[query.query_id] = query
        for effect in effects:
            if effect[0] == "Execute":
                ran[effect[1]] = effect[3]
            elif effect[0] == "Complete" and effect[1] in asked:
                yield asked.pop(effect[1]), ran[effect[2]], float(now_s)
            elif effect[0] == "Refuse" and effect[1] in asked:
                yield asked.pop(effect[1]), None, math.nan
    for query in asked.values():  # cancelled, or the recording ended first
        yield query, None, math.nan


def settle(url: str, most_s: float = 60.0) -> None:
    """Wait until nothing is loading any more: a simulated run begins so."""
    end_s = time.monotonic() + most_s
    while time.monotonic() < end_s:
        members = get_json(url, "/modelless/status").get("members", [])
        if members and all(each["loaded"] and not each["loading"] for each in members):
            return
        time.sleep(1.0)


def second_version(home: Path, task: str) -> str:
    """Register the task's quickest variant once more, with its own profile; return the new id."""
    with closing(open_registry(home)) as registry:
        records = Records(registry.store)
        rows = [row for row in records.current(read_facts()) if row.variant_id.startswith(task)]
        first = registry.variant(min(rows, key=lambda row: row.p50_s).variant_id)
        model = onnx.load_from_string(registry.artifacts.read(first.artifact_sha256))
        model.doc_string = "saved again"
        added = registry.register_variant(
            task=first.task,
            model=first.model,
            name=first.name,
            precision=first.precision,
            engine=first.engine,
            accuracy=first.accuracy,
            artifact=model.SerializeToString(),
            resolution_px=first.resolution_px,
        )
        for row in rows:
            if row.variant_id == first.id:
                records.add(replace(row, variant_id=added.id))
    return added.id


def run(scenario: Scenario, told: argparse.Namespace, folder: Path) -> dict[str, Any]:
    folder.mkdir(parents=True)
    home = told.home
    if scenario.has_canary:
        home = shutil.copytree(home, folder / "home", ignore=shutil.ignore_patterns("run"))
        version = second_version(home, told.task)
    recording = folder / "recording"
    config = folder / "config.yaml"
    settings = {"tasks": [told.task], "record": {"folder": str(recording)}, **scenario.settings}
    config.write_text(json.dumps(settings))
    with running_cluster(home, told.port, config=config) as cluster:
        settle(cluster.url)
        if scenario.has_canary:
            begin_canary(version, share=0.5, home=home)
        steps = [(share * told.seconds, rate * told.per_s) for share, rate in scenario.steps]
        spec = spec_of(cluster.url, folder, told.task, scenario.kinds, steps, seed=1)
        send(spec, folder)
    world = folder / "world.yaml"
    write_world(recording, world)
    file = load_world(world)
    simulated = simulate(file).figures()
    live = outcomes_in(recording).figures(simulated["span_s"])
    identical = all(replay(tape).difference is None for tape in tapes_in(recording))
    return {"scenario": scenario.name, "identical": identical, **gaps(live, simulated)}


def gaps(live: Mapping[str, Any], simulated: Mapping[str, Any]) -> dict[str, Any]:
    """Simulated less live: goodput in per cent of live, accuracy in points."""
    goodput = 100.0 * (simulated["goodput_per_s"] / live["goodput_per_s"] - 1.0)
    return {
        "queries": live["queries"],
        **{
            f"{name}_{figure}": figures[figure]
            for figure in ("goodput_per_s", "attainment", "mean_accuracy")
            for name, figures in (("live", live), ("simulated", simulated))
        },
        "goodput_gap_percent": goodput,
        "accuracy_gap_points": simulated["mean_accuracy"] - live["mean_accuracy"],
    }


def print_row(row: Mapping[str, Any]) -> None:
    print(
        f"{row['scenario']:<9} {row['queries']:>6} queries  "
        f"goodput/s {row['live_goodput_per_s']:.2f} live, "
        f"{row['simulated_goodput_per_s']:.2f} simulated "
        f"({row['goodput_gap_percent']:+.1f} %)  "
        f"accuracy {row['live_mean_accuracy']:.2f}, {row['simulated_mean_accuracy']:.2f} "
        f"({row['accuracy_gap_points']:+.2f})  "
        f"replay {'identical' if row['identical'] else 'DIFFERS'}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--home", type=Path, required=True, help="with a profiled task")
    parser.add_argument("--task", default="imagenet", choices=sorted(SIDES_PX))
    names = [scenario.name for scenario in SCENARIOS]
    parser.add_argument("--scenarios", nargs="*", default=names, choices=names, metavar="NAME")
    parser.add_argument("--seconds", type=float, default=60.0, help="of load in each")
    parser.add_argument("--per-s", type=float, default=40.0, help="queries a second at rate 1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--keep", type=Path, help="a new folder for recordings and worlds")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    told = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="modelless-fidelity-") as temporary:
        folder = told.keep or Path(temporary)
        rows = []
        for scenario in SCENARIOS:
            if scenario.name in told.scenarios:
                rows.append(run(scenario, told, folder / scenario.name))
                if not told.json:
                    print_row(rows[-1])
    gap = {
        figure: {"mean": float(np.mean(sizes)), "worst": max(sizes)}
        for figure in ("goodput_gap_percent", "accuracy_gap_points")
        for sizes in [[abs(row[figure]) for row in rows]]
    }
    if told.json:
        print(json.dumps({"rows": rows, "gap": gap}, indent=2))
        return
    goodput, accuracy = gap["goodput_gap_percent"], gap["accuracy_gap_points"]
    print(
        f"gap, mean (worst): goodput {goodput['mean']:.1f} % ({goodput['worst']:.1f}), goal "
        f"{GOAL_GOODPUT_PERCENT:g}; accuracy {accuracy['mean']:.2f} points "
        f"({accuracy['worst']:.2f}), goal {GOAL_ACCURACY_POINTS:g}"
    )


if __name__ == "__main__":
    main()
