"""Proxies: other devices' latencies of the same items, and the level that they suggest.

A contrast is how a proxy's rows differ from each other beyond what is expected; it says nothing of
the level. Before anything of a device is measured, its level comes from similar devices: those of
its kind that ran the same items, each moved by what is published of both.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np

from modelless.profiler.cost_model.unmeasured.features import (
    NO_RATES,
    RatesByDevice,
    item_latency_log,
    normalise_precision,
)
from modelless.profiler.cost_model.unmeasured.roofline import measured_unit_ms
from modelless.profiler.devices.known_devices import find_known_device
from modelless.profiler.measure.table import TableRow
from modelless.variants.estimates import FloatArray

_LEAST_MATCHED = 0.5  # share of the wanted rows that a proxy must have
_SPEED_SHARE = 0.7  # of a difference in published speed that latencies show
_GENERAL_WEIGHT = 0.5  # of the level expected without similar devices; each of them weighs 1
# Figures of devices that are compared, the first of each group that both devices have.
_SPEEDS = (
    ("int8_operations_per_s", "fp16_operations_per_s", "fp32_operations_per_s"),
    ("bandwidth_bytes_per_s",),
)


def proxies_of(training: Sequence[TableRow], wanted: Sequence[TableRow]) -> FloatArray:
    """Returns the log milliseconds an item on each device that has enough of the items.

    Args:
        training: measured rows.
        wanted: n rows to predict.

    Returns:
        Shape (p, n), a row for each of p devices; NaN where a device has no such item.
    """
    by_device = _by_device(training)
    found = [_match(known, item_latency_log(known), wanted) for known in by_device.values()]
    kept = [each for each in found if np.isfinite(each).sum() >= _LEAST_MATCHED * len(wanted)]
    return np.array(kept).reshape(len(kept), len(wanted))


def contrasts_of(proxies: FloatArray, expected_log: FloatArray) -> FloatArray:
    """Returns the difference between each proxy and the expectation, without its level.

    A contrast says only how rows differ from each other.

    Args:
        proxies: see ``proxies_of``.
        expected_log: expected log milliseconds an item of each wanted row, shape (n,).

    Returns:
        Shape (p, n); NaN where a device has no such item.
    """
    if not proxies.size:
        return np.empty((0, len(expected_log)))
    apart = proxies - expected_log
    return np.asarray(apart - np.nanmedian(apart, axis=1, keepdims=True))


def fill_in(contrasts: FloatArray) -> FloatArray:
    """Returns the contrasts with each NaN replaced by the other proxies' median there, or 0."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # for rows that no device has
        usual = np.nan_to_num(np.nanmedian(contrasts, axis=0)) if len(contrasts) else contrasts
    return np.where(np.isnan(contrasts), usual, contrasts)


class SimilarDevices(NamedTuple):
    """What the devices of the same kind that ran the same items say of a device.

    Attributes:
        level_log: how much slower than expected they suggest that it is, in log latency.
        error_log: nine in ten rows of a further device are within this of their median, in log
            latency, judged by the distance of each from the others. Of a single one it is 0 if the
            speeds of both devices are known, or else None: it may be anything.
    """

    level_log: float
    error_log: float | None


def find_similar_devices(
    training: Sequence[TableRow],
    wanted: Sequence[TableRow],
    expected_log: FloatArray,
    rates: RatesByDevice = NO_RATES,
) -> SimilarDevices | None:
    """Returns what similar devices say of a device; None if there are none.

    If the device's rates were measured, only devices with rates are similar.

    Args:
        training: measured rows of other devices.
        wanted: n rows to predict.
        expected_log: expected log milliseconds an item of each wanted row, shape (n,).
        rates: see ``encode``.
    """
    if not wanted:
        return None
    kind = _usual_kind(wanted)
    is_rated = _key_of(wanted[0]) in rates
    found = [
        (proxy, _speed_log(wanted[0], rows[0], kind, rates))
        for rows in _by_device(training).values()
        if _usual_kind(rows) == kind and (_key_of(rows[0]) in rates or not is_rated)
        for proxy in proxies_of(rows, wanted)
    ]
    if not found:
        return None
    moved = np.array([proxy - _SPEED_SHARE * (speed_log or 0.0) for proxy, speed_log in found])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # for rows that no device has
        level_log = float(np.nanmedian(np.nanmedian(moved, axis=0) - expected_log))
        level_log *= len(moved) / (len(moved) + _GENERAL_WEIGHT)
        if len(moved) == 1:
            return SimilarDevices(level_log, None if found[0][1] is None else 0.0)
        others = np.array(
            [
                moved[number] - np.nanmedian(np.delete(moved, number, axis=0), axis=0)
                for number in range(len(moved))
            ]
        )
        levels = np.nanmedian(others, axis=1)
        shapes = np.abs(others - levels[:, None])
        error_log = math.hypot(
            # Few devices show little of how far apart devices lie.
            np.nanquantile(np.abs(levels), min(1.0, 0.9 + 0.9 / len(moved)))
            * math.sqrt((len(moved) + 1) / (len(moved) - 1)),
            np.nan_to_num(np.nanquantile(shapes, 0.9)),
        )
    return SimilarDevices(level_log, error_log)


def _usual_kind(rows: Sequence[TableRow]) -> str:
    return Counter(row.device_kind for row in rows).most_common(1)[0][0]


def _speed_log(one: TableRow, other: TableRow, kind: str, rates: RatesByDevice) -> float | None:
    """Returns the log of how much faster a row's device is than another's; None if it is unknown.

    It follows the measured rates of both, or else the published figures.
    """
    measured = [
        measured_unit_ms(known, normalise_precision(row.precision))
        for row in (one, other)
        if (known := rates.get(_key_of(row))) is not None
    ]
    if len(measured) == 2 and measured[0] is not None and measured[1] is not None:
        return float(np.log(measured[1] / measured[0]).mean())
    mine, theirs = (find_known_device(row.device, kind) for row in (one, other))
    ratios = []
    for names in _SPEEDS:
        pairs = ((getattr(mine, name, None), getattr(theirs, name, None)) for name in names)
        ratios += [math.log(own / his) for own, his in pairs if own and his][:1]
    return statistics.fmean(ratios) if ratios else None


def _key_of(row: TableRow) -> tuple[str, str]:
    return row.device, row.engine


def _by_device(rows: Sequence[TableRow]) -> dict[Hashable, list[TableRow]]:
    found: dict[Hashable, list[TableRow]] = {}
    for row in rows:
        found.setdefault((row.source, row.device), []).append(row)
    return found


def _match(
    known: Sequence[TableRow], known_log: FloatArray, wanted: Sequence[TableRow]
) -> FloatArray:
    """Returns the log latency of the row most like each wanted row; NaN where there is none."""
    keys: list[Callable[[TableRow], Hashable]] = [
        lambda row: (*row.item, row.engine, row.precision, row.batch, row.concurrency),
        lambda row: (*row.item, normalise_precision(row.precision), row.batch, row.concurrency),
        lambda row: (*row.item, row.batch, row.concurrency),
        lambda row: row.item,
    ]
    found = np.full(len(wanted), np.nan)
    for key in keys:
        by_key: dict[Hashable, list[float]] = {}
        for row, value in zip(known, known_log.tolist(), strict=True):
            by_key.setdefault(key(row), []).append(value)
        for position, row in enumerate(wanted):
            if np.isnan(found[position]) and (values := by_key.get(key(row))):
                found[position] = float(np.mean(values))
    return found
