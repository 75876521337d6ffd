"""Makes the tables of what the cost model predicts, from tables of profiles.

    nice python benchmarks/profiling/prediction_tables.py TABLE.csv... [--seeds 4]
        [--device NAME ...] [--parts errors,families,serving,regret]

- ``errors``: each device from the others of its source and some of its own points, beside every
  baseline; the devices where the best baseline is above 20 %; those with a sister, a device whose
  latencies are the same but for a factor; and how many rows the bands of 90 % hold.
- ``families``: a quarter of the families of a device is left out, in turn; nothing is measured.
- ``serving``: a home in which a device's rows are variants, ten of them measured on this machine:
  what ``select`` predicts of the others, with the other devices imported (``tables``), with a
  snapshot that is made of them (``snapshot``), and with neither (``prior``).
- ``regret``: what decisions lose after 10, 30 and 60 s of ``profile --budget``; see ``few_points``.

Figures are means over draws, with the lowest and the highest. They do not depend on the load of the
machine, and need half an hour of processor time.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

import few_points
import numpy as np
from make_snapshot import fit_groups

from modelless.controller.usecases.measuring.cost_model import ENGINE_OF_KIND, import_profiles
from modelless.controller.usecases.selecting import select
from modelless.profiler.cost_model.evaluation.hold_out import (
    MODELLESS,
    Holdout,
    HoldoutCase,
    MethodScore,
    evaluate,
    plan_cases,
)
from modelless.profiler.cost_model.unmeasured.features import item_latency_log
from modelless.profiler.cost_model.unmeasured.prior import shipped_prior
from modelless.profiler.cost_model.unmeasured.proxies import proxies_of
from modelless.profiler.cost_model.unmeasured.snapshot import rows_of_groups
from modelless.profiler.devices.device import DeviceFacts, GpuFacts
from modelless.profiler.measure.records import Records
from modelless.profiler.measure.table import TableRow, read_table, write_table
from modelless.variants.registry.registry import open_registry
from modelless.variants.store import ArtifactRow, ModelRow, TaskRow, VariantRow
from modelless.variants.vocabulary import Placement

PRECISIONS = {
    "": "fp32",
    "float": "fp32",
    "fp32": "fp32",
    "amp": "fp16",
    "fp16": "fp16",
    "w8a8": "int8",
}
TASK = "held-out"
WHERE = "modelless.controller.usecases.selecting.read_facts"
SNAPSHOT = "modelless.profiler.cost_model.unmeasured.machine_predictor.shipped_snapshot"
MANY_BYTES = 1 << 40
SHOTS = (0, 5, 10, 20, 50)
HARD_PERCENT = 20.0
SISTER_PERCENT = 7.0
FOLDS = 4
MOST_VARIANTS = {"serving": 120, "regret": 60}
LEAST_MODELS = 100  # of a device whose families are left out, or whose decisions are judged

Scores = Mapping[tuple[str, int], Mapping[str, MethodScore]]
"""By device and number of shots, of each method."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="+", type=Path, metavar="TABLE.csv")
    parser.add_argument("--parts", default="errors,families,serving,regret")
    parser.add_argument("--device", action="append", help="these only; default: all")
    parser.add_argument("--seeds", type=int, default=4, help="draws")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    by_device: dict[str, list[TableRow]] = {}
    for path in given.tables:
        for row in read_table(path):
            by_device.setdefault(row.device, []).append(row)
    devices = {name: by_device[name] for name in given.device or by_device}
    print(f"{datetime.now(UTC):%Y-%m-%d}, {given.seeds} draws", flush=True)
    parts = {"errors": errors, "families": families, "serving": serving, "regret": regret}
    for part in given.parts.split(","):
        parts[part](devices, [row for rows in by_device.values() for row in rows], given.seeds)


