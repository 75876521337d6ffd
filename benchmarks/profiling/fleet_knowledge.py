"""Measures how well ``select`` predicts a new machine with and without other devices' profiles.

For each device of some tables of profiles, it makes a home in which the device's rows are variants,
imports the tables without the device, stores a few of its rows as this machine's measurements, and
compares what ``select`` predicts of the other variants with the rows (``fleet``). ``prior`` is the
same without the tables, and ``snapshot`` with a snapshot that is made of them and ships instead:

    python benchmarks/profiling/fleet_knowledge.py --device rtx4090 --device t4 TABLE.csv...
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

import numpy as np

from modelless.controller.usecases.measuring.cost_model import ENGINE_OF_KIND
from modelless.controller.usecases.selecting import select
from modelless.profiler.cost_model.learned.snapshot import rows_of_groups
from modelless.profiler.cost_model.learned.training.make_snapshot import fit_groups
from modelless.profiler.devices.device import DeviceFacts, GpuFacts
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.records import Records
from modelless.profiler.measure.table import TableRow, read_table, write_table
from modelless.variants.registry.registry import open_registry
from modelless.variants.store import ArtifactRow, ModelRow, TaskRow, VariantRow

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
SNAPSHOT = "modelless.profiler.cost_model.learned.fleet_model.shipped_snapshot"
MANY_BYTES = 1 << 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="+", type=Path, metavar="TABLE.csv")
    parser.add_argument("--device", action="append", required=True)
    parser.add_argument("--shots", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--variants", type=int, default=120, help="of the device, at most")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    every = [row for path in given.tables for row in read_table(path)]
    for device in given.device:
        mine = pick([row for row in every if row.device == device], given.variants)
        others = [row for row in every if row.device != device]
        found = {"device": device, "kind": mine[0].device_kind, "variants": len(mine)}
        made = rows_of_groups(fit_groups(others))
        for name, known, snapshot in (
            ("prior", [], []),
            ("snapshot", [], made),
            ("fleet", others, []),
        ):
            with mock.patch(SNAPSHOT, return_value=snapshot):
                runs = [judge(mine, known, given.shots, seed) for seed in range(given.seeds)]
            found[name] = {
                key: round(float(np.mean([run[key] for run in runs])), 2) for key in runs[0]
            }
        print(json.dumps(found), flush=True)


def pick(rows: Sequence[TableRow], count: int) -> list[TableRow]:
    """Return a row of each model at the usual batch and engine, with the fewest clients."""
    rows = [row for row in rows if row.precision.lower() in PRECISIONS]
    rows = [row for row in rows if row.device_kind in ENGINE_OF_KIND]
    usual, _ = Counter((row.batch, row.engine) for row in rows).most_common(1)[0]
    rows = sorted(rows, key=lambda row: row.concurrency or 1, reverse=True)
    kept = {(row.model, row.resolution_px): row for row in rows if (row.batch, row.engine) == usual}
    some = list(kept.values())
    return [some[at] for at in np.random.default_rng(0).permutation(len(some))[:count]]


def judge(
    mine: Sequence[TableRow], known: Sequence[TableRow], shots: int, seed: int
) -> dict[str, float]:
    """Return the errors of what ``select`` predicts for variants that were not measured."""
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
                records.add(measurement(mine[at], names[at], facts))
        if known:
            from modelless.controller.usecases.measuring.cost_model import import_profiles

            write_table(home / "known.csv", known)
            import_profiles([home / "known.csv"], home=home)
        config = home / "settings.yaml"
        config.write_text(
            "serve_unmeasured: true\nserve_dominated: true\nlimits: {max_batch: 1024}\n"
        )
        began_s = time.perf_counter()
        with mock.patch(WHERE, return_value=facts):
            selection = select(
                TASK,
                latency_ms=3.6e6,
                batch=batch,
                device_classes=[f"{kind}-1"],
                config=config,
                home=home,
            )
        elapsed_s = time.perf_counter() - began_s
    predicted = {entry["variant"]: entry for entry in selection.candidates}
    rest = [at for at in range(len(mine)) if at not in measured]
    rows = [predicted[f"{names[at]}@1"] for at in rest]
    truth_ms = np.array([mine[at].latency_ms for at in rest])
    error = np.abs(np.array([row["p50_ms"] for row in rows]) / truth_ms - 1.0)
    below = truth_ms <= np.array([row["p99_ms"] for row in rows])
    return {
        "median_error_percent": 100.0 * float(np.median(error)),
        "mape_percent": 100.0 * float(error.mean()),
        "below_p99_percent": 100.0 * float(below.mean()),
        "seconds": elapsed_s,
    }


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
    model = re.sub(r"[^a-z0-9._]+", "-", row.model.lower()).strip("-._")[:64]
    return f"{TASK}/{model}/v{row.resolution_px or 0}"


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


def measurement(row: TableRow, name: str, facts: DeviceFacts) -> Measurement:
    p50_s = row.latency_ms / 1e3
    return Measurement(
        variant_id=f"{name}@1",
        device_class=f"{row.device_kind}-1",
        batch=row.batch,
        threads=1,
        engine=facts.engine_name(ENGINE_OF_KIND[row.device_kind].value),
        device_name=facts.device_name(row.device_kind),
        repeats=30,
        p50_s=p50_s,
        p90_s=1.05 * p50_s,
        p99_s=1.2 * p50_s,
        mean_s=p50_s,
        throughput_per_s=row.batch / p50_s,
        memory_bytes=1 << 20,
        load_s=0.1,
        trusted=True,
        noise=0.1,
        measured_at=datetime(2025, 1, 1, tzinfo=UTC),
        fingerprint=facts.fingerprint_of(row.device_kind),
    )


if __name__ == "__main__":
    main()
