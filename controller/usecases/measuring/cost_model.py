"""The learned cost model: what it knows, and how well it predicts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from modelless.common.errors import InvalidInputError
from modelless.common.pages import count_of
from modelless.controller.usecases.home import Home, open_home
from modelless.controller.usecases.progress import Note, Progress, Step, ignore
from modelless.profiler.cost_model.evaluation.hold_out import (
    SAMPLERS,
    Holdout,
    MethodScore,
    evaluate,
    plan_cases,
)
from modelless.profiler.cost_model.knowledge_base import (
    ImportedTable,
    ProfileTables,
    describe_rows,
    read_knowledge_base,
    read_profiles,
)
from modelless.profiler.cost_model.unmeasured.figures import (
    LEAST_MEASURED,
    FigureRules,
    PredictedFigures,
)
from modelless.profiler.cost_model.unmeasured.machine_predictor import (
    MachinePredictor,
    thin_out,
)
from modelless.profiler.cost_model.unmeasured.prior import KINDS, read_prior, shipped_prior
from modelless.profiler.cost_model.wrong_units import find_wrong_units
from modelless.profiler.devices.device import DeviceFacts, default_device_classes
from modelless.profiler.devices.device_records import DeviceRecords
from modelless.profiler.devices.host import read_facts
from modelless.profiler.devices.known_devices import find_known_device, known_devices
from modelless.profiler.measure.campaign import BATCHES
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.records import Records
from modelless.profiler.measure.table import PlacementFacts, TableRow, read_numbered, refuse_units
from modelless.variants.graphs.graph_facts import GraphFacts, read_graph_facts
from modelless.variants.graphs.inspection import parse_onnx, read_onnx
from modelless.variants.paths import not_found
from modelless.variants.registry.registry import Registry
from modelless.variants.vocabulary import (
    Accuracy,
    DeviceClass,
    Engine,
    Placement,
    Precision,
    Provenance,
    Variant,
)


def evaluate_cost_model(
    tables: Sequence[Path],
    *,
    train: Sequence[Path] | None = None,
    holdout: Sequence[str] = (),
    shots: Sequence[int] = (0, 10, 50),
    seeds: int = 3,
    draw: str = "random",
    prior: Path | None = None,
    on_progress: Progress = ignore,
) -> tuple[list[MethodScore], str]:
    """Predict profiles from other profiles and a few measurements, and compare with baselines.

    Every method gets the same training rows and the same shots; shots are not judged. Repeated
    points of a table with other latencies are kept: the tables do not say what differed.

    Args:
        tables: profiles to predict, CSV.
        train: learn from these alone; then the tables are unseen but for the shots.
        holdout: leave these out of training and predict them, ``PART=VALUE``; default: each device
            in turn.
        shots: numbers of measurements given of each device, ascending.
        draw: how shots are drawn, ``random`` or ``chosen``.
        prior: a prior of one's own; default: the shipped one.

    Returns:
        The scores of each method, device and number of shots; and the version of the prior.

    Raises:
        InvalidInputError: an argument or a table does not fit.
    """
    if draw not in SAMPLERS:
        raise InvalidInputError.of("--draw", draw, "one of " + ", ".join(SAMPLERS))
    known_prior = shipped_prior() if prior is None else read_prior(prior)
    training = _read(train or (), [], on_progress)
    rows = _read(tables, training, on_progress)
    holdouts = [Holdout.of(text) for text in holdout]
    cases = plan_cases(rows, training if train else None, holdouts)
    for case in cases:
        count, name = len(case.wanted), case.wanted[0].device
        rows_there = count_of(count, "drawn row" if case.passed_over else "row")
        if case.passed_over:
            whole = count + case.passed_over
            on_progress(Note(f"note: {name} has {whole:,} rows: {count:,} of them are drawn"))
        if too_many := [str(each) for each in shots if each > case.most_shots]:
            left_out = f"left out: {', '.join(too_many)} shots"
            why = f"{case.most_shots} at most leave an item to judge"
            on_progress(Note(f"note: {name} has {rows_there}: {left_out}, as {why}"))
        if not case.training:
            on_progress(Note(f"note: no row to learn {name} from but its shots: see --train"))
    scores: list[MethodScore] = []
    for number, case in enumerate(cases):
        device = case.wanted[0].device

        def show(done: int, total: int, number: int = number, device: str = device) -> None:
            now = f"{device}, draw {done} of {total}"
            on_progress(Step("predicting", number, len(cases), now))

        on_progress(Step("predicting", number, len(cases), device))
        scores += evaluate(case, known_prior, shots, seeds, show, SAMPLERS[draw])
    on_progress(Step("predicting", len(cases), len(cases)))
    if not scores:
        most = max(case.most_shots for case in cases)
        allowed = f"{most} at most here: an item of each device is left to judge"
        raise InvalidInputError.of("--shots", ",".join(map(str, shots)), allowed)
    return scores, known_prior.version


def _read(
    tables: Sequence[Path], believed: Sequence[TableRow], on_progress: Progress
) -> list[TableRow]:
    """Returns the rows of all tables; units are compared with ``believed`` and earlier tables."""
    found: list[TableRow] = []
    for path in dict.fromkeys(tables):
        numbered = read_numbered(path)
        refuse_units(path, find_wrong_units(numbered, [*believed, *found]))
        found += [row for _, row in numbered]
    if unknown := sorted({row.device_kind for row in found} - set(KINDS)):
        on_progress(
            Note(
                f"note: unknown device_kind {', '.join(map(repr, unknown))}; known are "
                f"{', '.join(KINDS)}: only measurements tell of such devices"
            )
        )
    return found


def import_profiles(tables: Sequence[Path], *, home: Home = None) -> list[dict[str, Any]]:
    """Add tables of profiles to the knowledge base, which all predictions learn from.

    A table is stored under its file's name, in place of an older one of that name. All tables are
    read before any is stored.

    Args:
        tables: CSV files in the schema of ``profile --csv``.

    Returns:
        Each table as ``list_profile_tables`` has it; with ``is_new``: it was stored now, else the
        same rows were there already; ``repeated``: how many rows repeat others exactly, and are
        stored once; ``unpublished``: the devices of which only the measurements are known.

    Raises:
        InvalidInputError: a table is unreadable, or has values, device kinds or units that cannot
            be; names the lines.
        StoreError: the store cannot be written.
    """
    with open_home(home) as registry:
        kept = ProfileTables(registry.store)
        known = kept.rows()
        names = [path.name for path in tables]
        for path in tables:
            if names.count(path.name) > 1:
                raise InvalidInputError.of("TABLE", str(path), "one table of each file name")
            known.pop(path.name, None)
            numbered = read_profiles(path, chain(*known.values()))
            known[path.name] = [row for _, row in numbered]
        return [_import(kept, name, known[name]) for name in names]


def _import(kept: ProfileTables, name: str, rows: Sequence[TableRow]) -> dict[str, Any]:
    table, is_new = kept.add(name, rows)
    devices = {row.device: row.device_kind for row in rows}
    unpublished = [name for name, kind in devices.items() if not find_known_device(name, kind)]
    return {
        **_document(table),
        "is_new": is_new,
        "repeated": len(rows) - table.row_count,
        "unpublished": sorted(unpublished),
    }


def list_profile_tables(*, home: Home = None) -> list[dict[str, Any]]:
    """Returns the imported tables by name, as plain data; raises StoreError."""
    with open_home(home) as registry:
        return [_document(table) for table in ProfileTables(registry.store).tables()]


def remove_profile_table(name: str, *, home: Home = None) -> dict[str, Any]:
    """Remove an imported table, and return it; raises NotFoundError and StoreError."""
    with open_home(home) as registry:
        return _document(ProfileTables(registry.store).remove(name))


def _document(table: ImportedTable) -> dict[str, Any]:
    return {
        "name": table.name,
        "sha256": table.sha256,
        "rows": table.row_count,
        "devices": list(table.devices),
        "added_at": table.added_at.isoformat(),
    }


ENGINE_OF_KIND = {"cpu": Engine.ONNXRUNTIME_CPU, "gpu": Engine.ONNXRUNTIME_CUDA}
"""The engine that predictions for a kind of device assume."""


@dataclass(frozen=True, slots=True)
class _RowFacts(PlacementFacts):
    """A placement whose facts are those of a row, ``template``, without its batch and latency."""

    template: TableRow | None = None

    def row(self, batch: int, latency_ms: float) -> TableRow:
        row = self.template or PlacementFacts.row(self, batch, latency_ms)
        return replace(row, batch=batch, latency_ms=latency_ms)


def predict_model(
    model: Path,
    *,
    device_class: str,
    shots: Path | None = None,
    batches: Sequence[int] = BATCHES,
    home: Home = None,
) -> dict[str, Any]:
    """Predict what a model would cost on a device, from the knowledge base; nothing is run.

    Args:
        device_class: a device class of this machine, a device of an imported table, or one whose
            peak rates are published.
        shots: measurements of the device, CSV in the schema of ``profile --csv``; of a device class
            of this machine those in the store count, too.

    Returns:
        Plain data: ``model``, ``device``, ``device_kind`` (``cpu``, ``gpu`` or ``npu``) and
        ``is_published``: its peak rates are known; ``shots``: how many measurements of the device
        itself were used; ``batches`` with ``p50_ms``, ``low_ms`` to ``high_ms`` (the band of four
        of five measurements) and ``memory_bytes`` (of loading and running it, at most; None if
        unknown); ``load_s`` (None if unknown); and ``devices``: those that it was learned from, the
        nearest first, see ``LearnedDevice``.

    Raises:
        NotFoundError: nothing is known of such a device.
        InvalidInputError: a file cannot be read, or has measurements of several devices.
        IntegrityError: the model is no ONNX file.
    """
    data = read_onnx(model)
    graph = read_graph_facts(parse_onnx(data, str(model)))
    facts = read_facts()
    with open_home(home) as registry:
        knowledge = read_knowledge_base(registry, facts)
        given = [] if shots is None else [row for _, row in read_profiles(shots, knowledge)]
        if len(names := {row.device for row in given}) > 1:
            raise InvalidInputError.of("--shots", sorted(names), "measurements of one device")
        own = {each.name: each for each in default_device_classes(facts)}
        device = own.get(device_class)
        measured: list[Measurement] = []
        rates = None
        if device is not None:
            measured = [
                row
                for row in Records(registry.store).current(facts)
                if row.device_class == device.name
            ]
            given += describe_rows(registry, facts, measured)
            rates = DeviceRecords(registry.store).current([device], facts).get(device.name)
        else:
            device = _find_device(device_class, knowledge, own)
        engine = ENGINE_OF_KIND.get(device.kind, Engine.ONNXRUNTIME_CPU)
        variant = _variant(model, data, graph, engine)
        subject = _RowFacts(
            variant,
            device,
            facts.device_name(device.kind),
            facts.engine_name(engine.value),
            graph=graph,
            rates=rates,
        )
        if device_class not in own:
            subject = replace(subject, template=_row_on(device_class, subject, knowledge))
        rules = _rules(registry, facts, measured, engine)
    like = subject.row(1, 1.0)
    placements: dict[Placement, PlacementFacts] = {Placement(variant.id, device.name): subject}
    known = []
    wanted_batches: dict[Placement, Sequence[int]] = dict.fromkeys(placements, batches)
    for number, row in enumerate(thin_out(given)):
        template = replace(
            row, source=like.source, device=like.device, device_kind=like.device_kind
        )
        shot = Placement(f"shot-{number}", device.name)
        placements[shot] = replace(subject, template=template)
        wanted_batches[shot] = (row.batch,)
        p50_s = row.latency_ms / 1e3
        known.append(PredictedFigures(shot, row.batch, p50_s, p50_s, p50_s, 0.0, 0.0))
    fleet = MachinePredictor(shipped_prior(), placements, wanted_batches, knowledge)
    wanted = [(Placement(variant.id, device.name), batch) for batch in batches]
    expected = fleet.fit(known).predict(fleet.rows(wanted))
    size = float(len(data))
    found = [
        {
            "batch": batch,
            "p50_ms": p50_s * 1e3,
            "low_ms": p50_s * 1e3 * math.exp(-p90_log),
            "high_ms": p50_s * 1e3 * math.exp(p90_log),
            "memory_bytes": max(size, rules.memory.at(size, batch))
            if rules
            else _most_memory(size, graph, batch),
        }
        for batch, p50_s, p90_log in zip(
            batches, expected.median_s.tolist(), expected.p90_log.tolist(), strict=True
        )
    ]
    published = find_known_device(subject.device_name if device_class in own else device_class)
    return {
        "model": model.name,
        "device": device_class,
        "device_kind": device.kind,
        "is_published": published is not None,
        "shots": len(known),
        "batches": found,
        "load_s": rules.load.at(size, 1) if rules else None,
        "devices": [asdict(each) for each in fleet.learned_from(device.name)],
    }


def _find_device(
    name: str, knowledge: Sequence[TableRow], own: Mapping[str, DeviceClass]
) -> DeviceClass:
    """Returns a class for a device that this machine does not have; only its kind is known."""
    kinds = {row.device: row.device_kind for row in knowledge}
    published = find_known_device(name)
    kind = kinds.get(name) or (published.kind if published is not None else None)
    if kind is None:
        raise not_found("device class, device of a table or published device", name,
                        [*own, *kinds, *(each.name for each in known_devices())], "")  # fmt: skip
    return DeviceClass("elsewhere", kind, 1, 1 << 62, 0.0, 0.0)


def _row_on(name: str, subject: PlacementFacts, knowledge: Sequence[TableRow]) -> TableRow:
    """Returns the model as a row of another device, with its most frequent source and engine."""
    row = replace(subject.row(1, 1.0), device=name)
    there = Counter((row.source, row.engine) for row in knowledge if row.device == name)
    if not there:
        return row
    (source, engine), _ = there.most_common(1)[0]
    return replace(row, source=source, engine=engine)


def _variant(path: Path, data: bytes, graph: GraphFacts, engine: Engine) -> Variant:
    return Variant(
        task="",
        model=path.stem,
        name="new",
        version=1,
        precision=graph.precision or Precision.FP32,
        resolution_px=graph.resolution_px,
        engine=engine,
        artifact_sha256="",
        artifact_bytes=len(data),
        accuracy=Accuracy(0.0, "", Provenance.DERIVED, ""),
        parameter_count=graph.parameter_count,
        multiply_adds=graph.multiply_adds,
    )


def _rules(
    registry: Registry, facts: DeviceFacts, measured: Sequence[Measurement], engine: Engine
) -> FigureRules | None:
    """Returns rules for memory and load time, as measured here or elsewhere; None if too little."""
    sizes = {each.id: float(each.artifact_bytes) for each in registry.catalog().versions.values()}
    for rows in (measured, Records(registry.store).elsewhere(facts)):
        some = [r for r in rows if r.variant_id in sizes and r.engine.startswith(engine.value)]
        if len(some) >= LEAST_MEASURED:
            return FigureRules(some, sizes)
    return None


def _most_memory(size_bytes: float, graph: GraphFacts, batch: int) -> float | None:
    """Returns the bytes of the file and all activations, an upper bound; None if unknown."""
    activations = graph.activation_bytes
    return None if activations is None else size_bytes + float(batch * activations)
