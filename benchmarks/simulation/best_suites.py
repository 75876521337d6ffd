"""The suite in which each baseline does best, over random worlds to develop on.

A published selection policy says little about what is loaded where. With the wrong company it loses
for reasons that are not its own. So each baseline's selection meets every scaling and eviction
policy that goes with it, on the same worlds and queries, and the suite with the highest mean value
per query is the one that ``policies/systems.yaml`` names:

    python benchmarks/simulation/best_suites.py [--worlds 20] [--seed 1] [--queries 2000]
        [--most-seconds 900] [--most-workers 60] [--only NAME,...] [--scalings NAME,...]
        [--evictions NAME,...] [--processes 1] [--json FILE]

Baselines whose selection follows the plan of their own scaling policy (``planned-shares``), this
project's own systems and the yardsticks without a rule of their own keep their suites.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import count, islice
from pathlib import Path

from modelless.controller.sim.compare.compare import with_policies
from modelless.controller.sim.compare.jobs import Job, Run, run_all
from modelless.controller.sim.worlds.random_worlds import draw_world
from modelless.controller.sim.worlds.world import WorldFile
from modelless.policies.systems import Suite, System, systems

OWN = "as published"
KEPT = {"modelless", "proteus", "infadapter"}
"""Systems that keep their suites."""

_PUBLISHED = "-published"
"""Ends the name of the published suite of a system whose best suite is another."""

SCALINGS: Mapping[str, Suite] = {
    "fixed": {"scaling": "fixed"},
    "one-variant": {"scaling": "one-variant"},
    "expected-value": {"scaling": "expected-value"},
    "on-demand": {"scaling": "on-demand"},
    "unserved-demand": {"scaling": "unserved-demand"},
    "infaas-autoscaler": {"scaling": "infaas-autoscaler", "placement": "least-utilised"},
    "workload-variant": {"scaling": "workload-variant"},
}
EVICTIONS = ("lru", "miss-cost")
EVICTS = {"expected-value", "on-demand", "unserved-demand"}
"""Scaling policies that want more than there is room for, so that eviction matters."""


def suites_of(
    system: System, scalings: Sequence[str], evictions: Sequence[str]
) -> dict[str, Suite]:
    """Returns the suites to try for a baseline by name, the published one first."""
    selection = {"selection": system.policies["selection"]}
    found: dict[str, Suite] = {
        OWN: {"scaling": "fixed", "eviction": evictions[0], **system.policies}
    }
    for name in scalings:
        scaling = SCALINGS[name]
        for eviction in evictions if name in EVICTS else evictions[:1]:
            label = f"{name}, {eviction}" if name in EVICTS else name
            suite = {**selection, **scaling, "eviction": eviction}
            if suite not in found.values():
                found[label] = suite
    return found


def draw_files(
    worlds: int, seed: int, queries: int, most_s: float, most_workers: int
) -> list[WorldFile]:
    """Returns worlds to develop on, the first ones that are no longer and no larger than said."""
    drawn = (draw_world(seed, number, "develop", queries=queries).world for number in count())
    small = (
        world
        for world in drawn
        if (world.duration_s or 0.0) <= most_s
        and sum(device.count for device in world.devices) <= most_workers
    )
    return [WorldFile(world, Path()) for world in islice(small, worlds)]


def jobs_of(
    baselines: Mapping[str, System],
    files: list[WorldFile],
    scalings: Sequence[str],
    evictions: Sequence[str],
) -> list[Job]:
    return [
        Job(name, f"{label} | {number}", with_policies(file, suite), file.world.seed)
        for number, file in enumerate(files)
        for name, system in baselines.items()
        for label, suite in suites_of(system, scalings, evictions).items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--worlds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the set of worlds")
    parser.add_argument("--queries", type=int, default=2000, help="of a world, roughly")
    parser.add_argument("--most-seconds", type=float, default=900.0, help="that a world lasts")
    parser.add_argument("--most-workers", type=int, default=60, help="that a world has")
    parser.add_argument("--only", default="", help="baselines, separated by commas; default: all")
    parser.add_argument("--scalings", default=",".join(SCALINGS), help="to try")
    parser.add_argument("--evictions", default=",".join(EVICTIONS), help="to try")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write every value there")
    arguments = parser.parse_args()

    only = arguments.only.split(",") if arguments.only else systems()
    baselines = {
        name: systems().get(name + _PUBLISHED, systems()[name])
        for name in only
        if name not in KEPT and not name.endswith(_PUBLISHED)
    }
    files = draw_files(
        arguments.worlds,
        arguments.seed,
        arguments.queries,
        arguments.most_seconds,
        arguments.most_workers,
    )
    values: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))

    def finish(job: Job, run: Run) -> None:
        label, _, number = job.contender.partition(" | ")
        value = run.figures["value_per_query"] if run.figures is not None else 0.0
        values[job.scenario][label][int(number)] = value
        what = run.error or f"{value:.3f}"
        print(f"{job.scenario}, {job.contender}: {what}", file=sys.stderr, flush=True)

    jobs = jobs_of(baselines, files, arguments.scalings.split(","), arguments.evictions.split(","))
    run_all(jobs, arguments.processes, None, finish)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(values, indent=1))
    print(table(values, len(files)))


def table(values: Mapping[str, Mapping[str, Mapping[int, float]]], worlds: int) -> str:
    """Returns a table in Markdown: each baseline, its best suite, and what others reach.

    A suite counts as another only if it reaches a higher mean by more than the standard error of
    the difference, world by world; else the published one stays.
    """
    lines = [
        f"| baseline | best suite, mean value in {worlds} worlds | {OWN} |",
        "| --- | --- | --- |",
    ]
    for name, of_suite in sorted(values.items()):
        means = {label: statistics.fmean(found.values()) for label, found in of_suite.items()}
        best = max(means, key=lambda label: means[label])
        if means[best] - means[OWN] <= _error(of_suite[best], of_suite[OWN]):
            best = OWN
        lines.append(f"| `{name}` | {best}: {means[best]:.3f} | {means[OWN]:.3f} |")
    return "\n".join(lines)


def _error(one: Mapping[int, float], other: Mapping[int, float]) -> float:
    """Returns the standard error of the mean difference, paired by world."""
    differences = [value - other[world] for world, value in one.items()]
    if len(differences) < 2:
        return 0.0
    return statistics.stdev(differences) / len(differences) ** 0.5


if __name__ == "__main__":
    main()