def show(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    lines = [f"| {' | '.join(each)} |" for each in (head, ["---"] * len(head), *rows)]
    print(f"\n## {title}\n", *lines, sep="\n", flush=True)


def span(figures: Sequence[float]) -> str:
    return f"{np.mean(figures):.1f} ({min(figures):.1f} to {max(figures):.1f})"


def of_score(score: MethodScore) -> str:
    low, high = score.median_error_low_percent, score.median_error_high_percent
    return f"{score.median_error_percent:.1f} ({low:.1f} to {high:.1f})"


def errors(
    devices: Mapping[str, Sequence[TableRow]], every: Sequence[TableRow], seeds: int
) -> None:
    scores: dict[tuple[str, int], dict[str, MethodScore]] = {}
    sisters = []
    for case in cases_of(devices, every):
        name = case.wanted[0].device
        for one in evaluate(case, shipped_prior(), SHOTS, seeds):
            scores.setdefault((name, one.shots), {})[one.method] = one
        apart = item_latency_log(case.wanted) - proxies_of(case.training, case.wanted)
        apart -= np.nanmedian(apart, axis=1, keepdims=True)
        nearest = np.nanmedian(np.abs(np.expm1(apart)), axis=1).min(initial=np.inf)
        sisters += [name] if 100.0 * nearest <= SISTER_PERCENT else []
    methods = list(next(iter(scores.values())))
    for shots in SHOTS:
        show(
            f"Median error after {shots} shots, %",
            ["device", *methods],
            [
                [name, *(of_score(found[method]) for method in methods)]
                for (name, count), found in scores.items()
                if count == shots
            ],
        )
    show("Against the best baseline", *against_best(scores))
    hard = {key: of for key, of in scores.items() if best_of(of) > HARD_PERCENT}
    show(f"Where the best baseline is above {HARD_PERCENT:g} %", *against_best(hard))
    alike = {key: of for key, of in scores.items() if key[0] in sisters}
    show(f"With a sister device: {', '.join(sisters)}", *against_best(alike))
    bands = {key: of[MODELLESS] for key, of in scores.items()}
    show(
        "Rows in the band of 90 %, %, and the factor that it spans",
        ["device", *(f"{shots} shots" for shots in SHOTS)],
        [
            [name, *(band_of(bands[name, shots]) for shots in SHOTS if (name, shots) in bands)]
            for name in devices
        ],
    )


def cases_of(
    devices: Mapping[str, Sequence[TableRow]], every: Sequence[TableRow]
) -> Iterator[HoldoutCase]:
    for rows in devices.values():
        source = [row for row in every if row.source == rows[0].source]
        for case in plan_cases(source, None, []):
            if case.wanted[0].device == rows[0].device:
                yield case


def best_of(found: Mapping[str, MethodScore]) -> float:
    return min(one.median_error_percent for name, one in found.items() if name != MODELLESS)


def against_best(scores: Scores) -> tuple[list[str], list[list[str]]]:
    """By number of shots: geometric means, and in how many cells ours is how good."""
    rows = []
    for shots in SHOTS:
        cells = [
            (of[MODELLESS].median_error_percent, best_of(of))
            for (_, count), of in scores.items()
            if count == shots
        ]
        if cells:
            ours, best = np.array(cells).T
            means = (f"{np.exp(np.log(each).mean()):.1f}" for each in (ours, best))
            tests = (ours > best + 1.0, ours <= best / 2.0, ours <= 8.0)
            rows.append([str(shots), str(len(cells)), *means, *(str(each.sum()) for each in tests)])
    head = ["shots", "devices", "ours, %", "best baseline, %", "ours worse by over 1 point"]
    return [*head, "ours at most half", "ours at most 8 %"], rows


def band_of(score: MethodScore) -> str:
    low, high = score.band_coverage_low_percent, score.band_coverage_high_percent
    return f"{score.band_coverage_percent:.0f} ({low:.0f} to {high:.0f}), {score.band_width:.1f}"


def families(devices: Mapping[str, Sequence[TableRow]], every: Sequence[TableRow], _: int) -> None:
    shown = []
    for name, rows in devices.items():
        named = sorted({row.family for row in rows if row.family})
        if len({row.item for row in rows}) < LEAST_MODELS or len(named) < 2 * FOLDS:
            continue
        source = [row for row in every if row.source == rows[0].source]
        order = np.random.default_rng(0).permutation(named).tolist()
        found: dict[str, list[float]] = {}
        for fold in range(FOLDS):
            holdouts = [Holdout("family", family) for family in order[fold::FOLDS]]
            for case in plan_cases(source, None, holdouts):
                if case.wanted[0].device == name:
                    for one in evaluate(case, shipped_prior(), [0], 1):
                        found.setdefault(one.method, []).append(one.median_error_percent)
        shown.append([name, *(span(found[method]) for method in found)])
    show("Families never seen, device known, no shots: median error, %", ["device", *found], shown)


def serving(
    devices: Mapping[str, Sequence[TableRow]], every: Sequence[TableRow], seeds: int
) -> None:
    shown = []
    for name, rows in devices.items():
        mine = pick(rows, MOST_VARIANTS["serving"])
        if not mine:
            continue
        others = [row for row in every if row.device != name]
        made = rows_of_groups(fit_groups(others))
        line = [f"{name} ({len(mine)})"]
        for known, snapshot in (([], []), ([], made), (others, [])):
            with mock.patch(SNAPSHOT, return_value=snapshot):
                runs = [judge(mine, known, 10, seed) for seed in range(seeds)]
            line.append(span([error for error, _ in runs]))
        shown.append([*line, f"{np.mean([below for _, below in runs]):.0f}"])
    head = ["device (variants)", "prior", "snapshot", "tables", "below the p99 by tables, %"]
    show("Through ``select``, ten points measured: median error, %", head, shown)


def regret(
    devices: Mapping[str, Sequence[TableRow]], every: Sequence[TableRow], seeds: int
) -> None:
    del every
    shown = []
    for name, rows in devices.items():
        if len({row.item for row in rows if row.accuracy}) < LEAST_MODELS:
            continue
        grids = [few_points.of_rows(rows, MOST_VARIANTS["regret"], n) for n in range(seeds)]
        line = [name, span([few_points.cost_s(grid) for grid, _ in grids])]
        for budget_s in few_points.BUDGETS_S:
            by_decisions, by_errors = (
                [few_points.replay(*each, budget_s, target)["regret_points"] for each in grids]
                for target in (None, few_points.ALL_ALIKE)
            )
            line.append(f"{span(by_decisions)}; {np.mean(by_errors):.1f}")
        shown.append(line)
    head = ["device", "a full profile takes, s", *(f"{s:g} s" for s in few_points.BUDGETS_S)]
    title = "Accuracy that decisions lose by profile budget, points; if all errors weigh alike"
    show(title, head, shown)


def pick(rows: Sequence[TableRow], count: int) -> list[TableRow]:
    """Return a row of each model at the usual batch and engine, with the fewest clients."""
    rows = [row for row in rows if row.precision.lower() in PRECISIONS]
    rows = [row for row in rows if row.device_kind in ENGINE_OF_KIND]
    if not rows:
        return []
    usual, _ = Counter((row.batch, row.engine) for row in rows).most_common(1)[0]
    rows = sorted(rows, key=lambda row: row.concurrency or 1, reverse=True)
    kept = {(row.model, row.resolution_px): row for row in rows if (row.batch, row.engine) == usual}
    some = list(kept.values())
    return [some[at] for at in np.random.default_rng(0).permutation(len(some))[:count]]


def judge(
    mine: Sequence[TableRow], known: Sequence[TableRow], shots: int, seed: int
) -> tuple[float, float]:
    """Return what ``select`` predicts of variants that were not measured.

    Returns:
        The median error, and the share that is below the predicted p99, per cent.
    """
    facts = facts_of(mine[0])
    kind, batch = mine[0].device_kind, mine[0].batch
    names = [variant_name(row) for row in mine]
    measured = np.random.default_rng(seed).permutation(len(mine))[:shots].tolist()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        with closing(open_registry(home)) as registry:
            with registry.store.transaction() as session:
                session.add(TaskRow(**TASK_FIELDS))
                session.add(ArtifactRow(sha256="0" * 64, bytes=1 << 20))
                session.flush()
                for model in {name.split("/")[1] for name in names}:
                    family = next(
                        row.family for row, n in zip(mine, names, strict=True) if f"/{model}/" in n
                    )
                    session.add(
                        ModelRow(task=TASK, name=model, family=family, source="x", licence="x")
                    )
                session.flush()
                session.add_all(map(variant_row, mine, names))
            records = Records(registry.store)
            for at in measured:
                placement = Placement(f"{names[at]}@1", f"{kind}-1")
                engine = facts.engine_name(ENGINE_OF_KIND[kind].value)
                mark = facts.fingerprint_of(kind)
                records.add(few_points.measurement(placement, mine[at], 30, engine, mark))
        if known:
            write_table(home / "known.csv", known)
            import_profiles([home / "known.csv"], home=home)
        config = home / "settings.yaml"
        config.write_text(
            "serve_unmeasured: true\nserve_dominated: true\nlimits: {max_batch: 1024}\n"
        )
        with mock.patch(WHERE, return_value=facts):
            selection = select(
                TASK,
                latency_ms=3.6e6,
                batch=batch,
                device_classes=[f"{kind}-1"],
                config=config,
                home=home,
            )
    predicted = {entry["variant"]: entry for entry in selection.candidates}
    rest = [at for at in range(len(mine)) if at not in measured]
    rows = [predicted[f"{names[at]}@1"] for at in rest]
    truth_ms = np.array([mine[at].latency_ms for at in rest])
    error = np.abs(np.array([row["p50_ms"] for row in rows]) / truth_ms - 1.0)
    below = truth_ms <= np.array([row["p99_ms"] for row in rows])
    return 100.0 * float(np.median(error)), 100.0 * float(below.mean())


TASK_FIELDS = {
    "name": TASK,
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 3]}],
    "accuracy_metric": "top-1",
    "description": "",
    "labels": [],
}


