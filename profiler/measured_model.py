"""The first cost model: what was measured, interpolated over batch, corrected by what is seen."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelless.profiler.curves import BatchCurves
from modelless.profiler.measurement import Measurement
from modelless.profiler.residuals import Residuals, ResidualSettings
from modelless.variants.errors import InvalidInputError
from modelless.variants.estimates import Estimates, Load
from modelless.variants.vocabulary import Placement

FloatArray = NDArray[np.float64]

# Rows of a table of figures.
_P50, _P90, _P99, _MEMORY, _LOAD = range(5)
# Bounds of the caches: batches, sequences of placements, single placements, answers.
_TABLES_KEPT = 64
_SEQUENCES_KEPT = 64
_PLACEMENTS_KEPT = 100_000
_ANSWERS_KEPT = 128


class MeasuredCostModel:
    """A ``CostModel`` from measurements alone.

    Latency quantiles and memory follow each placement's measured batches (see ``BatchCurves``);
    load time is the median of its rows. What was never measured is infinitely slow. ``observe``
    corrects all three quantiles of a placement by one factor (see ``Residuals``).

    Answers are read-only arrays and may be shared between calls. Not safe for use from several
    threads at once: one caller, as in the sans-I/O cores.

    Args:
        measurements: of one machine; see ``Records.current``. Where several tell of one placement
            and batch, a trusted one wins over one that is not, then the newest.
        residuals: how corrections learn.
    """

    def __init__(
        self, measurements: Iterable[Measurement], residuals: ResidualSettings | None = None
    ) -> None:
        points = _best_points(measurements)
        self._placements = tuple(points)
        self._row_of = {placement: row for row, placement in enumerate(self._placements)}
        self._curves = _curves(list(points.values()))
        self._load_s = np.array(
            [np.median([row.load_s for row in rows]) for rows in points.values()], dtype=np.float64
        )
        classes = {placement.device_class: 0 for placement in self._placements}
        classes = {name: group for group, name in enumerate(classes)}
        groups = [classes[placement.device_class] for placement in self._placements]
        # One row more, of nothing known: unknown placements point there.
        self._unknown = len(self._placements)
        self._residuals = Residuals([*groups, 0], residuals or ResidualSettings())
        self._tables: OrderedDict[int, FloatArray] = OrderedDict()
        self._sequences: OrderedDict[int, _Sequence] = OrderedDict()
        self._row_by_id: OrderedDict[int, tuple[Placement, int]] = OrderedDict()
        self._answers: OrderedDict[tuple[int, int, float], tuple[_Sequence, int, Estimates]] = (
            OrderedDict()
        )

    @property
    def placements(self) -> tuple[Placement, ...]:
        """The placements something is known of."""
        return self._placements

    @property
    def ignored_count(self) -> int:
        """Observations that could not be true, or were of unknown placements."""
        return self._residuals.ignored_count

    def correction(self, placement: Placement) -> float:
        """The factor by which ``placement``'s latencies are multiplied now; 1 if unknown."""
        row = self._row_of.get(placement)
        return 1.0 if row is None else float(self._residuals.factors[row])

    def estimate(self, placements: Sequence[Placement], batch: int, load: Load) -> Estimates:
        """See ``CostModel.estimate``. Quickest where the same tuple is asked about again.

        Raises:
            InvalidInputError: a batch below 1.
        """
        if batch < 1:
            raise InvalidInputError.of("batch", batch, "1 or more")
        sequence = self._sequence(placements)
        busy = load.busy_neighbours
        version = self._residuals.version
        key = (id(sequence), batch, busy)
        known = self._answers.get(key)
        if known is not None and known[0] is sequence and known[1] == version:
            return known[2]
        rows = sequence.rows
        figures = self._table(batch).take(rows, axis=1)
        factors = self._residuals.factors.take(rows)
        neighbours = self._residuals.neighbour_factors(busy)
        if neighbours is not None:
            factors *= neighbours.take(rows)
        figures[:_MEMORY] *= factors
        figures.flags.writeable = False
        answer = Estimates(*figures)
        if type(placements) is tuple:
            _make_room(self._answers, _ANSWERS_KEPT)
            self._answers[key] = (sequence, version, answer)
        return answer

    def observe(self, placement: Placement, batch: int, load: Load, latency_s: float) -> None:
        """See ``CostModel.observe``. What cannot be true and unknown placements change nothing."""
        row = self._row_of.get(placement)
        if row is None or batch < 1:
            self._residuals.ignored_count += 1
            return
        predicted_s = float(self._table(batch)[_P50, row])
        self._residuals.observe(row, predicted_s, load.busy_neighbours, latency_s)

    def _table(self, batch: int) -> FloatArray:
        """Uncorrected figures at ``batch``, shape (5, n + 1); the last column, unknown, is inf."""
        table = self._tables.get(batch)
        if table is None:
            table = np.full((5, self._unknown + 1), np.inf)
            for rows, latency, memory in self._curves:
                table[:_MEMORY, rows] = latency.at(batch)
                table[_MEMORY, rows] = memory.at(batch)[0]
            table[_LOAD, : self._unknown] = self._load_s
            _make_room(self._tables, _TABLES_KEPT)
            self._tables[batch] = table
        return table

    def _sequence(self, placements: Sequence[Placement]) -> _Sequence:
        known = self._sequences.get(id(placements))
        if known is not None and known.placements is placements:
            return known
        by_id = self._row_by_id
        rows = []
        for placement in placements:
            found = by_id.get(id(placement))
            rows.append(self._look_up(placement) if found is None else found[1])
        sequence = _Sequence(placements, rows)
        if type(placements) is tuple:  # anything else may change, and is looked up each time
            _make_room(self._sequences, _SEQUENCES_KEPT)
            self._sequences[id(placements)] = sequence
        return sequence

    def _look_up(self, placement: Placement) -> int:
        row = self._row_of.get(placement, self._unknown)
        _make_room(self._row_by_id, _PLACEMENTS_KEPT)
        self._row_by_id[id(placement)] = (placement, row)  # held, so that its id stays its own
        return row


