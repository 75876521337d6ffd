"""Choosing per query against one fixed variant, while the load steps over what a model can serve.

One run: EfficientNet-Lite at its native sizes with published accuracies, open-loop Poisson traffic
from a client in a process of its own, every query due in 200 ms. The rates are multiples of what
lite2-fp32 serves in process, on all cores, with no server at all.

    python benchmarks/serving/burst.py --home HOME [--loads 0.4,1.5,3.3,0.4] [--seconds 20]
        [--rounds 1] [--fixed lite2/int8,lite0/int8-160] [--mixed] [--json FILE]

Contenders, each with the same front door, gateways and batching:

- modelless: the default policies;
- fixed NAME: every query runs on that one variant (`static`), as if the client had named it;
- rule NAME: another selection policy in place of the default one.

With ``--mixed`` 70 % of the clients are content with 70 % accuracy, 25 % want 74 and 5 % want 77;
then ``fixed by class`` gives each class of clients the fastest variant that it may have.

With ``--second-task`` three of ten queries are for ``fashion-mnist``, and with ``--memory-mib``
each gateway has so little room for variants. ``--rules least-laxity`` adds a selection policy:

    python benchmarks/serving/burst.py --home HOME --mixed --second-task --memory-mib 96 --fixed ''
        --rules least-laxity

With ``--learning`` the contenders are modelless with ``learn_online`` false and true, and
``--busy`` processes keep the cores busy beside them, so that every profile is wrong; the cost
model's own coverage is printed, too:

    python benchmarks/serving/burst.py --home HOME --learning --busy 2 --capacity-per-s 30 --loads 1
        --seconds 30 --deadline-ms 80

With ``--record DIR`` modelless's own run is recorded. These commands say what nobody could exceed:

    modelless replay DIR --as-world burst.yaml
    modelless compare burst.yaml --bound --seeds 1 --policies modelless,static-fastest

HOME must hold the ``imagenet`` zoo, and ``fashion-mnist`` for two tasks, profiled (``modelless zoo
add imagenet; modelless profile``); it is copied, not written to. Prints a line a contender and
step: the share in time of all that was sent, the mean accuracy of what was answered in time, and
the seconds after the step until a second passed with 99 % in time and none later fell below.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from modelless.controller.demo.asking import load_photos
from modelless.controller.demo.cluster_process import free_port, running_cluster
from modelless.controller.demo.load import KindSpec, LoadProcess, LoadSpec, StepSpec
from modelless.controller.demo.query_log import Outcome, QueryLog, outcome_of
from modelless.controller.usecases.client import Client
from modelless.variants.registry.registry import open_registry
from modelless.variants.vocabulary import Accuracy, Provenance

TASK, SECOND = "imagenet", "fashion-mnist"
PUBLISHED_BY = "github.com/tensorflow/tpu, efficientnet/lite"
PUBLISHED_PERCENT = {
    ("efficientnet-lite0", "fp32-224"): 75.1,
    ("efficientnet-lite0", "int8-224"): 74.4,
    ("efficientnet-lite1", "fp32-240"): 76.7,
    ("efficientnet-lite1", "int8-240"): 75.9,
    ("efficientnet-lite2", "fp32-260"): 77.6,
    ("efficientnet-lite2", "int8-260"): 77.0,
}
YARDSTICK = ("efficientnet-lite2", "fp32-260")
GOAL = 0.99
MIXED = ((70.0, 0.70), (74.0, 0.25), (77.0, 0.05))
MIXED_SECOND = ((86.0, 0.70), (91.0, 0.25), (92.5, 0.05))
SECOND_SHARE = 0.3
SETTLE_S = 8.0
"""Ray is still busy with itself for a while after it is ready."""


@dataclass(frozen=True, slots=True)
class Step:
    """What became of the queries of one step.

    Attributes:
        accuracy_percent: mean over those in time; 0 without any.
        below_minimum: answers of variants less accurate than their client's minimum.
        back_after_s: seconds from the step's beginning until every second had 99 % in time; None if
            the last one had not.
    """

    load: float
    sent: int
    in_time: int
    accuracy_percent: float
    below_minimum: int
    outcomes: Mapping[str, int]
    back_after_s: float | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--loads", default="0.4,1.5,3.3,0.4")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--deadline-ms", type=float, default=200.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--fixed", default="lite2/int8,lite1/int8,lite0/int8,lite0/int8-160")
    parser.add_argument("--rules", default="", help="selection policies")
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--second-task", action="store_true")
    parser.add_argument("--memory-mib", type=int, help="of each gateway, for variants")
    parser.add_argument("--learning", action="store_true", help="with learn_online and without")
    parser.add_argument("--busy", type=int, default=0, help="processes that never rest")
    parser.add_argument("--without", action="store_true", help="leave modelless itself out")
    parser.add_argument("--capacity-per-s", type=float, help="instead of measuring it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--record", type=Path, help="a folder for modelless's decisions")
    arguments = parser.parse_args()
    loads = [float(load) for load in arguments.loads.split(",")]
    with tempfile.TemporaryDirectory() as folder, neighbours(arguments.busy):
        home, ids = copy_home(arguments.home, Path(folder))
        capacity_per_s = arguments.capacity_per_s or in_process_per_s(home, ids[YARDSTICK])
        print(f"{'/'.join(YARDSTICK)} in process: {capacity_per_s:.1f} images/s", flush=True)
        contenders: dict[str, dict[str, object]] = {} if arguments.without else {"modelless": {}}
        if arguments.record and not arguments.without:
            contenders["modelless"]["record"] = {"folder": str(arguments.record.resolve())}
        if arguments.learning:
            contenders = {f"learning {each}": {"learn_online": each} for each in (False, True)}
        else:
            contenders |= {
                f"fixed {name}": static(named(name, ids))
                for name in arguments.fixed.split(",")
                if name
            }
        for name in filter(None, arguments.rules.split(",")):
            contenders[f"rule {name}"] = {"policies": {"selection": name}}
        if arguments.mixed:
            contenders["fixed by class"] = static("fastest")
        shared: dict[str, object] = {"tasks": [TASK, *[SECOND] * arguments.second_task]}
        if arguments.memory_mib:
            shared["gateways"] = {"memory_bytes": arguments.memory_mib * 2**20}
        results: dict[str, list[list[Step]]] = {}
        for round_number in range(arguments.rounds):
            spec = spec_of(Path(folder), capacity_per_s, loads, arguments, round_number)
            for name, settings in contenders.items():
                query_log, status = run(home, shared | settings, spec, Path(folder))
                steps = count(query_log, spec, loads, arguments)
                results.setdefault(name, []).append(steps)
                show(name, steps, query_log)
                if arguments.learning:
                    print(f"{name:18} predictions {status['predictions']}", flush=True)
    report(results)
    if arguments.json:
        document = {
            name: [[asdict(step) for step in steps] for steps in rounds]
            for name, rounds in results.items()
        }
        arguments.json.write_text(json.dumps({"capacity_per_s": capacity_per_s} | document))


def named(name: str, ids: Mapping[tuple[str, str], str]) -> str:
    """The id of what ``lite2/int8``, at its native size, or ``lite0/int8-160`` is short for."""
    size, _, wanted = name.partition("/")
    for (model, variant), variant_id in ids.items():
        is_native = (model, variant) in PUBLISHED_PERCENT
        if model.endswith(size) and (
            variant == wanted or (is_native and variant.startswith(f"{wanted}-"))
        ):
            return variant_id
    raise SystemExit(f"--fixed: {name!r} is none of {', '.join(map('/'.join, ids))}")


def static(variant: str) -> dict[str, object]:
    """Settings under which every query runs on this variant."""
    return {"policies": {"selection": {"policy": "static", "variant": variant}}}


def copy_home(home: Path, folder: Path) -> tuple[Path, dict[tuple[str, str], str]]:
    """A home of the same variants whose native ones have their published accuracies; their ids."""
    copied = folder / "home"
    copied.mkdir()
    shutil.copy(home / "store.db", copied)
    (copied / "artifacts").symlink_to((home / "artifacts").resolve())
    ids = {}
    with closing(open_registry(copied)) as registry:
        for variant in registry.catalog().resolve(TASK).variants:
            key = variant.model, variant.name
            ids[key] = variant.id
            if key in PUBLISHED_PERCENT:
                accuracy = Accuracy(
                    PUBLISHED_PERCENT[key],
                    variant.accuracy.metric,
                    Provenance.PUBLISHED,
                    "EfficientNet-Lite",
                )
                registry.revise_accuracy(variant.id, accuracy, "for the benchmark")
    return copied, ids


def in_process_per_s(home: Path, variant_id: str, seconds: float = 8.0) -> float:
    """Images a second of one process a core that does nothing but run the model."""
    from front_door import in_process  # beside this file

    with closing(open_registry(home)) as registry:
        variant = registry.variant(variant_id)
        artifact = str(registry.artifacts.fetch(variant.artifact_sha256))
    return float(in_process({"artifact": artifact}, seconds, 2)["per_s"])


def spec_of(
    folder: Path,
    capacity_per_s: float,
    loads: Sequence[float],
    arguments: argparse.Namespace,
    round_number: int,
) -> LoadSpec:
    """What the client sends in this round; every contender gets the same."""
    photos, garments = folder / "photos.npy", folder / "garments.npy"
    np.save(photos, np.stack([photo.pixels for photo in load_photos()]))
    rng = np.random.default_rng(arguments.seed)
    np.save(garments, rng.integers(0, 256, (64, 28, 28), dtype=np.uint8))
    share = SECOND_SHARE if arguments.second_task else 0.0
    kinds = [
        KindSpec(
            name=f"{task}, at least {minimum:g} %",
            task=task,
            limits={"latency_ms": arguments.deadline_ms}
            | ({"min_accuracy": minimum} if minimum else {}),
            weight=weight * task_weight,
            deadline_ms=arguments.deadline_ms,
            images=images,
            labels=[],
            input_name="image",
            output_name="probabilities",
        )
        for task, task_weight, images, mixed in (
            (TASK, 1.0 - share, photos, MIXED),
            (SECOND, share, garments, MIXED_SECOND),
        )
        for minimum, weight in (mixed if arguments.mixed else ((0.0, 1.0),))
        if task_weight > 0.0
    ]
    steps = [StepSpec(seconds=arguments.seconds, per_s=load * capacity_per_s) for load in loads]
    url = f"http://127.0.0.1:{free_port(0)}"
    return LoadSpec(url=url, kinds=kinds, steps=steps, seed=arguments.seed + round_number)


def run(
    home: Path, settings: Mapping[str, object], spec: LoadSpec, folder: Path
) -> tuple[QueryLog, Mapping[str, Any]]:
    """Bring a cluster of these settings up, send everything, take it down.

    Returns every query, and what the cluster said of itself at the end.
    """
    config = folder / "config.yaml"
    config.write_text(json.dumps(settings))
    port = int(spec.url.rpartition(":")[2])
    query_log = QueryLog(spec.kinds)
    with running_cluster(home, port, config=config) as cluster:
        wait_loaded(cluster.url)
        with LoadProcess(spec, folder) as load:
            for rows in load.batches():
                query_log.add(rows)
        with Client(cluster.url) as client:
            status = client.get("/modelless/status")
    return query_log, status


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Processes beside the cluster that keep the cores busy."""
    command = [sys.executable, "-c", "while True: sum(range(10_000))"]
    running = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def wait_loaded(url: str, most_s: float = 60.0) -> None:
    """Until no gateway loads any more, and a little longer."""
    end_s = time.monotonic() + most_s
    with Client(url) as client:
        while time.monotonic() < end_s:
            members = client.get("/modelless/status")["members"]
            if members and not any(member["loading"] for member in members):
                break
            time.sleep(0.5)
    time.sleep(SETTLE_S)


