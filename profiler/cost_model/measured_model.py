"""The cost model: what was measured, interpolated over batch, corrected by what is seen."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError
from modelless.profiler.cost_model.online.corrections import Corrections
from modelless.profiler.cost_model.online.coverage import Coverage
from modelless.profiler.cost_model.online.settings import ResidualSettings
from modelless.profiler.cost_model.slowdowns import PairRun, fit_slowdowns, streaming_rates
from modelless.profiler.measure.measurement import Measurement
from modelless.variants.estimates import Estimates, Load
from modelless.variants.vocabulary import Placement

# Placements' figures over batch size: through the measured points, never decreasing.


class BatchCurves:
    """Figures of placements measured at the same batches, as functions of the batch.

    Between measured batches they are linear. Beyond the last they go on with the steeper of the
    last segment's slope and the slope from first to last point, so that one point that came out
    flat by chance does not promise free batches; from a single point they grow in proportion to
    the batch.
    Before the first they keep its value: a smaller batch takes at most as long. A point below an
    earlier one is lifted to it: more items never take less.

    Args:
        batches: the m measured batches, ascending, distinct, 1 or more.
        figures: shape (m, k, n): k figures of n placements; finite, 0 or more.
        ascending: the k figures of a placement ascend (p50, p90, p99): keep them so where
            extrapolation would cross them.
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
        """The figures at ``batch`` items, shape (k, n)."""
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


FloatArray = NDArray[np.float64]

# Rows of a table of figures; the three latency quantiles come before these.
_MEMORY, _LOAD = 3, 4
# Bounds of the caches: batches, sequences of placements, single placements, answers.
_TABLES_KEPT = 64
_SEQUENCES_KEPT = 64
_PLACEMENTS_KEPT = 100_000
_ANSWERS_KEPT = 128


class Drift(NamedTuple):
    """A placement whose profile no longer holds: it should be profiled again.

    Attributes:
        placement: which.
        factor: its latency now over what was measured, on an idle host.
        alarms: how often a change was found.
        at_s: when last, on the driver's clock (``Load.at_s``).
    """

    placement: Placement
    factor: float
    alarms: int
    at_s: float


class Figures(Protocol):
    """What is known of a placement at a batch; ``Measurement`` has it."""

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


class MeasuredCostModel:
    """A ``CostModel`` from measurements, and what they let suppose.

    Latency quantiles and memory follow each placement's measured batches (see ``BatchCurves``);
    load time is the median of its measurements, or of what is supposed. What was neither measured
    nor supposed is infinitely slow.
    ``observe`` corrects the three quantiles of a placement, each on its own, by what is seen under
    each load, and what placements of a device class have in common carries over to the others (see
    ``Corrections``).

    Answers are read-only arrays and may be shared between calls. Not safe for use from several
    threads at once: one caller, as in the sans-I/O cores.

    Args:
        measurements: of one machine; see ``Records.current``. Where several tell of one placement
            and batch, a trusted one wins over one that is not, then the newest.
        residuals: how corrections learn.
        pair_runs: of the same machine; what is expected of busy neighbours before any is seen.
        supposed: what is expected at points that were not measured; a measurement goes before.
    """

    def __init__(
        self,
        measurements: Iterable[Measurement],
        residuals: ResidualSettings | None = None,
        pair_runs: Iterable[PairRun] = (),
        supposed: Iterable[Figures] = (),
    ) -> None:
        measured = best_points(measurements)
        points = _with_supposed(measured, supposed)
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
        settings = residuals or ResidualSettings()
        self._least_drift_log = settings.shift.least_deviation
        self._corrections = Corrections([*groups, 0], settings, [*contention, 0.0])
        self._unknown_count = 0  # observations of unknown placements
        self._known_factors: tuple[_Sequence, int, float, FloatArray] | None = None
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
        return self._unknown_count + sum(each.ignored for each in self._corrections.counters)

    def correction(self, placement: Placement) -> float:
        """The factor of ``placement``'s median on an idle host now; 1 if unknown."""
        row = self._row_of.get(placement)
        return 1.0 if row is None else self._corrections.factor(row)

    def coverage(self) -> tuple[Coverage, ...]:
        """How the predictions fared lately, by device class; without those that saw none."""
        counters = zip(self._corrections.counters, self._device_classes, strict=False)
        found = [counter.snapshot(device_class) for counter, device_class in counters]
        return tuple(snapshot for snapshot in found if snapshot is not None)

    def drifts(self) -> tuple[Drift, ...]:
        """Placements that have shifted and are not back where their profile has them."""
        corrections = self._corrections
        return tuple(
            Drift(self._placements[row], factor, mark.alarms, mark.at_s)
            for row, mark in corrections.shifted.items()
            if abs(math.log(factor := corrections.factor(row))) >= self._least_drift_log
        )

    def estimate(self, placements: Sequence[Placement], batch: int, load: Load) -> Estimates:
        """See ``CostModel.estimate``. Quickest where the same tuple is asked about again.

        Raises:
            InvalidInputError: a batch below 1.
        """
        if batch < 1:
            raise InvalidInputError.of("batch", batch, "1 or more")
        sequence = self._sequence(placements)
        busy = load.busy_neighbours
        version = self._corrections.version
        key = (id(sequence), batch, busy)
        known = self._answers.get(key)
        if known is not None and known[0] is sequence and known[1] == version:
            return known[2]
        figures = self._table(batch).take(sequence.rows, axis=1)
        latencies = figures[:_MEMORY]
        latencies *= self._factors(sequence, busy)
        np.maximum.accumulate(latencies, axis=0, out=latencies)
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
            self._unknown_count += 1
            return
        p50_s, p90_s, p99_s = self._table(batch)[:_MEMORY, row].tolist()
        self._corrections.observe(
            row, (p50_s, p90_s, p99_s), load.busy_neighbours, load.at_s, latency_s
        )

    def doubt(self, placements: Sequence[Placement], at_s: float) -> None:
        """See ``CostModel.doubt``. What was seen of them fades if nothing shows it any more."""
        self._corrections.doubt(self._sequence(placements).rows, at_s)

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

    def _factors(self, sequence: _Sequence, busy_neighbours: float) -> FloatArray:
        """The corrections, shape (3, n); alike for all batches, which are asked about in a row."""
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


def best_points(measurements: Iterable[Measurement]) -> dict[Placement, list[Measurement]]:
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


def _with_supposed(
    measured: Mapping[Placement, Sequence[Measurement]], supposed: Iterable[Figures]
) -> dict[Placement, list[Figures]]:
    """By ascending batch; what was measured goes before what is supposed."""
    every: dict[Placement, dict[int, Figures]] = {
        placement: {row.batch: row for row in rows} for placement, rows in measured.items()
    }
    for row in supposed:
        every.setdefault(row.placement, {}).setdefault(row.batch, row)
    return {
        placement: [by_batch[batch] for batch in sorted(by_batch)]
        for placement, by_batch in every.items()
    }


def _curves(
    points: Sequence[Sequence[Figures]],
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
