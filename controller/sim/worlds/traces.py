"""When queries come: iterators of (seconds, number of the stream), ascending, never held whole.

Times are those of the source; scaling in time and the world's clock are ``arrivals.py``'s business.
Sources: the Markov-modulated process is the two-state case of Fischer and Meier-Hellstern (1993);
time-varying rates are thinned as in Lewis and Shedler (1979).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import ValidationError

from modelless.common.errors import InvalidInputError
from modelless.controller.sim.worlds.queries import (
    ArrivalsSettings,
    BurstArrivals,
    DiurnalArrivals,
    FlashCrowdArrivals,
    GammaArrivals,
    PoissonArrivals,
    RatesArrivals,
    SloSettings,
    TraceArrivals,
)
from modelless.controller.sim.worlds.section import explain


class Recorded(NamedTuple):
    """An arrival with its limits, as a trace tells them.

    Attributes:
        scope: the task or narrower; None if the trace does not tell.
        slo: the limits; its weight means nothing.
    """

    scope: str | None
    slo: SloSettings


Arrival = tuple[float, int | str | Recorded | None]
"""Seconds, and the stream: its number, its task's name, an arrival with its own limits, or None if
the source does not tell."""

MOST_PER_S = 1e7
"""Arrivals a second of one source, all scales applied: more do not come to an end."""

MOST_COPIES = 1e4
"""Of each arrival of a trace, on average."""

_BLOCK = 1024
_NEVER_PER_S = 1e-290  # its gaps are longer than a float can say
_LIMITS = (
    "latency_ms", "min_accuracy", "max_cost_usd", "tenant", "priority", "items", "when_late"
)  # fmt: skip


def arrivals(
    settings: ArrivalsSettings,
    folder: Path,
    scale: float,
    rng: np.random.Generator,
    until_s: float = math.inf,
) -> Iterator[Arrival]:
    """The arrivals a source describes, its rate multiplied by ``scale``.

    Args:
        settings: the source.
        folder: of its files.
        scale: of the rate.
        rng: of its own.
        until_s: later ones are not needed; some may come all the same.

    Raises:
        InvalidInputError: a rate beyond ``MOST_PER_S``; and while iterating: a file that is
            unreadable, empty, not ascending, or with a negative rate; names the file and the line.
    """
    if isinstance(settings, PoissonArrivals):
        return _renewal(_rate(settings.rate_per_s, scale), 1.0, rng)
    if isinstance(settings, GammaArrivals):
        return _renewal(_rate(settings.rate_per_s, scale), settings.cv, rng)
    if isinstance(settings, BurstArrivals):
        _rate(max(settings.low_per_s, settings.high_per_s), scale)
        return _bursts(settings, scale, rng, until_s)
    if isinstance(settings, DiurnalArrivals):
        peak = _rate(settings.mean_per_s * (1.0 + settings.swing), scale)
        return _thinned(peak, lambda t_s: _diurnal(settings, t_s) * scale, rng, until_s)
    if isinstance(settings, FlashCrowdArrivals):
        peak = _rate(max(settings.peak_per_s, settings.base_per_s), scale)
        return _thinned(peak, lambda t_s: _flash_crowd(settings, t_s) * scale, rng, until_s)
    if isinstance(settings, TraceArrivals):
        if scale > MOST_COPIES:
            raise InvalidInputError.of("rate_scale times load", scale, f"at most {MOST_COPIES:g}")
        return _recorded(folder / settings.path, scale, rng)
    return _from_rates(settings, folder / settings.path, scale, rng)


def _rate(rate_per_s: float, scale: float) -> float:
    """The rate with all scales applied, arrivals a second; InvalidInputError if it is absurd."""
    scaled_per_s = rate_per_s * scale
    if scaled_per_s > MOST_PER_S:
        raise InvalidInputError.of(
            "rate, with rate_scale and load",
            f"{rate_per_s:g} x {scale:g} a second",
            f"at most {MOST_PER_S:g} a second",
        )
    return scaled_per_s


def _renewal(rate_per_s: float, cv: float, rng: np.random.Generator) -> Iterator[Arrival]:
    """Gamma-distributed gaps; exponential ones where ``cv`` is 1."""
    if rate_per_s <= _NEVER_PER_S:
        return
    shape, now_s = 1.0 / cv**2, 0.0
    while True:
        if cv == 1.0:
            gaps = rng.standard_exponential(_BLOCK) / rate_per_s
        else:
            gaps = rng.standard_gamma(shape, _BLOCK) / (shape * rate_per_s)
        times = now_s + np.cumsum(gaps)
        now_s = float(times[-1])
        for at_s in times.tolist():
            yield at_s, None


def _bursts(
    settings: BurstArrivals, scale: float, rng: np.random.Generator, until_s: float
) -> Iterator[Arrival]:
    begin_s, high = 0.0, False
    if max(settings.low_per_s, settings.high_per_s) <= 0.0:
        return
    while begin_s < until_s:
        mean_s = settings.mean_high_s if high else settings.mean_low_s
        rate_per_s = (settings.high_per_s if high else settings.low_per_s) * scale
        end_s = begin_s + float(rng.exponential(mean_s))
        for at_s in _uniform(begin_s, end_s, rate_per_s, rng):
            yield at_s, None
        begin_s, high = end_s, not high


def _uniform(
    begin_s: float, end_s: float, rate_per_s: float, rng: np.random.Generator
) -> Iterator[float]:
    """A Poisson process of one rate between two times, in blocks."""
    if rate_per_s <= 0.0:
        return
    step_s = _BLOCK / rate_per_s
    while begin_s < end_s:
        stop_s = min(end_s, begin_s + step_s)
        count = int(rng.poisson(rate_per_s * (stop_s - begin_s)))
        yield from np.sort(rng.uniform(begin_s, stop_s, count)).tolist()
        begin_s = stop_s


def _thinned(
    peak_per_s: float,
    rate_at: Callable[[np.ndarray], np.ndarray],
    rng: np.random.Generator,
    until_s: float,
) -> Iterator[Arrival]:
    """A Poisson process whose rate is ``rate_at(seconds)``, never above ``peak_per_s``."""
    if peak_per_s <= 0.0:
        return
    now_s = 0.0
    while now_s < until_s:  # where the rate has fallen to 0 nothing comes any more
        times = now_s + np.cumsum(rng.standard_exponential(_BLOCK)) / peak_per_s
        now_s = float(times[-1])
        kept = rng.random(_BLOCK) * peak_per_s < rate_at(times)
        for at_s in times[kept].tolist():
            yield at_s, None


def _diurnal(settings: DiurnalArrivals, t_s: np.ndarray) -> np.ndarray:
    phase = 2.0 * math.pi * (t_s - settings.peak_at_s) / settings.period_s
    return settings.mean_per_s * (1.0 + settings.swing * np.cos(phase))


def _flash_crowd(settings: FlashCrowdArrivals, t_s: np.ndarray) -> np.ndarray:
    rising = np.clip((t_s - settings.at_s) / settings.rise_s, 0.0, 1.0)
    over_s = t_s - (settings.at_s + settings.rise_s + settings.hold_s)
    falling = np.exp(-np.maximum(over_s, 0.0) / settings.fall_s)
    return settings.base_per_s + (settings.peak_per_s - settings.base_per_s) * rising * falling


def _recorded(path: Path, scale: float, rng: np.random.Generator) -> Iterator[Arrival]:
    """Recorded arrivals, each kept with probability ``scale``, or come ``scale`` times on average.

    What is added lies evenly spread in the gap to the next arrival, so bursts stay where they are.
    """
    before: Arrival | None = None
    for row in _rows(path, ("arrival_s",), ("task", *_LIMITS)):
        at_s = _seconds(path, row, "arrival_s")
        if before is not None and at_s < before[0]:
            raise _unsorted(path, row, "arrival_s", before[0])
        if before is not None:
            yield from _repeated(before, at_s, scale, rng)
        scope = row.cells.get("task", "").strip() or None
        limits = tuple((name, row.cells[name].strip()) for name in _LIMITS if name in row.cells)
        before = (at_s, Recorded(scope, _slo(path, row.line, limits)) if limits else scope)
    if before is None:
        raise _empty(path)
    yield from _repeated(before, before[0], scale, rng)


def _slo(path: Path, line: int, cells: tuple[tuple[str, str], ...]) -> SloSettings:
    """A row's limits, blank ones left out."""
    try:
        return _checked(cells)
    except ValidationError as error:
        raise explain(error, f"{path}, line {line}") from None