def count(
    query_log: QueryLog, spec: LoadSpec, loads: Sequence[float], arguments: argparse.Namespace
) -> list[Step]:
    minimum = [kind.limits.get("min_accuracy", 0.0) for kind in spec.kinds]
    steps = []
    for place, load in enumerate(loads):
        begin_s, end_s = place * arguments.seconds, (place + 1) * arguments.seconds
        rows = [row for row in query_log.rows if begin_s <= row.due_s < end_s]
        outcomes = [outcome_of(row, arguments.deadline_ms) for row in rows]
        good = [row for row, out in zip(rows, outcomes, strict=True) if out is Outcome.IN_TIME]
        seconds: dict[int, list[bool]] = {}
        for row, out in zip(rows, outcomes, strict=True):
            seconds.setdefault(int(row.due_s - begin_s), []).append(out is Outcome.IN_TIME)
        bad = [at for at, met in seconds.items() if sum(met) < GOAL * len(met)]
        back_after_s = float(max(bad) + 1) if bad else 0.0
        steps.append(
            Step(
                load,
                len(rows),
                len(good),
                statistics.fmean(row.accuracy for row in good) if good else 0.0,
                sum(row.status == 200 and row.accuracy < minimum[row.kind] for row in rows),
                {str(out): outcomes.count(out) for out in Outcome if out in outcomes},
                back_after_s if back_after_s < arguments.seconds else None,
            )
        )
    return steps


