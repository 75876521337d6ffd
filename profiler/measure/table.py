"""Profiles as CSV, in one schema for our own measurements and for other sources.

A row is one measured point; the columns are ``COLUMNS``. A blank means unknown. Latencies are
milliseconds for the whole batch, throughput is items a second, memory MiB, accuracy per cent.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from modelless.common.errors import InvalidInputError
from modelless.common.files import write_whole
from modelless.profiler.measure.measurement import Measurement
from modelless.variants.vocabulary import DeviceClass, Variant

if TYPE_CHECKING:
    from modelless.profiler.devices.microbenchmark import DeviceRates
    from modelless.variants.graphs.graph_facts import GraphFacts
_FACTOR = 30.0
"""The factor by which latency and throughput may disagree (start-up, pipelining).

A factor of 1,000 means another unit."""

_MOST_MACS_PER_S = {"cpu": 3e13, "gpu": 3e15, "npu": 3e15}
"""Multiply-adds a second that no device of the kind reaches on a whole network, as of 2025.

They are several times the rated peaks of the largest servers, cards and accelerators."""

_LONGEST_MS, _SHORTEST_MS = 3.6e6, 1e-4
_SHOWN_LINES = 8


def _check_units(path: Path, rows: Sequence[NumberedRow]) -> None:
    """Refuse latencies that look like seconds or microseconds given as milliseconds.

    It checks four signs row by row, so that a table with mixed units is found, too: throughput (by
    Little's law, batch x concurrency = throughput x latency), the p99 of the same row, the rate of
    multiply-adds, and the length itself. A row with none of the other columns is judged by its
    length.
    """
    refuse_units(path, {line: _suspicion(row) for line, row in rows})


def refuse_units(path: Path, reasons: Mapping[int, str]) -> None:
    """Raise if latencies are in another unit.

    Args:
        path: the table.
        reasons: why each line's latency looks wrong; empty if it does not.

    Raises:
        InvalidInputError: a reason is not empty; names the lines.
    """
    suspects = {line: reason for line, reason in reasons.items() if reason}
    if suspects:
        raise InvalidInputError.of(
            f"{path}: latency_ms on {name_lines(list(suspects))}",
            "another unit",
            "milliseconds for the whole batch, and throughput_per_s in items a second",
            f"{next(iter(suspects.values()))}. Convert the column and read it again.",
        )


def _suspicion(row: TableRow) -> str:
    """Returns why a row's latency looks wrong; empty if it does not."""
    if not _SHORTEST_MS <= row.latency_ms <= _LONGEST_MS:
        return f"{row.latency_ms:g} ms, outside {_SHORTEST_MS:g} to {_LONGEST_MS:g} ms"
    if row.throughput_per_s is not None:
        ratio = row.latency_ms * row.throughput_per_s / 1e3 / row.batch
        # An unpublished concurrency may raise the ratio, but never lowers it.
        most = _FACTOR * row.concurrency if row.concurrency is not None else 1000.0 * _FACTOR
        if not 1.0 / _FACTOR <= ratio <= most:
            unit = "seconds" if ratio < 1.0 else "microseconds"
            return (
                f"{row.latency_ms:g} ms for {row.batch} items at {row.throughput_per_s:g} items/s: "
                f"looks like {unit}, or throughput in batches"
            )
    if row.latency_p99_ms is not None:
        tail = row.latency_p99_ms / row.latency_ms
        if tail < 0.999:
            return f"{row.latency_ms:g} ms, but a p99 of {row.latency_p99_ms:g} ms, which is less"
        if tail > 500.0:
            return f"{row.latency_ms:g} ms, but a p99 of {row.latency_p99_ms:g} ms: two units?"
    most_macs_per_s = _MOST_MACS_PER_S.get(row.device_kind, math.inf)
    if row.gmacs is not None:
        macs_per_s = row.gmacs * 1e9 * row.batch / (row.latency_ms / 1e3)
        if macs_per_s > most_macs_per_s:
            return (
                f"{row.latency_ms:g} ms for {row.gmacs * row.batch:g} G multiply-adds on a "
                f"{row.device_kind}: {macs_per_s:.1e} a second is more than any reaches; "
                "looks like seconds"
            )
    return ""


def name_lines(lines: Sequence[int]) -> str:
    """Returns ``line 3`` or ``lines 3, 4 and 20 more``."""
    shown = ", ".join(str(line) for line in lines[:_SHOWN_LINES])
    more = f" and {len(lines) - _SHOWN_LINES} more" if len(lines) > _SHOWN_LINES else ""
    return f"line{'s' if len(lines) > 1 else ''} {shown}{more}"


SOURCE = "modelless"
"""The ``source`` of the tables that this project writes."""

_MIB = float(1 << 20)


@dataclass(frozen=True, slots=True)
class TableRow:
    """One measured point of any source; None where the source does not tell.

    Attributes:
        source, task, model, family: names; ``family`` is the architecture's.
        device, device_kind: name; ``cpu``, ``gpu`` or ``npu``.
        engine, precision: as the source writes them.
        resolution_px, batch, concurrency: side of the input, items a batch, clients at once.
        params_m, gmacs, mactivations_m, layers: millions, 10^9 multiply-adds an item, millions,
            number.
        latency_ms, latency_p99_ms: latency of the whole batch; in our own tables the median and the
            p99.
        throughput_per_s: items a second.
        memory_mib: peak of the run.
        accuracy, accuracy_metric: per cent, and the name of the metric.
        item_shape: of an item, where the task leaves sizes free; the column may be missing.
    """

    source: str
    task: str
    model: str
    family: str
    device: str
    device_kind: str
    engine: str
    precision: str
    resolution_px: int | None
    batch: int
    concurrency: int | None
    params_m: float | None
    gmacs: float | None
    mactivations_m: float | None
    layers: int | None
    latency_ms: float
    latency_p99_ms: float | None
    throughput_per_s: float | None
    memory_mib: float | None
    accuracy: float | None
    accuracy_metric: str
    item_shape: str = ""

    @property
    def item(self) -> tuple[str, str, str, int | None]:
        """The columns that distinguish items: a model at a resolution, within a source and task."""
        return self.source, self.task, self.model, self.resolution_px

    @property
    def key(self) -> tuple[object, ...]:
        """The columns that distinguish points."""
        return tuple(getattr(self, name) for name in _KEY)


_KEY = (
    *("source", "task", "model", "device", "device_kind", "engine", "precision"),
    *("resolution_px", "batch", "concurrency", "item_shape"),
)

NumberedRow = tuple[int, TableRow]
"""The line of a file, and the row on it."""

COLUMNS = tuple(field.name for field in fields(TableRow))
_REQUIRED = frozenset({"model", "device", "batch", "latency_ms"})
_OPTIONAL = frozenset({"item_shape"})
_TEXT = frozenset(field.name for field in fields(TableRow) if field.type == "str")
_WHOLE = frozenset({"resolution_px", "batch", "concurrency", "layers"})
_ANY_SIGN = frozenset({"accuracy"})  # some metrics are published negative (decibels)
_MOST = {
    **dict.fromkeys(("batch", "concurrency", "gmacs", "mactivations_m"), 1e6),
    "params_m": 3e6,
    **dict.fromkeys(("layers", "resolution_px"), 1e5),
}
"""What no model or measurement reaches; more is another unit."""
_MAY_BE_ZERO = frozenset({"memory_mib", "params_m", "gmacs", "mactivations_m", "layers"})


@dataclass(frozen=True, slots=True)
class PlacementFacts:
    """The facts of one of our own placements, for rows of a table.

    Attributes:
        variant, device: the placement.
        device_name, engine: names as in measurements.
        family: the model's architecture; the model's own name if blank.
        graph: facts of its graph; None if unknown.
        rates: measured rates of the device class; None if there are none.
    """

    variant: Variant
    device: DeviceClass
    device_name: str
    engine: str
    family: str = ""
    graph: GraphFacts | None = None
    rates: DeviceRates | None = None

    def row(self, batch: int, latency_ms: float) -> TableRow:
        """Returns a point of the placement as a row.

        ``device`` is the card's name or ``<processor>/<device class>``, because the threads of a
        processor are part of a device here. A version beyond the first stays visible as
        ``model@version``.
        """
        variant, graph = self.variant, self.graph
        return TableRow(
            source=SOURCE,
            task=variant.task,
            model=variant.model if variant.version == 1 else f"{variant.model}@{variant.version}",
            family=self.family or variant.model,
            device=self.device_name
            if self.device.kind == "gpu"
            else f"{self.device_name}/{self.device.name}",
            device_kind=self.device.kind,
            engine=self.engine,
            precision=variant.precision.value,
            resolution_px=variant.resolution_px,
            batch=batch,
            concurrency=1,
            params_m=_per(variant.parameter_count, 1e6),
            gmacs=_per(variant.multiply_adds, 1e9),
            mactivations_m=_per(graph.activation_count, 1e6) if graph else None,
            layers=graph.layers if graph else None,
            latency_ms=latency_ms,
            latency_p99_ms=None,
            throughput_per_s=None,
            memory_mib=None,
            accuracy=variant.accuracy.percent,
            accuracy_metric=variant.accuracy.metric,
        )


def rows_of(
    measurements: Iterable[Measurement],
    variants: Mapping[str, Variant],
    devices: Mapping[str, DeviceClass],
    families: Mapping[str, str] | None = None,
    graphs: Mapping[str, GraphFacts] | None = None,
) -> list[TableRow]:
    """Returns our own measurements as rows of the schema; see ``PlacementFacts.row``.

    Args:
        measurements: measurements to write.
        variants: variants by id.
        devices: device classes by name.
        families: architecture family by ``task/model``; the model's own name where missing.
        graphs: facts of the variants' graphs, by variant id.

    Raises:
        InvalidInputError: a measurement of a variant or device class that is not given.
    """
    rows = []
    for row in measurements:
        variant, device = variants.get(row.variant_id), devices.get(row.device_class)
        if variant is None:
            raise InvalidInputError.of("measurement.variant_id", row.variant_id, "a given variant")
        if device is None:
            raise InvalidInputError.of(
                "measurement.device_class", row.device_class, "a given device class"
            )
        family = (families or {}).get(f"{variant.task}/{variant.model}", "")
        graph = (graphs or {}).get(row.variant_id)
        subject = PlacementFacts(variant, device, row.device_name, row.engine, family, graph)
        rows.append(
            replace(
                subject.row(row.batch, row.p50_s * 1e3),
                latency_p99_ms=row.p99_s * 1e3,
                throughput_per_s=row.throughput_per_s,
                memory_mib=row.memory_bytes / _MIB,
                item_shape=row.shape,
            )
        )
    return rows


def _per(count: int | None, unit: float) -> float | None:
    return None if count is None else count / unit


def write_table(path: Path, rows: Sequence[TableRow]) -> None:
    """Write ``rows`` below a heading, numbers with 6 significant digits, None as a blank."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow([_shown(getattr(row, name)) for name in COLUMNS])
    write_whole(path, buffer.getvalue().encode(), mode=0o644)


def read_table(path: Path) -> list[TableRow]:
    """Returns the rows of a table; raises as ``read_numbered`` does."""
    return [row for _, row in read_numbered(path)]


def read_numbered(path: Path) -> list[NumberedRow]:
    """Returns the rows of a table of the schema with their lines; other columns are ignored.

    A point may occur several times: some published tables leave out what distinguishes them.

    Args:
        path: a CSV file, UTF-8, heading first.

    Raises:
        InvalidInputError: the file is unreadable, a column is missing, there are no rows, a value
            is no number or impossible, or latencies look like another unit. The message names the
            file, the lines, the value and what is allowed.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:  # (bytes that are no UTF-8 are a ValueError)
        raise InvalidInputError.of(str(path), str(error), "a readable CSV file in UTF-8") from error
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        heading = list(reader.fieldnames or ())
        _check_heading(path, heading)
        rows: list[NumberedRow] = []
        for record in reader:
            if None in record or None in record.values():
                count = sum(value is not None for value in record.values())
                count += len(record.get(None, ())) - (None in record)
                allowed = f"{len(heading)} fields, as in the heading"
                raise InvalidInputError.of(
                    f"{path}, line {reader.line_num}: number of fields", count, allowed
                )
            rows.append((reader.line_num, _parse(path, reader.line_num, record)))
    except csv.Error as error:
        raise InvalidInputError.of(f"{path}", str(error), "well-formed CSV") from error
    if not rows:
        raise InvalidInputError.of(f"{path}", "no rows", "at least one row below the heading")
    _check_units(path, rows)
    return rows


def _check_heading(path: Path, heading: Sequence[str]) -> None:
    missing = [name for name in COLUMNS if name not in heading and name not in _OPTIONAL]
    if missing:
        raise InvalidInputError.of(
            f"{path}: columns",
            heading,
            f"all of {', '.join(COLUMNS)}",
            f"Missing: {', '.join(missing)}. Add them, blank where nothing is known."
            if len(heading) > 1
            else "Separate them by commas.",
        )
    twice = sorted({name for name in heading if heading.count(name) > 1})
    if twice:
        raise InvalidInputError.of(f"{path}: columns", twice, "each column once")


def _parse(path: Path, line: int, record: Mapping[str, str]) -> TableRow:
    values: dict[str, object] = {}
    for name in COLUMNS:
        text = record.get(name, "").strip()
        if not text and name in _REQUIRED:
            raise InvalidInputError.of(f"{path}, line {line}: {name}", text, "not blank")
        if name in _TEXT:
            values[name] = text
        else:
            values[name] = _number(f"{path}, line {line}: {name}", name, text) if text else None
    return TableRow(**values)  # type: ignore[arg-type]  # each value was made for its column


def _number(place: str, name: str, text: str) -> float | int:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    least = -math.inf if name in _ANY_SIGN else 0.0
    if (
        not math.isfinite(value)
        or value < least
        or (value == 0.0 and name not in _MAY_BE_ZERO | _ANY_SIGN)
        or value > _MOST.get(name, math.inf)
        or (name in _WHOLE and value != int(value))
    ):
        allowed = "a finite number" if name in _ANY_SIGN else "a finite number, more than 0"
        if name in _MAY_BE_ZERO:
            allowed = "a finite number, 0 or more"
        if name in _MOST:
            allowed += f", and {_MOST[name]:,.0f} at most"
        hint = "" if name in _REQUIRED else "Leave it blank if it is not known."
        raise InvalidInputError.of(
            place,
            text,
            allowed.replace("finite", "whole") if name in _WHOLE else allowed,
            "Write a point before decimals, and nothing between thousands."
            if "," in text
            else hint,
        )
    return int(value) if name in _WHOLE else value


def _shown(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
