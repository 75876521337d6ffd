"""Checks of a whole table: latencies in another unit, points that occur twice."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Protocol

from modelless.variants.errors import InvalidInputError

_FACTOR = 30.0
"""Latency and throughput may disagree so much (start-up, pipelining); 1,000 is another unit."""

_MOST_MACS_PER_S = {"cpu": 3e13, "gpu": 3e15, "npu": 3e15}
"""Multiply-adds a second that no device of the kind reaches on a whole network, as of 2025: several
times what the largest servers, cards and accelerators are rated for."""

_LONGEST_MS, _SHORTEST_MS = 3.6e6, 1e-4
_SHOWN_LINES = 8


class Row(Protocol):
    """What the checks read of a row."""

    @property
    def device_kind(self) -> str: ...
    @property
    def batch(self) -> int: ...
    @property
    def concurrency(self) -> int | None: ...
    @property
    def gmacs(self) -> float | None: ...
    @property
    def latency_ms(self) -> float: ...
    @property
    def latency_p99_ms(self) -> float | None: ...
    @property
    def throughput_per_s(self) -> float | None: ...
    @property
    def key(self) -> Hashable: ...


def check_units(path: Path, rows: Sequence[Row], lines: Sequence[int]) -> None:
    """Refuse latencies that look like seconds or microseconds given as milliseconds.

    Four signs, row by row, so that a table of two minds is found out too: throughput (by Little's
    law, batch x concurrency = throughput x latency); the p99 of the same row; the rate of
    multiply-adds; the length itself. A row with none of the other columns can only be judged by
    its length.

    Raises:
        InvalidInputError: naming the lines, the first row's figures and what they look like.
    """
    suspects: list[tuple[int, str]] = []
    for line, row in zip(lines, rows, strict=True):
        reason = _suspicion(row)
        if reason:
            suspects.append((line, reason))
    if suspects:
        raise InvalidInputError.of(
            f"{path}: latency_ms on {_some([line for line, _ in suspects])}",
            suspects[0][1],
            "milliseconds for the whole batch, and throughput_per_s in items a second",
            "Convert the column and read it again.",
        )


def check_duplicates(path: Path, rows: Sequence[Row], lines: Sequence[int]) -> None:
    """Refuse two rows for one point.

    Raises:
        InvalidInputError: naming the lines.
    """
    first: dict[Hashable, int] = {}
    repeated: list[int] = []
    example = ""
    for line, row in zip(lines, rows, strict=True):
        earlier = first.setdefault(row.key, line)
        if earlier != line:
            example = example or f"line {line} repeats line {earlier}"
            repeated.append(line)
    if repeated:
        raise InvalidInputError.of(
            f"{path}: duplicates on {_some(repeated)}",
            example,
            "one row for each source, task, model, device, engine, precision, resolution_px, batch "
            "and concurrency",
            "Keep one of each, or ask for duplicates to be kept.",
        )


def _suspicion(row: Row) -> str:
    if not _SHORTEST_MS <= row.latency_ms <= _LONGEST_MS:
        return f"{row.latency_ms:g} ms, outside {_SHORTEST_MS:g} to {_LONGEST_MS:g} ms"
    if row.throughput_per_s is not None:
        ratio = row.latency_ms * row.throughput_per_s / 1e3 / row.batch
        # Unpublished concurrency may raise it, and never lowers it.
        most = _FACTOR * row.concurrency if row.concurrency is not None else 1000.0 * _FACTOR
        if not 1.0 / _FACTOR <= ratio <= most:
            unit = "seconds" if ratio < 1.0 else "microseconds"
            return (
                f"{row.latency_ms:g} ms for {row.batch} items at {row.throughput_per_s:g} items/s: "
                f"looks like {unit}, or throughput in batches"
            )
    if row.latency_p99_ms is not None:
        tail = row.latency_p99_ms / row.latency_ms
        if tail < 0.999:
            return f"{row.latency_ms:g} ms, but a p99 of {row.latency_p99_ms:g} ms, which is less"
        if tail > 500.0:
            return f"{row.latency_ms:g} ms, but a p99 of {row.latency_p99_ms:g} ms: two units?"
    most_macs_per_s = _MOST_MACS_PER_S.get(row.device_kind, math.inf)
    if row.gmacs is not None:
        macs_per_s = row.gmacs * 1e9 * row.batch / (row.latency_ms / 1e3)
        if macs_per_s > most_macs_per_s:
            return (
                f"{row.latency_ms:g} ms for {row.gmacs * row.batch:g} G multiply-adds on a "
                f"{row.device_kind}: {macs_per_s:.1e} a second is more than any reaches; "
                "looks like seconds"
            )
    return ""


def _some(lines: Sequence[int]) -> str:
    shown = ", ".join(str(line) for line in lines[:_SHOWN_LINES])
    more = f" and {len(lines) - _SHOWN_LINES} more" if len(lines) > _SHOWN_LINES else ""
    return f"line{'s' if len(lines) > 1 else ''} {shown}{more}"
