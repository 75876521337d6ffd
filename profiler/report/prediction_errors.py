"""How well latencies are predicted that the cost model has not seen.

Every measured point is predicted by a model that was made without it (leave-one-out
cross-validation; Hastie, Tibshirani and Friedman, "The Elements of Statistical Learning", 2009,
sec. 7.10): an error on points that the model was made of would flatter it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.report.profiles import Profile

PredictWithout = Callable[[Sequence[Measurement]], Sequence[float]]
"""Predicts the median latency, seconds, of each point by a model that has not seen it; infinite
where nothing can be said. All points are of one machine."""

CLOSE_PERCENT: Final = 10.0
"""An error up to this counts as close, and is where the picture has its lines."""

_MOST_BINS: Final = 40
_WIDTHS_PERCENT: Final = (1.0, 2.0, 5.0, 10.0, 20.0)
_FARTHEST_PERCENT: Final = 400.0


@dataclass(frozen=True, slots=True)
class PredictedPoint:
    """A point and its prediction.

    Attributes:
        variant, name, task, device, batch: the point; ``name`` is short.
        measured_ms, predicted_ms: median latency of the whole batch.
        error_percent: by how much the prediction is too long, as a share of what was measured.
        is_between: smaller and larger batches of the placement were measured: the model could
            interpolate, else it had to extrapolate.
    """

    variant: str
    name: str
    task: str
    device: str
    batch: int
    measured_ms: float
    predicted_ms: float
    error_percent: float
    is_between: bool


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Errors in a few figures, per cent; None where there is no point.

    Attributes:
        bias_percent: the median error; above 0 where predictions are too long.
        close_percent: share of points whose error is at most ``CLOSE_PERCENT``.
    """

    points: int
    median_absolute_percent: float | None
    p90_absolute_percent: float | None
    bias_percent: float | None
    close_percent: float | None


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of errors in bins of one width; what is beyond the outer edges is in the outer bins.

    Attributes:
        edges_percent: one more than there are bins; empty without points.
        between, beyond: counts of interpolated and extrapolated points.
    """

    edges_percent: tuple[float, ...]
    between: tuple[int, ...]
    beyond: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PredictionFigure:
    """Predictions of points that the cost model had not seen.

    Attributes:
        unpredicted: points about which the model said nothing.
        between, beyond: errors of interpolated and extrapolated points.
    """

    points: tuple[PredictedPoint, ...]
    unpredicted: int
    between: ErrorSummary
    beyond: ErrorSummary
    histogram: Histogram


def prediction_figure(
    profiles: Sequence[Profile], predict_without: PredictWithout
) -> PredictionFigure:
    """The figure of profiles of any tasks and devices.

    Args:
        predict_without: asked once for each machine, about all its points.
    """
    found: list[PredictedPoint] = []
    unpredicted = 0
    for machine in dict.fromkeys(profile.device.fingerprint for profile in profiles):
        mine = [profile for profile in profiles if profile.device.fingerprint == machine]
        pairs = [(profile, point) for profile in mine for point in profile.points]
        predictions_s = predict_without([point for _, point in pairs])
        for (profile, point), predicted_s in zip(pairs, predictions_s, strict=True):
            if math.isfinite(predicted_s):
                found.append(_point(profile, point, predicted_s))
            else:
                unpredicted += 1
    between = [point.error_percent for point in found if point.is_between]
    beyond = [point.error_percent for point in found if not point.is_between]
    return PredictionFigure(
        tuple(found),
        unpredicted,
        summary_of(between),
        summary_of(beyond),
        histogram(between, beyond),
    )


def summary_of(errors_percent: Sequence[float]) -> ErrorSummary:
    """The figures of errors, per cent; quantiles are linear between points."""
    if not errors_percent:
        return ErrorSummary(0, None, None, None, None)
    errors = np.asarray(errors_percent, dtype=np.float64)
    absolute = np.abs(errors)
    return ErrorSummary(
        len(errors),
        float(np.median(absolute)),
        float(np.quantile(absolute, 0.9)),
        float(np.median(errors)),
        float(100.0 * np.mean(absolute <= CLOSE_PERCENT)),
    )


def histogram(between: Sequence[float], beyond: Sequence[float]) -> Histogram:
    """Errors, per cent, in bins of a round width that begin at a multiple of it."""
    every = [*between, *beyond]
    if not every:
        return Histogram((), (), ())
    low, high = (
        max(-_FARTHEST_PERCENT, min(_FARTHEST_PERCENT, end)) for end in (min(every), max(every))
    )
    for width in _WIDTHS_PERCENT:
        first, last = math.floor(low / width), math.floor(high / width) + 1
        if last - first <= _MOST_BINS:
            break
    edges = [width * place for place in range(first, last + 1)]
    counts = (np.histogram(np.clip(each, low, high), edges)[0] for each in (between, beyond))
    one, other = (tuple(int(count) for count in each) for each in counts)
    return Histogram(tuple(edges), one, other)


def _point(profile: Profile, point: Measurement, predicted_s: float) -> PredictedPoint:
    return PredictedPoint(
        profile.variant.id,
        profile.name,
        profile.variant.task,
        profile.device.name,
        point.batch,
        point.p50_s * 1e3,
        predicted_s * 1e3,
        100.0 * (predicted_s / point.p50_s - 1.0),
        profile.points[0].batch < point.batch < profile.points[-1].batch,
    )
