"""The kinds of arrivals: settings, and the iterators of arrivals that follow from them.

Times are those of the source; ``query_streams`` scales time and sets the world's clock.
Sources: the Markov-modulated process is the two-state case of Fischer and Meier-Hellstern (1993);
time-varying rates are thinned as in Lewis and Shedler (1979).
"""

from __future__ import annotations

import csv
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, NamedTuple

import numpy as np
from pydantic import (
    Field,
    SerializeAsAny,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from modelless.common.errors import InvalidInputError, ModellessError
from modelless.common.plugins import Plugins
from modelless.controller.sim.worlds.section import Section, explain

Rate = Annotated[float, Field(ge=0, le=1e7)]


class SloSettings(Section):
    """One kind of client: its limits, and how common it is."""

    weight: float = Field(1.0, gt=0, description="share among the kinds")
    latency_ms: float | None = Field(
        None, gt=0, le=3.6e6, description="deadline from arrival; default: limits'"
    )
    min_accuracy: float = Field(0.0, ge=0, le=100, description="least accuracy, per cent")
    max_cost_usd: float | None = Field(None, gt=0, description="highest price; default: none")
    tenant: str = Field("", description="the client's name")
    priority: int = Field(0, ge=-1, le=9, description="more is more urgent; -1 is offline")
    items: int = Field(1, ge=1, le=1024, description="items a query")
    when_late: Literal["refuse", "serve"] = Field(
        "refuse", description="what happens to queries that cannot be in time"
    )


class Recorded(NamedTuple):
    """An arrival with its limits, as a trace tells them.

    Attributes:
        scope: the task or narrower; None if the trace does not tell.
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


class Arrivals(Section, ABC):
    """One kind of arrivals. Its fields are its settings in a world file.

    Attributes:
        ends: the arrivals come to an end by themselves, so that the world needs no duration.
    """

    ends: ClassVar[bool] = False

    kind: str

    @abstractmethod
    def arrivals(
        self, folder: Path, scale: float, rng: np.random.Generator, until_s: float
    ) -> Iterator[Arrival]:
        """The arrivals, ascending in time, their rate multiplied by ``scale``.

        Args:
            folder: of the world file, for files that the settings name.
            rng: the stream of random numbers for these arrivals alone.
            until_s: later arrivals are not needed; some may come all the same.

        Raises:
            InvalidInputError: a rate that is absurd; and while iterating: a file that is
                unreadable, empty, not ascending, or with a negative rate; names file and line.
        """


class PoissonArrivals(Arrivals):
    """Independent clients: exponential gaps."""

    kind: Literal["poisson"]
    rate_per_s: Rate = Field(description="mean arrivals a second")

    def arrivals(
        self, folder: Path, scale: float, rng: np.random.Generator, until_s: float
    ) -> Iterator[Arrival]:
        return _renewal(_rate(self.rate_per_s, scale), 1.0, rng)


class GammaArrivals(Arrivals):
    """Gamma-distributed gaps: more regular (cv below 1) or burstier (above) than Poisson."""

    kind: Literal["gamma"]
    rate_per_s: Rate = Field(description="mean arrivals a second")
    cv: float = Field(gt=0, le=20, description="standard deviation of the gaps over their mean")

    def arrivals(
        self, folder: Path, scale: float, rng: np.random.Generator, until_s: float
    ) -> Iterator[Arrival]:
        return _renewal(_rate(self.rate_per_s, scale), self.cv, rng)


class BurstArrivals(Arrivals):
    """A Poisson process whose rate jumps between two levels, each held for a random time (MMPP)."""

    kind: Literal["bursts"]
    low_per_s: Rate = Field(description="rate between bursts")
    high_per_s: Rate = Field(description="rate in bursts")
    mean_low_s: float = Field(ge=1e-3, description="mean time between bursts, seconds")
    mean_high_s: float = Field(ge=1e-3, description="mean length of a burst, seconds")

    def arrivals(
        self, folder: Path, scale: float, rng: np.random.Generator, until_s: float
    ) -> Iterator[Arrival]:
        if _rate(max(self.low_per_s, self.high_per_s), scale) <= 0.0:
            return iter(())
        return self._bursts(scale, rng, until_s)

    def _bursts(self, scale: float, rng: np.random.Generator, until_s: float) -> Iterator[Arrival]:
        begin_s, high = 0.0, False
        while begin_s < until_s:
            mean_s = self.mean_high_s if high else self.mean_low_s
            rate_per_s = (self.high_per_s if high else self.low_per_s) * scale
            end_s = begin_s + float(rng.exponential(mean_s))
            for at_s in _uniform(begin_s, end_s, rate_per_s, rng):
                yield at_s, None
            begin_s, high = end_s, not high


class DiurnalArrivals(Arrivals):
    """A Poisson process whose rate swings as a sine: the day, shortened at will."""

    kind: Literal["diurnal"]
    mean_per_s: Rate = Field(description="mean rate")
    swing: float = Field(0.8, ge=0, le=1, description="the peak is mean x (1 + swing)")
    period_s: float = Field(gt=0, description="a day, seconds")
    peak_at_s: float = Field(0.0, description="when a peak is")

    def arrivals(
        self, folder: Path, scale: float, rng: np.random.Generator, until_s: float
    ) -> Iterator[Arrival]:
        peak_per_s = _rate(self.mean_per_s * (1.0 + self.swing), scale)
        return _thinned(peak_per_s, lambda t_s: self._rate_per_s(t_s) * scale, rng, until_s)

    def _rate_per_s(self, t_s: np.ndarray) -> np.ndarray:
        phase = 2.0 * math.pi * (t_s - self.peak_at_s) / self.period_s
        return self.mean_per_s * (1.0 + self.swing * np.cos(phase))


class FlashCrowdArrivals(Arrivals):
    """A steady Poisson process, and once a crowd that comes fast and leaves slowly."""

    kind: Literal["flash-crowd"]
    base_per_s: Rate = Field(description="rate before and after")
    peak_per_s: Rate = Field(description="rate at the height")
    at_s: float = Field(ge=0, description="when it begins")
    rise_s: float = Field(5.0, gt=0, description="from base to peak, linear")
    hold_s: float = Field(10.0, ge=0, description="at the peak")
    fall_s: float = Field(20.0, gt=0, description="time constant of the decay")

    def arrivals(
        self, folder: Path, scale: float, rng: np.random.Generator, until_s: float
    ) -> Iterator[Arrival]:
        peak_per_s = _rate(max(self.peak_per_s, self.base_per_s), scale)
        return _thinned(peak_per_s, lambda t_s: self._rate_per_s(t_s) * scale, rng, until_s)

    def _rate_per_s(self, t_s: np.ndarray) -> np.ndarray:
        rising = np.clip((t_s - self.at_s) / self.rise_s, 0.0, 1.0)
        over_s = t_s - (self.at_s + self.rise_s + self.hold_s)
        falling = np.exp(-np.maximum(over_s, 0.0) / self.fall_s)
        return self.base_per_s + (self.peak_per_s - self.base_per_s) * rising * falling


class TraceArrivals(Arrivals):
    """Recorded arrivals: a CSV file with ``arrival_s`` and perhaps ``task``, ascending.

    A row may name its limits, too: ``latency_ms``, ``min_accuracy``, ``max_cost_usd``, ``tenant``,
    ``priority``, ``items`` and ``when_late``, blank for none. Where the file has any of these
    columns, its rows take the place of the mix of clients. ``task`` may be narrower:
    ``task/model[/variant]``.
    """

    ends: ClassVar[bool] = True

    kind: Literal["trace"]
    path: str = Field(description="CSV file; relative to the world file")
    from_s: float = Field(
        0.0, ge=0, description="leave out what comes before; times count from there"
    )

    def arrivals(
        self, folder: Path, scale: float, rng: np.random.Generator, until_s: float
    ) -> Iterator[Arrival]:
        if scale > MOST_COPIES:
            raise InvalidInputError.of("rate_scale times load", scale, f"at most {MOST_COPIES:g}")
        return _recorded(folder / self.path, self.from_s, scale, rng)


class RatesArrivals(Arrivals):
    """Recorded rates: a CSV file with ``start_s, stream, rate_per_s``, ascending by start.

    Between two starts each stream is a Poisson process; the i-th stream in order of appearance
    asks for the i-th task, round and round.
    """

    ends: ClassVar[bool] = True

    kind: Literal["rates"]
    path: str = Field(description="CSV file; relative to the world file")
    window_s: float = Field(600.0, gt=0, description="how long a rate holds if none follows")

    def arrivals(
        self, folder: Path, scale: float, rng: np.random.Generator, until_s: float
    ) -> Iterator[Arrival]:
        return self._arrivals(folder / self.path, scale, rng)

    def _arrivals(self, path: Path, scale: float, rng: np.random.Generator) -> Iterator[Arrival]:
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
                yield from _window(begin_s, start_s, self.window_s, rates, scale, rng)
            begin_s = start_s
            number = numbers.setdefault(row.cells["stream"].strip(), len(numbers))
            rates[number] = rate_per_s
        if begin_s is None:
            raise _empty(path)
        yield from _window(begin_s, begin_s + self.window_s, self.window_s, rates, scale, rng)


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


def _recorded(
    path: Path, from_s: float, scale: float, rng: np.random.Generator
) -> Iterator[Arrival]:
    """Recorded arrivals, each kept with probability ``scale``, or come ``scale`` times on average.

    Those before ``from_s`` are left out. Added ones lie evenly spread in the gap to the next
    arrival, so bursts stay where they are.
    """
    before: Arrival | None = None
    for row in _rows(path, ("arrival_s",), ("task", *_LIMITS)):
        at_s = _seconds(path, row, "arrival_s") - from_s
        if before is not None and at_s < before[0]:
            raise _unsorted(path, row, "arrival_s", before[0] + from_s)
        if at_s < 0.0:
            continue
        if before is not None:
            yield from _repeated(before, at_s, scale, rng)
        scope = row.cells.get("task", "").strip() or None
        limits = tuple((name, row.cells[name].strip()) for name in _LIMITS if name in row.cells)
        before = (at_s, Recorded(scope, _slo(path, row.line, limits)) if limits else scope)
    if before is None:
        raise _empty(path, f", at {from_s:g} s (from_s) or later" if from_s else "")
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


class _Row(NamedTuple):
    line: int
    cells: dict[str, str]


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


def _empty(path: Path, when: str = "") -> InvalidInputError:
    return InvalidInputError.of(f"{path}", "no rows", f"at least one row below the heading{when}")


_KINDS: Final[Mapping[str, type[Arrivals]]] = {
    "poisson": PoissonArrivals,
    "gamma": GammaArrivals,
    "bursts": BurstArrivals,
    "diurnal": DiurnalArrivals,
    "flash-crowd": FlashCrowdArrivals,
    "trace": TraceArrivals,
    "rates": RatesArrivals,
}
TRACES: Final = Plugins("kind of arrivals", _KINDS, group="modelless.traces", takes_paths=True)
"""The kinds of arrivals; each is a class derived from ``Arrivals``."""


def _settings_of(value: object, built_in: ValidatorFunctionWrapHandler) -> Arrivals:
    kind = value.get("kind") if isinstance(value, Mapping) else None
    found: Arrivals
    if not isinstance(kind, str) or kind in _KINDS:
        found = built_in(value)
        return found
    try:
        found = TRACES.find_class(kind, Arrivals).model_validate(value)
    except ModellessError as error:
        raise ValueError(str(error)) from error
    return found


ArrivalsSettings = SerializeAsAny[
    Annotated[
        PoissonArrivals
        | GammaArrivals
        | BurstArrivals
        | DiurnalArrivals
        | FlashCrowdArrivals
        | TraceArrivals
        | RatesArrivals,
        Field(discriminator="kind"),
        WrapValidator(_settings_of),
    ]
]
