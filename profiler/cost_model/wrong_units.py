"""Finds latencies in a wrong unit, by comparison with other rows and the device's published peak.

``measure.table`` judges each row by its own columns. Here a row is judged by the same item's other
measurements, by what its device can compute in a second, and by the other rows of its device. Each
bound is far from all ratios in the public tables (14,681 rows of 22 devices), and a factor of 1,000
exceeds it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence

import numpy as np

from modelless.profiler.devices.known_devices import find_known_device
from modelless.profiler.measure.table import NumberedRow, TableRow

_SAME_DEVICE_FACTOR = 50.0
"""How far engines and precisions of one device may differ at one batch size."""

_SAME_KIND_FACTOR = 300.0
"""How far the typical item may be quicker or slower on another device of the same kind."""

_ITEM_FACTOR = 160.0
"""How far one item may be quicker or slower than the typical one, by another device's items."""

_QUICKER_FACTOR = 160.0
"""How much quicker than the typical row of its device, by its multiply-adds, a row may be."""

_SLOWER_FACTOR = 120.0
"""How much slower than the typical row of its device, both by its multiply-adds and an item, a row
may be."""

_LEAST_RANK = -0.3
"""The least rank correlation of a device's latencies with multiply-adds; that of rates is less."""

_MOST_OF_PEAK = 3.0
"""The largest rate over the published peak: layers may be fused or pruned, and clocks boosted."""

_LEAST_OF_PEAK = 1e-3
"""The least share of the peak that a device reaches with the best of its large networks."""

_LARGE_GMACS = 1.0  # of a batch
_LEAST_ROWS = 5  # of a device, or shared by two, for a statement about all of them
_LEAST_RANKED = 20  # of a device, for a rank correlation
_LEAST_RANGE_LOG = math.log(2.0)  # of sizes and of latencies, for the same

_Rows = Sequence[TableRow]


def find_wrong_units(rows: Sequence[NumberedRow], known: Iterable[TableRow] = ()) -> dict[int, str]:
    """Returns why the latency on a line looks wrong, for the lines where it does.

    Args:
        rows: rows of one table with their lines.
        known: rows whose units were checked.
    """
    known_devices: dict[Hashable, list[TableRow]] = defaultdict(list)
    known_items: dict[Hashable, list[TableRow]] = defaultdict(list)
    for row in known:
        known_devices[_device(row)].append(row)
        known_items[row.item, row.device].append(row)
    by_device: dict[Hashable, list[NumberedRow]] = defaultdict(list)
    own_points: dict[Hashable, list[TableRow]] = defaultdict(list)
    for line, row in rows:
        by_device[_device(row)].append((line, row))
        own_points[row.key].append(row)
    found: dict[int, str] = {}
    for mine in by_device.values():
        some = [row for _, row in mine]
        whole = _compare_with_best(some) or _compare_with_sizes(some)
        by_kind = _compare_with_kind(some, known_devices.values())
        for (line, row), other, item in zip(mine, by_kind, _compare_rows(some), strict=True):
            same = [
                *known_items.get((row.item, row.device), ()),
                *(one for one in own_points[row.key] if one is not row),
            ]
            reason = _compare_with_peak(row) or _compare_with_item(row, same)
            if reason := reason or whole or other or item:
                found[line] = reason
    return dict(sorted(found.items()))


def _compare_with_item(row: TableRow, others: _Rows) -> str:
    """Returns why a row differs from all others of its item and device; empty if not."""
    for other in others:
        growth, ratio = _waiting(row) / _waiting(other), row.latency_ms / other.latency_ms
        least, most = min(1.0, growth) / _SAME_DEVICE_FACTOR, max(1.0, growth) * _SAME_DEVICE_FACTOR
        if least <= ratio <= most:
            return ""
    if not others:
        return ""
    other = others[0]
    is_less = row.latency_ms / row.batch < other.latency_ms / other.batch
    return (
        f"{row.latency_ms:g} ms for {row.batch} x {row.model} on {row.device}, which takes "
        f"{other.latency_ms:g} ms for {other.batch} by another row: looks like {_unit(is_less)}"
    )


def _compare_with_peak(row: TableRow) -> str:
    """Returns why a row exceeds the best published rate of its device; empty if not."""
    share = _share_of_peak(row)
    if share is None or share <= _MOST_OF_PEAK:
        return ""
    return (
        f"{row.latency_ms:g} ms for {row.batch} x {row.gmacs:g} G multiply-adds on {row.device}: "
        f"{share:.0f} times its published peak; looks like seconds"
    )


