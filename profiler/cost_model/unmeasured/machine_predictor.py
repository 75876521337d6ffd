"""Predicts this machine's placements from its measurements and from those of other devices.

``profile --budget``, ``up``, ``select`` and ``costmodel predict`` use this model. Each device class
is predicted by a ``DevicePredictor``, which ``costmodel evaluate`` tests. It learns from the
knowledge base and from the machine's other classes, and the class's own measurements are its shots.
While they are few, the rates of the machine's classes replace the roofline's constants.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np

from modelless.profiler.cost_model.serving_model import PlacementFigures
from modelless.profiler.cost_model.unmeasured.device_predictor import DevicePredictor
from modelless.profiler.cost_model.unmeasured.features import NO_RATES, IntArray
from modelless.profiler.cost_model.unmeasured.prior import Prior
from modelless.profiler.cost_model.unmeasured.snapshot import shipped_snapshot
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.table import SOURCE, PlacementFacts, TableRow
from modelless.variants.estimates import FloatArray
from modelless.variants.vocabulary import Placement

Point = tuple[Placement, int]
"""A placement at a batch size."""

LEAST_OWN = 10
"""The measured points of a device class from which they are used in place of its rates."""

MOST_SHOTS = 600
"""The most own measurements that a device class is predicted from; more are thinned out evenly."""

# Quantiles of a Student t distribution with four degrees of freedom over its quantile of 95 %, the
# upper end of the predictor's band. The errors have tails of about that weight.
_MEDIAN_OF_BAND, _P90_OF_BAND, _P99_OF_BAND = 0.741 / 2.132, 1.533 / 2.132, 3.747 / 2.132
_REBUILD_FACTOR = 1.5  # growth of what is known of other classes after which they are learned anew
_SIZES = ("params_m", "gmacs", "mactivations_m", "layers")
_SAME_SIZE_FACTOR = 1.5  # the most by which two counts for one model may differ


Shot = TypeVar("Shot")


@dataclass(frozen=True, slots=True)
class ExpectedLatency:
    """Latencies expected at n points.

    Attributes:
        median_s: shape (n,).
        band_log: half of the central 90 % band of a measurement, in log latency, shape (n,).
    """

    median_s: FloatArray
    band_log: FloatArray

    @property
    def error_log(self) -> FloatArray:
        """The median distance of a measurement from the median, in log latency, shape (n,)."""
        return _MEDIAN_OF_BAND * self.band_log

    @property
    def p90_log(self) -> FloatArray:
        """How far one measurement in 10 exceeds the median, in log latency, shape (n,)."""
        return _P90_OF_BAND * self.band_log

    @property
    def p99_log(self) -> FloatArray:
        """How far one measurement in 100 exceeds the median, in log latency, shape (n,)."""
        return _P99_OF_BAND * self.band_log


class MachinePredictor:
    """Predicts the latency of placements at batch sizes.

    Args:
        prior: the covariance and the roofline.
        placements: facts of each placement.
        batches: batch sizes to predict, of all placements or by placement.
        knowledge: measured rows of other devices; see ``knowledge_base``. Without any, the shipped
            snapshot tells of the models that it has.

    Attributes:
        points: all placements at their batch sizes.
    """

    def __init__(
        self,
        prior: Prior,
        placements: Mapping[Placement, PlacementFacts],
        batches: Sequence[int] | Mapping[Placement, Sequence[int]],
        knowledge: Sequence[TableRow] = (),
    ) -> None:
        self.points: tuple[Point, ...] = tuple(
            (placement, batch)
            for placement in placements
            for batch in (batches[placement] if isinstance(batches, Mapping) else batches)
        )
        self._prior = prior
        self._row_of = {point: row for row, point in enumerate(self.points)}
        own = [placements[placement].row(batch, 1.0) for placement, batch in self.points]
        snapshot = () if knowledge else shipped_snapshot()
        names = ItemNames(knowledge or snapshot, own)
        self._rows = [names.rename(row) for row in own]
        items = {row.item for row in self._rows}
        known = [*knowledge, *(row for row in snapshot if row.item in items)]
        self._knowledge = list(dict.fromkeys(names.rename(row) for row in known))
        self._classes: dict[str, list[int]] = {}
        for row, (placement, _) in enumerate(self.points):
            self._classes.setdefault(placement.device_class, []).append(row)
        self._predictors: dict[tuple[str, bool], tuple[int, DevicePredictor]] = {}
        self._rates = {
            (row.device, row.engine): rates
            for (placement, _), row in zip(self.points, self._rows, strict=True)
            if (rates := placements[placement].rates) is not None
        }

    def fit(self, measured: Iterable[PlacementFigures]) -> FittedMachine:
        """Returns the model conditioned on the measurements; those of other points are ignored."""
        known = [row for row in measured if (row.placement, row.batch) in self._row_of]
        latency_ms = {self._row_of[row.placement, row.batch]: row.p50_s * 1e3 for row in known}
        return FittedMachine(
            [self._fit_class(name, rows, latency_ms) for name, rows in self._classes.items()]
        )

    def rows(self, points: Iterable[Point]) -> IntArray:
        """Returns the indices of these points in ``points``."""
        return np.array([self._row_of[point] for point in points], dtype=np.intp)

    def learned_from(self, device_class: str) -> list[LearnedDevice]:
        """Returns the devices of the knowledge base that a class learns from, the nearest first."""
        items = {self._rows[row].item for row in self._classes[device_class]}
        by_device: dict[tuple[str, str], list[TableRow]] = {}
        for row in self._predictor(device_class, {}).learned:
            by_device.setdefault((row.device, row.device_kind), []).append(row)
        found = [
            LearnedDevice(*key, len(some), len({row.item for row in some} & items))
            for key, some in by_device.items()
        ]
        return sorted(found, key=lambda one: (-one.same_items, -one.rows))

    def _fit_class(
        self, name: str, rows: Sequence[int], latency_ms: Mapping[int, float]
    ) -> _FittedClass:
        own = [row for row in rows if row in latency_ms]
        predictor = self._predictor(name, latency_ms)
        own = thin_out(own)
        place = {row: at for at, row in enumerate(rows)}
        return _FittedClass(
            place,
            predictor,
            np.array([place[row] for row in own], dtype=np.intp),
            np.array([latency_ms[row] for row in own]),
        )

    def _predictor(self, name: str, latency_ms: Mapping[int, float]) -> DevicePredictor:
        """Returns the predictor of a class, from what was measured of the others."""
        rows = self._classes[name]
        others = [row for row in latency_ms if self.points[row][0].device_class != name]
        is_rated = sum(row in latency_ms for row in rows) < LEAST_OWN
        count, predictor = self._predictors.get((name, is_rated), (0, None))
        if predictor is None or len(others) > _REBUILD_FACTOR * count:
            training = [replace(self._rows[row], latency_ms=latency_ms[row]) for row in others]
            predictor = DevicePredictor(
                self._prior,
                [*training, *self._knowledge],
                [self._rows[row] for row in rows],
                self._rates if is_rated else NO_RATES,
            )
            self._predictors[name, is_rated] = len(others), predictor
        return predictor


@dataclass(frozen=True, slots=True)
class LearnedDevice:
    """A device that predictions learn from.

    Attributes:
        name, kind: the device.
        rows: number of its rows that are used.
        same_items: number of the predicted items that were measured on it.
    """

    name: str
    kind: str
    rows: int
    same_items: int


class FittedMachine:
    """A ``MachinePredictor`` that is conditioned on measurements."""

    def __init__(self, classes: Sequence[_FittedClass]) -> None:
        self._classes = classes

    def predict(self, rows: IntArray) -> ExpectedLatency:
        """Returns the latencies that measurements of these points would find."""
        found = np.empty((2, len(rows)))
        for known, at, places in self._by_class(rows):
            told = known.predictor.predict(known.shots, known.latency_ms, places)
            found[:, at] = told.median_ms / 1e3, np.log(told.high_ms / told.median_ms)
        return ExpectedLatency(*found)

    def covariance(self, rows: IntArray) -> tuple[FloatArray, float]:
        """Returns the covariance of the predictions of n points.

        Points of different device classes are taken as uncorrelated.

        Returns:
            The covariance of the log latencies without noise, shape (n, n), and the noise variance
            of one measurement.
        """
        total = np.zeros((len(rows), len(rows)))
        noise_variances = []
        for known, at, places in self._by_class(rows):
            total[np.ix_(at, at)], noise_variance = known.predictor.covariance(
                known.shots, known.latency_ms, places
            )
            noise_variances += [noise_variance] * len(at)
        return total, float(np.mean(noise_variances))

    def _by_class(self, rows: IntArray) -> Iterator[tuple[_FittedClass, IntArray, IntArray]]:
        """Yields each class of these points, which of them are its own, and their places in it."""
        wanted = rows.tolist()
        for known in self._classes:
            at = [number for number, row in enumerate(wanted) if row in known.place]
            if at:
                places = [known.place[wanted[number]] for number in at]
                yield known, np.array(at, dtype=np.intp), np.array(places, dtype=np.intp)


class _FittedClass(NamedTuple):
    """One device class, conditioned on its measurements.

    Attributes:
        place: the place of each row of the model among the predictor's.
        predictor: predicts the class.
        shots, latency_ms: its measured places and their latencies.
    """

    place: Mapping[int, int]
    predictor: DevicePredictor
    shots: IntArray
    latency_ms: FloatArray


def thin_out(shots: Sequence[Shot]) -> list[Shot]:
    """Returns ``MOST_SHOTS`` of the shots, spread evenly; all of fewer."""
    if len(shots) <= MOST_SHOTS:
        return list(shots)
    return [shots[at] for at in np.linspace(0, len(shots) - 1, MOST_SHOTS).astype(int)]


class ItemNames:
    """Renames this registry's items to the names that an imported table has for them.

    All rows of the registry take the source of the table with most of its models, because a
    predictor compares devices within a source. An item is the same if the model has the same name,
    the resolutions do not differ, and the multiply-adds or weights agree.

    Args:
        knowledge: measured rows of other devices.
        own: rows of the registry.
    """

    def __init__(self, knowledge: Iterable[TableRow], own: Iterable[TableRow]) -> None:
        by_source: dict[str, dict[Hashable, TableRow]] = {}
        for row in knowledge:
            if row.source != SOURCE:
                by_source.setdefault(row.source, {}).setdefault(_name(row), row)
        items = list({row.item: row for row in own}.values())
        best, count = SOURCE, 0
        for source in sorted(by_source):
            matched = sum(_find(by_source[source], row) is not None for row in items)
            if matched > count:
                best, count = source, matched
        self._source = best
        self._items = by_source.get(best, {})

    def rename(self, row: TableRow) -> TableRow:
        """Returns a row of the registry with the table's names and sizes; others as they are."""
        if row.source != SOURCE or self._source == SOURCE:
            return row
        same = _find(self._items, row)
        if same is None:
            return replace(row, source=self._source)
        return replace(
            row,
            source=self._source,
            task=same.task,
            model=same.model,
            family=same.family or row.family,
            resolution_px=same.resolution_px,
            **{name: getattr(same, name) or getattr(row, name) for name in _SIZES},
        )


