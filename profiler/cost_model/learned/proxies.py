"""Proxies: another device's latencies of the very same items, scaled by one factor."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from modelless.profiler.cost_model.learned.points import canonical_precision, latency_log
from modelless.profiler.measure.table import TableRow
from modelless.variants.estimates import FloatArray

IntArray = NDArray[np.intp]

_LEAST_MATCHED = 0.5  # of the wanted rows, for a device to be a proxy
_MOST_CONTRAST = 2.0  # in log latency: farther off it is another thing that was measured


class Proxy(NamedTuple):
    """A device scaled to the measurements of another.

    Attributes:
        log: log milliseconds an item of each wanted row, NaN where the device has no such item.
        errors: what is left of each measurement, NaN as above, shape (k,).
    """

    log: FloatArray
    errors: FloatArray


def proxies_of(training: Sequence[TableRow], wanted: Sequence[TableRow]) -> FloatArray:
    """Log milliseconds an item on each device that has enough of the items, shape (p, n).

    NaN where a device has no such item.
    """
    by_device: dict[Hashable, list[TableRow]] = {}
    for row in training:
        by_device.setdefault((row.source, row.device), []).append(row)
    found = [_matched(known, latency_log(known), wanted) for known in by_device.values()]
    kept = [each for each in found if np.isfinite(each).sum() >= _LEAST_MATCHED * len(wanted)]
    return np.array(kept).reshape(len(kept), len(wanted))


def best_proxy(proxies: FloatArray, shots: IntArray, seen_log: FloatArray) -> Proxy | None:
    """The proxy that, scaled by one factor, is least off; None if none was measured at all.

    Args:
        proxies: see ``proxies_of``.
        shots: which of the wanted rows were measured, k of them.
        seen_log: log milliseconds an item that they took, shape (k,).
    """
    best, least = None, np.inf
    for proxy in proxies:
        apart = seen_log - proxy[shots]
        known = np.isfinite(apart)
        if not known.any():
            continue
        factor_log = float(np.median(apart[known]))
        misfit = float(np.abs(apart[known] - factor_log).mean())
        if best is None or misfit < least:
            best, least = Proxy(proxy + factor_log, apart - factor_log), misfit
    return best


def contrasts_of(proxies: FloatArray, expected_log: FloatArray) -> FloatArray:
    """How each proxy sets the rows apart otherwise than is expected, shape (p, n).

    Levels are taken off, so that a contrast tells of rows beside each other alone; NaN where a
    device has no such item.

    Args:
        proxies: see ``proxies_of``.
        expected_log: log milliseconds an item of each wanted row, shape (n,).
    """
    if not proxies.size:
        return np.empty((0, len(expected_log)))
    apart = proxies - expected_log
    apart -= np.nanmedian(apart, axis=1, keepdims=True)
    return np.clip(apart, -_MOST_CONTRAST, _MOST_CONTRAST)


def _matched(
    known: Sequence[TableRow], known_log: FloatArray, wanted: Sequence[TableRow]
) -> FloatArray:
    """For each wanted row the log latency of the row most like it, NaN where there is none."""
    keys: list[Callable[[TableRow], Hashable]] = [
        lambda row: (*_item(row), row.engine, row.precision, row.batch, row.concurrency),
        lambda row: (*_item(row), canonical_precision(row.precision), row.batch, row.concurrency),
        lambda row: (*_item(row), row.batch, row.concurrency),
        _item,
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


def _item(row: TableRow) -> tuple[Hashable, ...]:
    return (row.source, row.task, row.model, row.resolution_px)
