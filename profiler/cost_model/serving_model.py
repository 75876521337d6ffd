"""The cost model that serves: measurements, interpolated over batch and corrected by outcomes."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError
from modelless.profiler.cost_model.online.corrections import Corrections
from modelless.profiler.cost_model.online.coverage import Coverage
from modelless.profiler.cost_model.online.shift_detector import LEAST_DEVIATION
from modelless.profiler.cost_model.slowdowns import PairRun, fit_slowdowns, streaming_rates
from modelless.profiler.measure.measurement import Measurement
from modelless.variants.estimates import Estimates, FloatArray, Load
from modelless.variants.vocabulary import Placement

if TYPE_CHECKING:
    from modelless.profiler.cost_model.size_model import SizeModel


class BatchCurves:
    """Figures of placements measured at the same batch sizes, as functions of the batch size.

    The curves are linear between measured batch sizes and never decrease: a point below an earlier
    one is raised to it. Beyond the last point they continue with the steeper of the last segment's
    slope and the slope from first to last point, so that one point that is flat by chance does not
    promise free batches. From a single point they grow in proportion to the batch size. Below the
    first point they keep its value.

    Args:
        batches: the m measured batch sizes, ascending, distinct, 1 or more.
        figures: k figures of n placements, finite, 0 or more, shape (m, k, n).
        ascending: whether the k figures of a placement ascend (p50, p90, p99) and stay so where
            extrapolations would cross.
    """

    def __init__(
        self, batches: Sequence[int], figures: FloatArray, *, ascending: bool = False
    ) -> None:
        self._batches = np.asarray(batches, dtype=np.float64)
        self._figures = np.maximum.accumulate(np.asarray(figures, dtype=np.float64), axis=0)
        self._ascending = ascending
        first, last = self._figures[0], self._figures[-1]
        if len(self._batches) == 1:
            self._slope = last / self._batches[0]
        else:
            ending = (last - self._figures[-2]) / (self._batches[-1] - self._batches[-2])
            whole = (last - first) / (self._batches[-1] - self._batches[0])
            self._slope = np.maximum(ending, whole)

    def at(self, batch: int) -> FloatArray:
        """Returns the figures at a batch size, shape (k, n)."""
        batches, figures = self._batches, self._figures
        if batch <= batches[0]:
            values = figures[0]
        elif batch >= batches[-1]:
            values = figures[-1] + self._slope * (batch - batches[-1])
        else:
            right = int(np.searchsorted(batches, batch, side="left"))
            share = (batch - batches[right - 1]) / (batches[right] - batches[right - 1])
            values = figures[right - 1] + share * (figures[right] - figures[right - 1])
        return np.maximum.accumulate(values, axis=0) if self._ascending else values.copy()


_Row = TypeVar("_Row")

# Rows of a table of figures; the three latency quantiles come before these.
_MEMORY, _LOAD = 3, 4
# Bounds of the caches: tables, figures in the tables where sizes differ, sequences of placements,
# single placements, answers.
_TABLES_KEPT = 64
_FIGURES_KEPT = 4_000_000
_SEQUENCES_KEPT = 64
_PLACEMENTS_KEPT = 100_000
_ANSWERS_KEPT = 128


class Drift(NamedTuple):
    """A placement whose profile no longer holds and should be measured again.

    Attributes:
        placement: the placement.
        factor: its latency now over the measured one, on an idle host.
        alarms: how often a change was detected.
        at_s: time of the last one on the driver's clock (``Load.at_s``), seconds.
    """

    placement: Placement
    factor: float
    alarms: int
    at_s: float


class PlacementFigures(Protocol):
    """The figures of a placement at a batch size; ``Measurement`` has them."""

    @property
    def placement(self) -> Placement: ...
    @property
    def batch(self) -> int: ...
    @property
    def p50_s(self) -> float: ...
    @property
    def p90_s(self) -> float: ...
    @property
    def p99_s(self) -> float: ...
    @property
    def memory_bytes(self) -> float: ...
    @property
    def load_s(self) -> float: ...


class ServingCostModel:
    """A ``CostModel`` made of measurements and of predictions derived from them.

    Latency quantiles and memory follow each placement's measured batch sizes (see ``BatchCurves``).
    Load time is the median of its measurements, or of its predictions. A placement without either
    is infinitely slow. ``observe`` corrects the three quantiles of a placement separately, by what
    is observed under each load; what placements of a device class have in common applies to the
    others, too (see ``Corrections``).

    Where ``sizes`` knows a placement, its latency for items of a size is the size model's, and what
    is observed is compared with that. So a correction, as 10 % slower, holds for all sizes alike.

    Answers are read-only arrays that calls may share. The model is not safe for use from several
    threads at once.

    Args:
        measurements: measurements of one machine; see ``Records.current``. Of several for one
            placement and batch size, a trusted one is used before one that is not, then the newest.
        pair_runs: pair runs of the same machine; they give the slowdown by busy neighbours before
            any is observed.
        predicted: figures of points that were not measured; a measurement is used before them.
        sizes: latencies by the size of items; None where all items are alike.
        learns: see ``Corrections``.
    """

    def __init__(
        self,
        measurements: Iterable[Measurement],
        pair_runs: Iterable[PairRun] = (),
        predicted: Iterable[PlacementFigures] = (),
        sizes: SizeModel | None = None,
        *,
        learns: bool = True,
    ) -> None:
        measured = best_points(measurements)
        points = _with_predicted(measured, predicted)
        self._placements = tuple(points)
        self._row_of = {placement: row for row, placement in enumerate(self._placements)}
        self._curves = _curves(list(points.values()))
        self._load_s = np.array(
            [
                np.median([row.load_s for row in measured.get(placement, rows)])
                for placement, rows in points.items()
            ],
            dtype=np.float64,
        )
        classes = {placement.device_class: 0 for placement in self._placements}
        classes = {name: group for group, name in enumerate(classes)}
        groups = [classes[placement.device_class] for placement in self._placements]
        self._device_classes = tuple(classes)
        self.slowdowns = fit_slowdowns(pair_runs, streaming_rates(measured))
        contention = [self.slowdowns.log_by_any(placement) for placement in self._placements]
        # One row more, of nothing known: unknown placements point there.
        self._unknown = len(self._placements)
        self._corrections = Corrections([*groups, 0], [*contention, 0.0], learns=learns)
        self._known_factors: tuple[_Sequence, int, float, FloatArray] | None = None
        self._tables: OrderedDict[tuple[int, int], FloatArray] = OrderedDict()
        self._sizes = sizes
        self._sized_rows = [
            (row, placement)
            for row, placement in enumerate(self._placements)
            if sizes is not None and sizes.sizes(placement)
        ]
        self._tables_kept = _TABLES_KEPT
        if self._sized_rows:
            self._tables_kept = max(_FIGURES_KEPT // (5 * (self._unknown + 1)), _TABLES_KEPT)
        self._sequences: OrderedDict[int, _Sequence] = OrderedDict()
        self._row_by_id: OrderedDict[int, tuple[Placement, int]] = OrderedDict()
        self._answers: OrderedDict[
            tuple[int, int, float, int], tuple[_Sequence, int, Estimates]
        ] = OrderedDict()

    @property
    def placements(self) -> tuple[Placement, ...]:
        """The placements that the model knows."""
        return self._placements

    def correction(self, placement: Placement) -> float:
        """Returns the factor of ``placement``'s median on an idle host now; 1 if it is unknown."""
        row = self._row_of.get(placement)
        return 1.0 if row is None else self._corrections.factor(row)

    def coverage(self) -> tuple[Coverage, ...]:
        """Returns how well recent predictions held, by device class with outcomes."""
        counters = zip(self._corrections.counters, self._device_classes, strict=False)
        found = [counter.snapshot(device_class) for counter, device_class in counters]
        return tuple(snapshot for snapshot in found if snapshot is not None)

    def drifts(self) -> tuple[Drift, ...]:
        """Returns the placements that shifted and are not back where their profile has them."""
        corrections = self._corrections
        return tuple(
            Drift(self._placements[row], factor, mark.alarms, mark.at_s)
            for row, mark in corrections.shifted.items()
            if abs(math.log(factor := corrections.factor(row))) >= LEAST_DEVIATION
        )

    def estimate(
        self, placements: Sequence[Placement], batch: int, load: Load, size: int = 0
    ) -> Estimates:
        """Returns estimates as ``CostModel.estimate`` says; fastest when the same tuple is asked
        again.

        Raises:
            InvalidInputError: the batch size is below 1.
        """
        if batch < 1:
            raise InvalidInputError.of("batch", batch, "1 or more")
        sequence = self._sequence(placements)
        busy = load.busy_neighbours
        self._corrections.renew(load.at_s)
        version = self._corrections.version
        key = (id(sequence), batch, busy, size)
        known = self._answers.get(key)
        if known is not None and known[0] is sequence and known[1] == version:
            return known[2]
        figures = self._table(batch, size).take(sequence.rows, axis=1)
        latencies = figures[:_MEMORY]
        latencies *= self._factors(sequence, busy)
        np.maximum.accumulate(latencies, axis=0, out=latencies)
        figures.flags.writeable = False
        answer = Estimates(*figures)
        if type(placements) is tuple:
            _make_room(self._answers, _ANSWERS_KEPT)
            self._answers[key] = (sequence, version, answer)
        return answer

    def observe(
        self, placement: Placement, batch: int, load: Load, latency_s: float, size: int = 0
    ) -> bool:
        """Learn from one outcome, as ``CostModel.observe`` says; ignore implausible ones."""
        row = self._row_of.get(placement)
        if row is None or batch < 1:
            return False
        p50_s, p90_s, p99_s = self._table(batch, size)[:_MEMORY, row].tolist()
        return self._corrections.observe(
            row, (p50_s, p90_s, p99_s), load.busy_neighbours, load.at_s, latency_s
        )

    def doubt(self) -> None:
        """Note a refusal, as ``CostModel.doubt`` says."""
        self._corrections.doubt()

    def _table(self, batch: int, size: int) -> FloatArray:
        """Returns the uncorrected figures, shape (5, n + 1); the last column, unknown, is inf."""
        if size and not self._sized_rows:
            size = 0
        table = self._tables.get((batch, size))
        if table is None:
            table = self._sized_table(batch, size) if size else self._profiled_table(batch)
            _make_room(self._tables, self._tables_kept)
            self._tables[batch, size] = table
        return table

    def _profiled_table(self, batch: int) -> FloatArray:
        table = np.full((5, self._unknown + 1), np.inf)
        for rows, latency, memory in self._curves:
            table[:_MEMORY, rows] = latency.at(batch)
            table[_MEMORY, rows] = memory.at(batch)[0]
        table[_LOAD, : self._unknown] = self._load_s
        return table

    def _sized_table(self, batch: int, size: int) -> FloatArray:
        table = self._table(batch, 0).copy()
        for row, placement in self._sized_rows:
            assert self._sizes is not None  # noqa: S101  (it has these rows)
            found = self._sizes.estimate(placement, batch, size)
            if found is not None:
                table[:_MEMORY, row] = found.p50_s, found.p90_s, found.p99_s
        return table

    def _factors(self, sequence: _Sequence, busy_neighbours: float) -> FloatArray:
        """Returns the correction factors, shape (3, n); they are the same for all batch sizes."""
        known, version = self._known_factors, self._corrections.version
        if known is None or known[0] is not sequence or known[1:3] != (version, busy_neighbours):
            factors = self._corrections.factors(sequence.rows, busy_neighbours)
            known = self._known_factors = (sequence, version, busy_neighbours, factors)
        return known[3]

    def _sequence(self, placements: Sequence[Placement]) -> _Sequence:
        known = self._sequences.get(id(placements))
        if known is not None and known.placements is placements:
            return known
        by_id = self._row_by_id
        rows = []
        for placement in placements:
            found = by_id.get(id(placement))
            rows.append(self._look_up(placement) if found is None else found[1])
        sequence = _Sequence(placements, np.array(rows, dtype=np.intp))
        if type(placements) is tuple:  # anything else may change, and is looked up each time
            _make_room(self._sequences, _SEQUENCES_KEPT)
            self._sequences[id(placements)] = sequence
        return sequence

    def _look_up(self, placement: Placement) -> int:
        row = self._row_of.get(placement, self._unknown)
        _make_room(self._row_by_id, _PLACEMENTS_KEPT)
        self._row_by_id[id(placement)] = (placement, row)  # held, so that its id stays its own
        return row