@lru_cache(maxsize=1024)
def _checked(cells: tuple[tuple[str, str], ...]) -> SloSettings:
    return SloSettings.model_validate({name: text for name, text in cells if text})


def _repeated(
    arrival: Arrival, next_s: float, scale: float, rng: np.random.Generator
) -> Iterator[Arrival]:
    if scale == 1.0:
        yield arrival
        return
    whole = math.floor(scale)
    count = whole + (1 if rng.random() < scale - whole else 0)
    if count:
        yield arrival
        for at_s in sorted(rng.uniform(arrival[0], next_s, count - 1).tolist()):
            yield at_s, arrival[1]


def _from_rates(
    settings: RatesArrivals, path: Path, scale: float, rng: np.random.Generator
) -> Iterator[Arrival]:
    """Poisson processes of recorded rates; one number a stream, in order of appearance."""
    numbers: dict[str, int] = {}
    rates: dict[int, float] = {}
    begin_s: float | None = None
    for row in _rows(path, ("start_s", "stream", "rate_per_s"), ()):
        start_s = _seconds(path, row, "start_s")
        rate_per_s = _number(path, row, "rate_per_s")
        if not 0.0 <= rate_per_s <= 1e9:
            raise InvalidInputError.of(
                f"{path}, line {row.line}: rate_per_s", rate_per_s, "0 or more, finite"
            )
        if begin_s is not None and start_s < begin_s:
            raise _unsorted(path, row, "start_s", begin_s)
        if begin_s is not None and start_s > begin_s:
            yield from _window(begin_s, start_s, settings.window_s, rates, scale, rng)
        begin_s = start_s
        number = numbers.setdefault(row.cells["stream"].strip(), len(numbers))
        rates[number] = rate_per_s
    if begin_s is None:
        raise _empty(path)
    yield from _window(begin_s, begin_s + settings.window_s, settings.window_s, rates, scale, rng)


