"""The learned cost model: what it knows, and how well it predicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from modelless.common.errors import InvalidInputError
from modelless.common.pages import count_of
from modelless.controller.usecases.home import Home, open_home
from modelless.controller.usecases.progress import Note, Progress, Step, ignore
from modelless.profiler.cost_model.knowledge_base import (
    ImportedTable,
    ProfileTables,
    read_profiles,
)
from modelless.profiler.cost_model.learned.evaluation import (
    SAMPLERS,
    Holdout,
    MethodScore,
    evaluate,
    plan_cases,
)
from modelless.profiler.cost_model.learned.prior import KINDS, read_prior, shipped_prior
from modelless.profiler.cost_model.units import find_wrong_units
from modelless.profiler.devices.known_devices import find_known_device
from modelless.profiler.measure.table import TableRow, read_numbered, refuse_units


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How well each method predicts.

    Attributes:
        scores: of each method, device and number of shots.
    """

    scores: Sequence[MethodScore]
    prior: str

    def document(self) -> dict[str, Any]:
        return {"prior": self.prior, "results": [score.document() for score in self.scores]}


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
) -> Evaluation:
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
        if too_many := [str(each) for each in shots if each >= count]:
            left_out = f"left out: {', '.join(too_many)} shots"
            on_progress(Note(f"note: {name} has {rows_there}: {left_out}"))
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
        most = max(len(case.wanted) for case in cases)
        allowed = f"fewer than a device has rows, {most} at most here"
        raise InvalidInputError.of("--shots", ",".join(map(str, shots)), allowed)
    return Evaluation(scores, known_prior.version)


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


@dataclass(frozen=True, slots=True)
class Import:
    """A table that was imported.

    Attributes:
        is_new: whether it was stored now; if not, the same rows were there already.
        repeated: number of rows that repeat others exactly; they are stored once.
        unpublished: devices without published figures, of which only the measurements are known.
    """

    table: ImportedTable
    is_new: bool
    repeated: int
    unpublished: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        return {
            **table_document(self.table),
            "is_new": self.is_new,
            "repeated": self.repeated,
            "unpublished": list(self.unpublished),
        }


def import_profiles(tables: Sequence[Path], *, home: Home = None) -> list[Import]:
    """Add tables of profiles to the knowledge base, which all predictions learn from.

    A table is stored under its file's name, in place of an older one of that name. All tables are
    read before any is stored.

    Args:
        tables: CSV files in the schema of ``profile --csv``.

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


def _import(kept: ProfileTables, name: str, rows: Sequence[TableRow]) -> Import:
    table, is_new = kept.add(name, rows)
    devices = {row.device: row.device_kind for row in rows}
    return Import(
        table,
        is_new,
        len(rows) - table.row_count,
        tuple(name for name, kind in sorted(devices.items()) if not find_known_device(name, kind)),
    )


def list_profile_tables(*, home: Home = None) -> list[ImportedTable]:
    """Returns the imported tables by name; raises StoreError."""
    with open_home(home) as registry:
        return ProfileTables(registry.store).tables()


def remove_profile_table(name: str, *, home: Home = None) -> ImportedTable:
    """Remove an imported table; raises NotFoundError and StoreError."""
    with open_home(home) as registry:
        return ProfileTables(registry.store).remove(name)


def table_document(table: ImportedTable) -> dict[str, Any]:
    """Returns a table as plain data."""
    return {
        "name": table.name,
        "sha256": table.sha256,
        "rows": table.row_count,
        "devices": list(table.devices),
        "added_at": table.added_at.isoformat(),
    }