class _Sequence:
    """Placements that were asked about, held so that their id stays theirs, and their rows."""

    __slots__ = ("placements", "rows")

    def __init__(self, placements: Sequence[Placement], rows: list[int]) -> None:
        self.placements = placements
        self.rows = np.array(rows, dtype=np.intp)


def _best_points(measurements: Iterable[Measurement]) -> dict[Placement, list[Measurement]]:
    """For each placement one measurement a batch, by ascending batch."""
    best: dict[Placement, dict[int, Measurement]] = {}
    for row in measurements:
        by_batch = best.setdefault(Placement(row.variant_id, row.device_class), {})
        rival = by_batch.get(row.batch)
        if rival is None or (rival.trusted, rival.measured_at) <= (row.trusted, row.measured_at):
            by_batch[row.batch] = row
    return {
        placement: [by_batch[batch] for batch in sorted(by_batch)]
        for placement, by_batch in best.items()
    }


def _curves(
    points: Sequence[Sequence[Measurement]],
) -> list[tuple[NDArray[np.intp], BatchCurves, BatchCurves]]:
    """(rows, latency, memory) for each group of placements measured at the same batches."""
    alike: dict[tuple[int, ...], list[int]] = {}
    for row, measured in enumerate(points):
        alike.setdefault(tuple(point.batch for point in measured), []).append(row)
    curves = []
    for batches, rows in alike.items():
        latency = [
            [
                [getattr(points[row][i], name) for row in rows]
                for name in ("p50_s", "p90_s", "p99_s")
            ]
            for i in range(len(batches))
        ]
        memory = [
            [[float(points[row][i].memory_bytes) for row in rows]] for i in range(len(batches))
        ]
        curves.append(
            (
                np.array(rows, dtype=np.intp),
                BatchCurves(batches, np.array(latency), ascending=True),
                BatchCurves(batches, np.array(memory)),
            )
        )
    return curves


def _make_room(cache: OrderedDict[Any, Any], most: int) -> None:
    """Drop the oldest entry of a full cache."""
    if len(cache) >= most:
        cache.popitem(last=False)