def _window(
    begin_s: float,
    end_s: float,
    most_s: float,
    rates: dict[int, float],
    scale: float,
    rng: np.random.Generator,
) -> Iterator[Arrival]:
    """Until the next start, but at most ``most_s``; streams that said nothing new go on."""
    streams = np.array(list(rates), dtype=np.intp)
    shares = np.array(list(rates.values()), dtype=np.float64)
    total = float(shares.sum())
    _rate(total, scale)
    if total <= 0.0:
        return
    cumulated = np.cumsum(shares) / total
    for at_s in _uniform(begin_s, min(end_s, begin_s + most_s), total * scale, rng):
        place = min(int(np.searchsorted(cumulated, rng.random())), len(streams) - 1)
        yield at_s, int(streams[place])


class _Row:
    __slots__ = ("cells", "line")

    def __init__(self, line: int, cells: dict[str, str]) -> None:
        self.line = line
        self.cells = cells


def _rows(path: Path, needed: tuple[str, ...], optional: tuple[str, ...]) -> Iterator[_Row]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.reader(lines, strict=True)
            heading = [name.strip() for name in next(reader, [])]
            if any(name not in heading for name in needed):
                allowed = ", ".join(needed) + (
                    f"; perhaps {', '.join(optional)}" if optional else ""
                )
                raise InvalidInputError.of(f"{path}: columns", heading, allowed)
            if twice := [name for name in (*needed, *optional) if heading.count(name) > 1]:
                raise InvalidInputError.of(f"{path}: columns", twice, "each column once")
            for cells in reader:
                if not cells:
                    continue  # a blank line
                if len(cells) != len(heading):
                    raise InvalidInputError.of(
                        f"{path}, line {reader.line_num}", cells, f"{len(heading)} fields"
                    )
                yield _Row(reader.line_num, dict(zip(heading, cells, strict=True)))
    except (OSError, ValueError, csv.Error) as error:  # (a name with a NUL byte is a ValueError)
        raise InvalidInputError.of(
            "path", str(path), "a readable CSV file in UTF-8", str(error)
        ) from None


def _number(path: Path, row: _Row, name: str) -> float:
    text = row.cells[name]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise InvalidInputError.of(f"{path}, line {row.line}: {name}", text, "a number")
    return value


def _seconds(path: Path, row: _Row, name: str) -> float:
    value = _number(path, row, name)
    if not 0.0 <= value < math.inf:
        raise InvalidInputError.of(
            f"{path}, line {row.line}: {name}", value, "seconds, 0 or more, finite"
        )
    return value


def _unsorted(path: Path, row: _Row, name: str, before: float) -> InvalidInputError:
    return InvalidInputError.of(
        f"{path}, line {row.line}: {name}",
        row.cells[name],
        f"{before:g} or more, as the line before",
        "Sort the file by time.",
    )


def _empty(path: Path) -> InvalidInputError:
    return InvalidInputError.of(f"{path}", "no rows", "at least one row below the heading")