class _Sequence(NamedTuple):
    """The placements of a request and their rows; holding the placements keeps their ids valid."""

    placements: Sequence[Placement]
    rows: NDArray[np.intp]


def best_points(measurements: Iterable[Measurement]) -> dict[Placement, list[Measurement]]:
    """Returns one measurement for each placement and batch size, by ascending batch size."""
    best: dict[Placement, dict[int, Measurement]] = {}
    for row in measurements:
        by_batch = best.setdefault(Placement(row.variant_id, row.device_class), {})
        rival = by_batch.get(row.batch)
        if rival is None or (rival.trusted, rival.measured_at) <= (row.trusted, row.measured_at):
            by_batch[row.batch] = row
    return _ascending(best)


def _with_predicted(
    measured: Mapping[Placement, Sequence[Measurement]], predicted: Iterable[PlacementFigures]
) -> dict[Placement, list[PlacementFigures]]:
    """Returns measurements, and predictions where there are none, by ascending batch size."""
    every: dict[Placement, dict[int, PlacementFigures]] = {
        placement: {row.batch: row for row in rows} for placement, rows in measured.items()
    }
    for row in predicted:
        every.setdefault(row.placement, {}).setdefault(row.batch, row)
    return _ascending(every)


def _ascending(rows: Mapping[Placement, Mapping[int, _Row]]) -> dict[Placement, list[_Row]]:
    return {
        placement: [by_batch[batch] for batch in sorted(by_batch)]
        for placement, by_batch in rows.items()
    }


def _curves(
    points: Sequence[Sequence[PlacementFigures]],
) -> list[tuple[NDArray[np.intp], BatchCurves, BatchCurves]]:
    """Returns (rows, latency, memory) of each group of placements with the same batch sizes."""
    alike: dict[tuple[int, ...], list[int]] = {}
    for row, measured in enumerate(points):
        alike.setdefault(tuple(point.batch for point in measured), []).append(row)
    curves = []
    for batches, rows in alike.items():
        by_batch = list(zip(*(points[row] for row in rows), strict=True))
        latency = [np.transpose([(p.p50_s, p.p90_s, p.p99_s) for p in same]) for same in by_batch]
        memory = [[[float(p.memory_bytes) for p in same]] for same in by_batch]
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
