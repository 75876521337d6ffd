"""Predicts this machine's placements from its measurements and from those of other devices.

``profile --budget``, ``up``, ``select`` and ``costmodel predict`` use this model. Each device class
is predicted by a ``Predictor``, which ``costmodel evaluate`` tests. It learns from the knowledge
base and from the machine's other classes, and the class's own measurements are its shots. If a
class has few measurements but known rates, ``PlacementModel`` predicts it from the rates, too, and
each of the two predictions is weighted by how certain it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from modelless.profiler.cost_model.learned.calibration import MEDIAN_OF_NORMAL
from modelless.profiler.cost_model.learned.placement_model import (
    LEAST_OWN,
    ExpectedLatency,
    FittedPlacements,
    PlacementModel,
    Point,
)
from modelless.profiler.cost_model.learned.predictor import Predictor
from modelless.profiler.cost_model.learned.prior import Prior
from modelless.profiler.cost_model.measured_model import PlacementFigures
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.table import SOURCE, PlacementFacts, TableRow
from modelless.variants.estimates import FloatArray
from modelless.variants.vocabulary import Placement

IntArray = NDArray[np.intp]

MOST_LEARNED = 1000
"""The most rows of other devices that a device class learns from; the time grows with the cube."""

MOST_SHOTS = 600
"""The most own measurements that a device class is predicted from; more are thinned out evenly."""

# Quantiles of a Student t distribution with four degrees of freedom over its quantile of 95 %, the
# upper end of the predictor's band. The errors have tails of about that weight.
_MEDIAN_OF_BAND, _P90_OF_BAND, _P99_OF_BAND = 0.741 / 2.132, 1.533 / 2.132, 3.747 / 2.132
_REBUILD_FACTOR = 1.5  # growth of what is known of other classes after which they are learned anew
_SAME_SIZE_FACTOR = 1.5  # the most by which two counts for one model may differ


class FleetModel:
    """Predicts the latency of placements at batch sizes.

    Args:
        prior: the covariance and the roofline.
        placements: facts of each placement.
        batches: batch sizes to predict.
        knowledge: measured rows of other devices; see ``knowledge_base``.

    Attributes:
        points: all placements at all batch sizes.
    """

    def __init__(
        self,
        prior: Prior,
        placements: Mapping[Placement, PlacementFacts],
        batches: Sequence[int],
        knowledge: Sequence[TableRow] = (),
    ) -> None:
        self.points: tuple[Point, ...] = tuple(
            (placement, batch) for placement in placements for batch in batches
        )
        self._prior = prior
        self._row_of = {point: row for row, point in enumerate(self.points)}
        own = [placements[placement].row(batch, 1.0) for placement, batch in self.points]
        names = ItemNames(knowledge, own)
        self._rows = [names.rename(row) for row in own]
        self._knowledge = list(dict.fromkeys(names.rename(row) for row in knowledge))
        self._classes: dict[str, list[int]] = {}
        for row, (placement, _) in enumerate(self.points):
            self._classes.setdefault(placement.device_class, []).append(row)
        self._predictors: dict[str, tuple[int, Predictor]] = {}
        rated = any(facts.rates is not None for facts in placements.values())
        self._by_rates = PlacementModel(prior, placements, batches) if rated else None

    def fit(self, measured: Iterable[PlacementFigures]) -> FittedFleet:
        """Returns the model conditioned on the measurements; those of other points are ignored."""
        known = [row for row in measured if (row.placement, row.batch) in self._row_of]
        latency_ms = {self._row_of[row.placement, row.batch]: row.p50_s * 1e3 for row in known}
        by_rates = self._by_rates.fit(known) if self._by_rates is not None else None
        classes = [
            self._fit_class(name, rows, latency_ms, by_rates)
            for name, rows in self._classes.items()
        ]
        return FittedFleet(classes)

    def rows(self, points: Iterable[Point]) -> IntArray:
        """Returns the indices of these points in ``points``."""
        return np.array([self._row_of[point] for point in points], dtype=np.intp)

    def learned_from(self, device_class: str) -> list[LearnedDevice]:
        """Returns the devices of the knowledge base that a class learns from, the nearest first."""
        rows = [self._rows[row] for row in self._classes[device_class]]
        items = {row.item for row in rows}
        by_device: dict[tuple[str, str], list[TableRow]] = {}
        for row in _most_relevant(self._knowledge, rows):
            by_device.setdefault((row.device, row.device_kind), []).append(row)
        return [
            LearnedDevice(*key, len(some), len({row.item for row in some} & items))
            for key, some in by_device.items()
        ]

    def _fit_class(
        self,
        name: str,
        rows: Sequence[int],
        latency_ms: Mapping[int, float],
        by_rates: FittedPlacements | None,
    ) -> _FittedClass:
        others = [row for row in latency_ms if self.points[row][0].device_class != name]
        count, predictor = self._predictors.get(name, (0, None))
        if predictor is None or len(others) > _REBUILD_FACTOR * count:
            training = [replace(self._rows[row], latency_ms=latency_ms[row]) for row in others]
            wanted = [self._rows[row] for row in rows]
            training += _most_relevant(self._knowledge, wanted)
            predictor = Predictor(self._prior, training, wanted)
            self._predictors[name] = len(others), predictor
        own = [row for row in rows if row in latency_ms]
        if by_rates is not None and (len(own) >= LEAST_OWN or not by_rates.is_benchmarked(name)):
            by_rates = None
        if len(own) > MOST_SHOTS:
            own = [own[at] for at in np.linspace(0, len(own) - 1, MOST_SHOTS).astype(int)]
        place = {row: at for at, row in enumerate(rows)}
        return _FittedClass(
            place,
            predictor,
            np.array([place[row] for row in own], dtype=np.intp),
            np.array([latency_ms[row] for row in own]),
            by_rates,
        )


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


class FittedFleet:
    """A ``FleetModel`` that is conditioned on measurements."""

    def __init__(self, classes: Sequence[_FittedClass]) -> None:
        self._classes = classes

    def predict(self, rows: IntArray) -> ExpectedLatency:
        """Returns the latencies that measurements of these points would find."""
        found = np.empty((4, len(rows)))
        for known, at in self._by_class(rows):
            expected = known.predict(rows[at])
            found[:, at] = (
                expected.median_s,
                expected.spread,
                expected.p90_log,
                expected.p99_log,
            )
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
        for known, at in self._by_class(rows):
            total[np.ix_(at, at)], noise_variance = known.covariance(rows[at])
            noise_variances += [noise_variance] * len(at)
        return total, float(np.mean(noise_variances))

    def _by_class(self, rows: IntArray) -> Iterator[tuple[_FittedClass, IntArray]]:
        for known in self._classes:
            at = np.flatnonzero([row in known.place for row in rows.tolist()])
            if len(at):
                yield known, at


@dataclass(frozen=True, slots=True)
class _FittedClass:
    """One device class, conditioned on its measurements.

    Attributes:
        place: the place of each row of the model among the predictor's.
        predictor: predicts the class.
        shots, latency_ms: its measured places and their latencies.
        by_rates: predicts it, too; None if its rates are unknown or no longer needed.
    """

    place: Mapping[int, int]
    predictor: Predictor
    shots: IntArray
    latency_ms: FloatArray
    by_rates: FittedPlacements | None

    def predict(self, rows: IntArray) -> ExpectedLatency:
        """See ``FittedFleet.predict``."""
        found = self.predictor.predict(self.shots, self.latency_ms, self._places(rows))
        band_log = np.log(found.high_ms / found.median_ms)
        expected = ExpectedLatency(
            found.median_ms / 1e3,
            _MEDIAN_OF_BAND / MEDIAN_OF_NORMAL * band_log,
            _P90_OF_BAND * band_log,
            _P99_OF_BAND * band_log,
        )
        return expected if self.by_rates is None else _mix(expected, self.by_rates.predict(rows))

    def covariance(self, rows: IntArray) -> tuple[FloatArray, float]:
        """See ``FittedFleet.covariance``."""
        if self.by_rates is not None:
            return self.by_rates.covariance(rows), self.by_rates.noise_variance
        return self.predictor.covariance(self.shots, self.latency_ms, self._places(rows))

    def _places(self, rows: IntArray) -> IntArray:
        return np.array([self.place[row] for row in rows.tolist()], dtype=np.intp)


def _mix(one: ExpectedLatency, other: ExpectedLatency) -> ExpectedLatency:
    """Returns a mixture in which each prediction counts by the inverse of its variance."""
    share = other.spread**2 / (one.spread**2 + other.spread**2)
    apart = np.log(one.median_s / other.median_s)
    median_s = other.median_s * np.exp(share * apart)
    between = share * (1.0 - share) * apart**2

    def mixed(name: str) -> FloatArray:
        within = share * getattr(one, name) ** 2 + (1.0 - share) * getattr(other, name) ** 2
        return np.asarray(np.sqrt(within + between))

    return ExpectedLatency(median_s, mixed("spread"), mixed("p90_log"), mixed("p99_log"))


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
            family=same.family,
            resolution_px=same.resolution_px,
            params_m=same.params_m,
            gmacs=same.gmacs,
            mactivations_m=same.mactivations_m,
            layers=same.layers,
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


def _most_relevant(knowledge: Sequence[TableRow], wanted: Sequence[TableRow]) -> list[TableRow]:
    """Returns the rows to learn from: those of the same items first, device by device.

    The devices with most of the items come first, those of the same kind before others.
    """
    kind = wanted[0].device_kind
    items = {row.item for row in wanted}
    by_device: dict[Hashable, list[TableRow]] = {}
    for row in knowledge:
        by_device.setdefault((row.source, row.device), []).append(row)

    def nearness(rows: Sequence[TableRow]) -> tuple[int, bool]:
        return -len({row.item for row in rows} & items), rows[0].device_kind != kind

    devices = sorted(by_device.values(), key=nearness)
    same = [row for rows in devices for row in rows if row.item in items][:MOST_LEARNED]
    others = [row for rows in devices for row in rows if row.item not in items]
    others.sort(key=lambda row: row.device_kind != kind)
    of_kind = sum(row.device_kind == kind for row in others)
    left = MOST_LEARNED - len(same)
    pool = others[:of_kind] if of_kind >= left else others
    if len(pool) > left:
        pool = [pool[at] for at in np.linspace(0, len(pool) - 1, left).astype(int)]
    return same + pool


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
            model = FleetModel(prior, known, batches)
            fitted = model.fit(point for point in points if point.batch != batch)
            wanted = [(placement, batch) for placement in known]
            median_s = fitted.predict(model.rows(wanted)).median_s
            found.update(zip(wanted, median_s.tolist(), strict=True))
        return [found.get((point.placement, point.batch), math.inf) for point in points]

    return predict