def _find(items: Mapping[Hashable, TableRow], row: TableRow) -> TableRow | None:
    """Returns the row of the same item; None if there is none."""
    name, resolution_px = _name(row)
    for key in ((name, resolution_px), (name, None)):
        found = items.get(key)
        if found is not None and all(
            _agree(getattr(found, size), getattr(row, size)) for size in ("gmacs", "params_m")
        ):
            return found
    return None


def _agree(one: float | None, other: float | None) -> bool:
    return not one or not other or max(one / other, other / one) <= _SAME_SIZE_FACTOR


def _name(row: TableRow) -> tuple[str, int | None]:
    return re.sub(r"[^a-z0-9]+", "-", row.model.lower()).strip("-"), row.resolution_px


def leave_one_batch_out(
    prior: Prior, placements: Mapping[Placement, PlacementFacts]
) -> Callable[[Sequence[Measurement]], list[float]]:
    """Returns a function that predicts each measured point from those of all other batch sizes.

    Args:
        prior: the covariance and the roofline.
        placements: what is known of each placement.

    Returns:
        A function from measurements to predicted medians, seconds; a point of a placement that is
        not in ``placements`` is infinitely slow.
    """

    def predict(points: Sequence[Measurement]) -> list[float]:
        batches = sorted({point.batch for point in points})
        known = {
            row.placement: placements[row.placement]
            for row in points
            if row.placement in placements
        }
        found: dict[Point, float] = {}
        for batch in batches:
            model = MachinePredictor(prior, known, batches)
            fitted = model.fit(point for point in points if point.batch != batch)
            wanted = [(placement, batch) for placement in known]
            median_s = fitted.predict(model.rows(wanted)).median_s
            found.update(zip(wanted, median_s.tolist(), strict=True))
        return [found.get((point.placement, point.batch), math.inf) for point in points]

    return predict