def show(name: str, steps: Sequence[Step], query_log: QueryLog) -> None:
    for step in steps:
        back = "never" if step.back_after_s is None else f"{step.back_after_s:.0f} s"
        rest = {what: n for what, n in step.outcomes.items() if what != "in time"}
        print(
            f"{name:18} {step.load:4.1f}: {step.sent:6} sent, "
            f"{step.in_time / max(step.sent, 1):6.1%} in time at {step.accuracy_percent:5.2f} %; "
            f"99 % again after {back}; below minimum {step.below_minimum}; {rest}",
            flush=True,
        )
    tally = query_log.total
    total = max(tally.answered, 1)
    used = [
        f"{variant.partition('/')[2]} {n / total:.0%}"
        for variant, n in tally.by_variant.most_common(8)
    ]
    print(f"{name:18} used {', '.join(used)}", flush=True)


def report(results: Mapping[str, Sequence[Sequence[Step]]]) -> None:
    print(f"\n{'':18} {'in time':>10} {'accuracy':>10} {'violations':>11}   (whole run, by round)")
    for name, rounds in results.items():
        for steps in rounds:
            sent = sum(step.sent for step in steps)
            good = sum(step.in_time for step in steps)
            accuracy = sum(step.in_time * step.accuracy_percent for step in steps) / max(good, 1)
            print(f"{name:18} {good / sent:10.2%} {accuracy:10.2f} {sent - good:11}")


if __name__ == "__main__":
    main()
