"""Serving two tasks of which one was profiled with a tenth of the time, beside all profiled.

    python benchmarks/serving/partial_profile.py --home HOME [--part imagenet]
        [--other fashion-mnist] [--share 0.1] [--rounds 3] [--seconds 20] [--load 1.0] [--json FILE]

HOME holds both tasks, profiled; it is copied, not written to. In the copy ``partial`` only the
points of the first task are left that ``profile --budget`` would have measured in a tenth of the
time; ``serve_unmeasured`` predicts the rest. Both copies serve the same open-loop arrivals of
clients with mixed limits, in turn. Prints a line a run, the share in time and the mean accuracy of
what was in time, and the mean difference with its standard error. Five minutes at the defaults.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from burst import wait_loaded
from open_loop import is_in_time, send, spec_of
from sqlalchemy import delete

from modelless.controller.demo.cluster_process import free_port, running_cluster
from modelless.controller.demo.load import LoadSpec
from modelless.profiler.measure.measurement import Measurement
from modelless.variants.registry.registry import open_registry
from modelless.variants.store import MeasurementRow

sys.path.insert(0, str(Path(__file__).parents[1] / "profiling"))
from few_points import choose, cost_s, of_registry

# Of the clients: weight, deadline as a multiple of the median variant's latency, and the share of
# the task's variants that are not accurate enough for them.
CLIENTS = ((0.5, 3.0, 0.0), (0.3, 6.0, 0.5), (0.2, 15.0, 0.8))
HOP_MS = 10.0  # of each query besides: answers pass a gateway and a proxy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--part", default="imagenet", help="the task that is profiled in part")
    parser.add_argument("--other", default="fashion-mnist")
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--load", type=float, default=1.0, help="of what one device serves singly")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    tasks = (given.part, given.other)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        homes = {each: copy(given.home, folder / each) for each in ("full", "partial")}
        with closing(open_registry(homes["full"])) as registry:
            grid, _ = of_registry(registry)
        leave_part(homes["partial"], given.part, given.share)
        config = folder / "config.yaml"
        config.write_text(json.dumps({"tasks": list(tasks), "serve_unmeasured": True}))
        found: dict[str, list[tuple[float, float]]] = {each: [] for each in homes}
        for number in range(given.rounds):
            order = list(homes) if number % 2 == 0 else list(homes)[::-1]
            for which in order:
                port = free_port(0)
                url = f"http://127.0.0.1:{port}"
                spec = load_of(url, folder, tasks, grid, given, number)
                with running_cluster(homes[which], port, config=config):
                    wait_loaded(url)
                    rows = send(spec, folder)
                good = [row for row in rows if is_in_time(row, spec.kinds[row.kind].deadline_ms)]
                accuracy = statistics.fmean(row.accuracy for row in good) if good else 0.0
                found[which].append((100.0 * len(good) / len(rows), accuracy))
                print(
                    f"{which:8} {len(rows)} sent, {found[which][-1][0]:.2f} % in time "
                    f"at {accuracy:.2f} %",
                    flush=True,
                )
    for place, figure in enumerate(("in time", "accuracy")):
        apart = [
            part[place] - full[place]
            for full, part in zip(found["full"], found["partial"], strict=True)
        ]
        spread = statistics.stdev(apart) / len(apart) ** 0.5 if len(apart) > 1 else float("nan")
        print(f"partial - full, {figure}: {statistics.fmean(apart):+.2f} points +- {spread:.2f}")
    if given.json:
        given.json.write_text(json.dumps(found))


def copy(home: Path, to: Path) -> Path:
    to.mkdir()
    for file in home.glob("store.db*"):
        shutil.copy(file, to)
    (to / "artifacts").symlink_to((home / "artifacts").resolve())
    return to


def leave_part(home: Path, task: str, share: float) -> None:
    """Delete the measurements of the task but those that a part of the time pays for."""
    with closing(open_registry(home)) as registry:
        every, subjects = of_registry(registry)
        grid = [row for row in every if row.variant_id.startswith(f"{task}/")]
        mine = {row.placement: subjects[row.placement] for row in grid}
        kept = {(row.placement, row.batch) for row in choose(grid, mine, share * cost_s(grid))}
        with registry.store.transaction() as session:
            for row in grid:
                if (row.placement, row.batch) not in kept:
                    session.execute(
                        delete(MeasurementRow).where(
                            MeasurementRow.variant_id == row.variant_id,
                            MeasurementRow.device_class == row.device_class,
                            MeasurementRow.batch == row.batch,
                        )
                    )
    print(f"{task}: {len(kept)} of {len(grid)} points are left")


def load_of(
    url: str,
    folder: Path,
    tasks: Sequence[str],
    grid: Sequence[Measurement],
    given: argparse.Namespace,
    seed: int,
) -> LoadSpec:
    """The same arrivals for both: half of the device time for each task."""
    specs, per_s = [], 0.0
    with closing(open_registry(given.home)) as registry:
        catalog = registry.catalog()
    for task in tasks:
        accuracies = sorted(one.accuracy.percent for one in catalog.resolve(task).variants)
        one_ms = 1e3 * statistics.median(
            row.p50_s for row in grid if row.batch == 1 and row.variant_id.startswith(f"{task}/")
        )
        own_per_s = given.load / len(tasks) * 1e3 / (HOP_MS + one_ms)
        kinds = [
            (
                weight * own_per_s,
                {"latency_ms": HOP_MS + round(times * one_ms, 1)}
                | ({"min_accuracy": accuracies[int(share * len(accuracies))]} if share else {}),
            )
            for weight, times, share in CLIENTS
        ]
        own = folder / f"{task}-load"
        own.mkdir(exist_ok=True)
        per_s += own_per_s
        specs.append(spec_of(url, own, task, kinds, [(given.seconds, per_s)], seed))
    kinds = [kind for each in specs for kind in each.kinds]
    return specs[-1].model_copy(update={"kinds": kinds})


if __name__ == "__main__":
    main()
