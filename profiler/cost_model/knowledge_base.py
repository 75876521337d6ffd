"""Keeps the knowledge base: profiles of other devices, from which predictions learn.

It holds the tables that were imported, and what the other machines of this registry measured.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from modelless.common.errors import InvalidInputError, StoreError
from modelless.profiler.cost_model.placement_facts import read_graph
from modelless.profiler.cost_model.unmeasured.prior import KINDS
from modelless.profiler.cost_model.wrong_units import find_wrong_units
from modelless.profiler.devices.device import DeviceFacts, default_device_classes
from modelless.profiler.devices.device_records import DeviceRecords
from modelless.profiler.devices.known_devices import find_known_device
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.records import Records
from modelless.profiler.measure.table import (
    COLUMNS,
    NumberedRow,
    TableRow,
    name_lines,
    read_numbered,
    refuse_units,
    rows_of,
)
from modelless.variants.paths import not_found
from modelless.variants.store import ProfileTableRow, Store

if TYPE_CHECKING:
    from modelless.variants.registry.registry import Registry


@dataclass(frozen=True, slots=True)
class ImportedTable:
    """A table of profiles in the store.

    Attributes:
        name: name of the file.
        sha256: digest of its rows.
        row_count: number of distinct rows.
        devices: names of its devices.
        added_at: time of the import.
    """

    name: str
    sha256: str
    row_count: int
    devices: tuple[str, ...]
    added_at: datetime


class ProfileTables:
    """The imported tables in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def tables(self) -> list[ImportedTable]:
        """Returns the tables by name.

        Raises:
            StoreError: the store cannot be read.
        """
        with self._store.session() as session:
            found = session.scalars(select(ProfileTableRow).order_by(ProfileTableRow.name))
            return [_table(row) for row in found]

    def rows(self) -> dict[str, list[TableRow]]:
        """Returns the rows of each table by its name.

        Raises:
            StoreError: the store cannot be read, or holds a table that this version cannot read.
        """
        query = select(ProfileTableRow.name, ProfileTableRow.content)
        with self._store.session() as session:
            tables = session.execute(query.order_by(ProfileTableRow.name)).all()
        return {name: _rows(name, content) for name, content in tables}

    def add(self, name: str, rows: Sequence[TableRow]) -> tuple[ImportedTable, bool]:
        """Store a table in place of an older one of its name.

        Returns:
            The table, and whether it was added: the same rows are stored once, under the first
            name.

        Raises:
            StoreError: the store cannot be written.
        """
        content: dict[str, Any] = {
            "columns": list(COLUMNS),
            "rows": [list(astuple(row)) for row in dict.fromkeys(rows)],
        }
        sha256 = hashlib.sha256(json.dumps(content).encode()).hexdigest()
        with self._store.transaction() as session:
            same = session.scalar(select(ProfileTableRow).where(ProfileTableRow.sha256 == sha256))
            if same is not None:
                return _table(same), False
            before = session.get(ProfileTableRow, name)
            if before is not None:
                session.delete(before)
                session.flush()
            added = ProfileTableRow(
                name=name,
                sha256=sha256,
                row_count=len(content["rows"]),
                devices=sorted({row.device for row in rows}),
                content=content,
            )
            session.add(added)
            session.flush()
            return _table(added), True

    def remove(self, name: str) -> ImportedTable:
        """Remove a table, and return it.

        Raises:
            NotFoundError: no table has that name.
            StoreError: the store cannot be written.
        """
        with self._store.transaction() as session:
            row = session.get(ProfileTableRow, name)
            if row is None:
                names = session.scalars(select(ProfileTableRow.name))
                raise not_found(
                    "imported table", name, names, "import one with 'modelless costmodel import'"
                )
            session.delete(row)
            return _table(row)


def _table(row: ProfileTableRow) -> ImportedTable:
    return ImportedTable(row.name, row.sha256, row.row_count, tuple(row.devices), row.added_at)


def _rows(name: str, content: dict[str, Any]) -> list[TableRow]:
    try:
        return [
            TableRow(**dict(zip(content["columns"], row, strict=True))) for row in content["rows"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"The store holds a profile table that cannot be read ({name}): {error}. Remove it "
            f"with 'modelless costmodel remove {name}' and import it again."
        ) from error


def read_profiles(path: Path, known: Iterable[TableRow] = ()) -> list[NumberedRow]:
    """Returns the rows of a table that can be learned from, with their lines.

    Device kinds may be in capitals; a blank one is that of the published device of the name.

    Args:
        path: a CSV file; see ``read_numbered``.
        known: rows whose units were checked; see ``find_wrong_units``.

    Raises:
        InvalidInputError: see ``read_numbered``; a device kind is unknown; latencies are in another
            unit. The message names the lines.
    """
    numbered = [(line, _with_kind(row)) for line, row in read_numbered(path)]
    unknown = {line: row for line, row in numbered if row.device_kind not in KINDS}
    if unknown:
        first = next(iter(unknown.values()))
        raise InvalidInputError.of(
            f"{path}: device_kind on {name_lines(list(unknown))}",
            first.device_kind,
            " or ".join(KINDS),
            "Write what computes."
            if first.device_kind
            else f"No published device is named {first.device!r}: write its kind into the table.",
        )
    refuse_units(path, find_wrong_units(numbered, known))
    return numbered


def _with_kind(row: TableRow) -> TableRow:
    if row.device_kind:
        return replace(row, device_kind=row.device_kind.lower())
    device = find_known_device(row.device)
    return row if device is None else replace(row, device_kind=device.kind)


def read_knowledge_base(registry: Registry, facts: DeviceFacts) -> list[TableRow]:
    """Returns the imported rows, and what other machines of the registry measured.

    Args:
        registry: the registry.
        facts: facts of this machine, whose own measurements are left out.

    Raises:
        StoreError: the store cannot be read.
    """
    imported = ProfileTables(registry.store).rows()
    elsewhere = Records(registry.store).elsewhere(facts)
    return [*chain(*imported.values()), *describe_rows(registry, facts, elsewhere)]


def describe_rows(
    registry: Registry, facts: DeviceFacts, measured: Sequence[Measurement]
) -> list[TableRow]:
    """Returns measurements as rows; those of variants that were removed are left out.

    Args:
        registry: the registry.
        facts: facts of this machine, for its device classes.
        measured: measurements of any machine.

    Raises:
        StoreError: the store cannot be read.
    """
    if not measured:
        return []
    catalog = registry.catalog()
    devices = {device.name: device for device in default_device_classes(facts)}
    records = DeviceRecords(registry.store)
    for name in sorted({row.device_class for row in measured} - devices.keys()):
        if (device := records.device_class(name)) is not None:
            devices[name] = device
    variants = {variant.id: variant for variant in catalog.versions.values()}
    described = [
        row for row in measured if row.variant_id in variants and row.device_class in devices
    ]
    graphs = {
        name: graph
        for name in {row.variant_id for row in described}
        if (graph := read_graph(variants[name], registry.graph_facts)) is not None
    }
    families = {f"{model.task}/{model.name}": model.family for model in catalog.models.values()}
    return rows_of(described, variants, devices, families, graphs)