def facts_of(row: TableRow) -> DeviceFacts:
    gpus = (GpuFacts(row.device, MANY_BYTES, "1"),) if row.device_kind == "gpu" else ()
    engines = {ENGINE_OF_KIND[row.device_kind].value: "1.0"}
    return DeviceFacts(row.device, "x86_64", 1, None, (), {}, MANY_BYTES, gpus, engines)


def variant_name(row: TableRow) -> str:
    """``task/model/variant``."""
    return f"{TASK}/{few_points.model_name(row)}/v{row.resolution_px or 0}"


def variant_row(row: TableRow, name: str) -> VariantRow:
    _, model, variant = name.split("/")
    return VariantRow(
        id=f"{name}@1",
        task=TASK,
        model=model,
        name=variant,
        version=1,
        precision=PRECISIONS[row.precision.lower()],
        resolution_px=row.resolution_px,
        engine=ENGINE_OF_KIND[row.device_kind].value,
        artifact_sha256="0" * 64,
        accuracy_percent=50.0,
        accuracy_metric="top-1",
        accuracy_provenance="published",
        accuracy_source="a table",
        parameter_count=None if row.params_m is None else round(row.params_m * 1e6),
        multiply_adds=None if row.gmacs is None else round(row.gmacs * 1e9),
    )


if __name__ == "__main__":
    main()