def _compare_rows(rows: _Rows) -> list[str]:
    """Returns for each row of a device why its latency does not fit its size; empty if it does."""
    item_log = np.log([row.latency_ms / row.batch for row in rows])
    per_mac_log = item_log - np.log([row.gmacs or math.nan for row in rows])
    if np.isfinite(per_mac_log).sum() < _LEAST_ROWS:
        return [""] * len(rows)
    by_size = per_mac_log - np.nanmedian(per_mac_log)
    slower = np.minimum(by_size, item_log - np.median(item_log))
    is_wrong = (by_size < -math.log(_QUICKER_FACTOR)) | (slower > math.log(_SLOWER_FACTOR))
    return [
        f"{row.latency_ms:g} ms for {row.batch} x {row.gmacs:g} G multiply-adds: "
        + _say_ratio("it takes", apart, f"{row.device} than its other rows suggest")
        if wrong
        else ""
        for row, apart, wrong in zip(rows, by_size.tolist(), is_wrong.tolist(), strict=True)
    ]


def _compare_with_sizes(rows: _Rows) -> str:
    """Returns why a device's latencies fall as its networks grow; empty if they do not."""
    sized = np.array([(row.gmacs, row.latency_ms / row.batch) for row in rows if row.gmacs])
    if len(sized) < _LEAST_RANKED or (np.ptp(np.log(sized), axis=0) < _LEAST_RANGE_LOG).any():
        return ""
    from scipy.stats import spearmanr

    rank = float(spearmanr(*sized.T).statistic)
    if not rank < _LEAST_RANK:
        return ""
    return (
        f"the larger a network, the less time it takes on {rows[0].device} (rank correlation "
        f"{rank:.2f}); looks like a rate"
    )


def _compare_with_best(rows: _Rows) -> str:
    """Returns why a device is too slow with all large networks; empty if it is not."""
    large = [row for row in rows if (row.gmacs or 0.0) * row.batch >= _LARGE_GMACS]
    shares = [share for row in large if (share := _share_of_peak(row, row.precision)) is not None]
    if len(shares) < _LEAST_ROWS or max(shares) >= _LEAST_OF_PEAK:
        return ""
    return (
        f"all rows of {rows[0].device} reach less than {max(shares):.1g} of its published peak; "
        "looks like microseconds"
    )


def _compare_with_kind(rows: _Rows, known: Iterable[_Rows]) -> list[str]:
    """Returns for each row why it differs too much from other devices of the kind; empty if not."""
    device, kind = rows[0].device, rows[0].device_kind
    mine = _latencies(rows)
    levels_log: list[float] = []
    apart_log = np.full(len(rows), np.inf)
    for others in known:
        if not kind or others[0].device_kind != kind:
            continue
        theirs = _latencies(others)
        shared = mine.keys() & theirs.keys()
        if len(shared) < _LEAST_ROWS:
            continue
        level_log = float(np.median([math.log(mine[point] / theirs[point]) for point in shared]))
        levels_log.append(level_log)
        for place, row in enumerate(rows):
            if (other := theirs.get(_point(row))) is not None:
                apart = math.log(row.latency_ms / other) - level_log
                apart_log[place] = min(apart_log[place], apart, key=abs)
    level_log = min(levels_log, key=abs, default=0.0)
    if abs(level_log) > math.log(_SAME_KIND_FACTOR):
        return [
            _say_ratio("its items take", level_log, f"{device} than on any other {kind}")
        ] * len(rows)
    return [
        _say_ratio(f"{row.model} takes", apart, f"{device} than its other items suggest")
        if math.log(_ITEM_FACTOR) < abs(apart) < math.inf
        else ""
        for row, apart in zip(rows, apart_log.tolist(), strict=True)
    ]


def _say_ratio(what: str, ratio_log: float, where: str) -> str:
    direction = "less" if ratio_log < 0.0 else "longer"
    times = math.exp(abs(ratio_log))
    return f"{what} {times:.0f} times {direction} on {where}; looks like {_unit(ratio_log < 0.0)}"


def _latencies(rows: _Rows) -> dict[Hashable, float]:
    return {_point(row): row.latency_ms for row in rows}


def _share_of_peak(row: TableRow, precision: str = "") -> float | None:
    """Returns a row's rate over the published peak of its device; None if that is unknown.

    The peak is that of ``precision``, or the highest one if that is empty or has none.
    """
    known = find_known_device(row.device, row.device_kind or None)
    if known is None or not row.gmacs:
        return None
    rates = {
        "fp32": known.fp32_operations_per_s,
        "fp16": known.fp16_operations_per_s,
        "int8": known.int8_operations_per_s,
    }
    peak = rates.get(precision) or max((rate for rate in rates.values() if rate), default=None)
    return 2e9 * row.gmacs * row.batch / (row.latency_ms / 1e3) / peak if peak else None


def _unit(is_less: bool) -> str:
    return "seconds" if is_less else "microseconds"


def _point(row: TableRow) -> Hashable:
    return (*row.item, row.batch, row.concurrency)


def _waiting(row: TableRow) -> int:
    """Returns the items that wait for the row's device at once."""
    return row.batch * (row.concurrency or 1)


def _device(row: TableRow) -> Hashable:
    return (row.source, row.device)
