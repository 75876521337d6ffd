"""How noisy the machine is, and whether a measurement on it can be trusted.

There are three signs, and none needs privileges: how much a fixed small computation varies; the
time that the hypervisor gives to other machines (steal); and the time that other processes take of
the wanted cores. The first takes a fraction of a second. The other two are differences of the
kernel's counters, which cover a measurement from beginning to end at no cost.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from modelless.profiler.devices.host import allowed_cpus

PROBE_RUNS = 100
PROBE_LOOPS = 40_000  # about 1 to 3 ms of pure Python: no BLAS threads, no memory traffic
PROBE_ATTEMPTS = 3


MOST_SPREAD, MOST_STEAL, MOST_CONTENTION = 0.30, 0.05, 0.25
"""The noise up to which a measurement is trusted; see ``Noise``."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Measured noise; 0 where the host cannot tell.

    Attributes:
        spread: p90 over p10 of the fixed computation, less 1.
        steal: share of the cores' time that the hypervisor gives to other machines.
        contention: share of the wanted cores' time that other processes take.
    """

    spread: float = 0.0
    steal: float = 0.0
    contention: float = 0.0

    @property
    def level(self) -> float:
        """The worst sign as a multiple of its limit; up to 1 a measurement is trusted."""
        return max(
            self.spread / MOST_SPREAD, self.steal / MOST_STEAL, self.contention / MOST_CONTENTION
        )

    def explain(self) -> str:
        """Returns one line for a person."""
        return (
            f"a fixed computation varies by {self.spread:.0%} (limit {MOST_SPREAD:.0%}), "
            f"other processes take {self.contention:.0%} of the wanted cores "
            f"(limit {MOST_CONTENTION:.0%}), "
            f"other machines {self.steal:.1%} of the time (limit {MOST_STEAL:.0%})"
        )


@dataclass(frozen=True, slots=True)
class CpuCounters:
    """Seconds of processor time since some start, over the cores this process may use.

    Attributes:
        at_s: time of reading, on ``time.perf_counter``.
        busy_s, steal_s: time of all processes on those cores, and time given to other machines.
        own_s: time of this process, all threads.
        cores: number of counted cores; 0 where the host keeps no counters.
    """

    at_s: float
    busy_s: float
    steal_s: float
    own_s: float
    cores: int


def spread_of(durations_s: Sequence[float]) -> float:
    """Returns p90 / p10 - 1 of a fixed computation's durations; 0 for fewer than two."""
    if len(durations_s) < 2:
        return 0.0
    low, high = np.quantile(np.asarray(durations_s, dtype=np.float64), [0.1, 0.9])
    return float(high / low - 1.0) if low > 0.0 else 0.0


def noise_between(
    before: CpuCounters, after: CpuCounters, *, threads: int, spread: float = 0.0
) -> Noise:
    """Returns the noise between two readings for work that wants ``threads`` cores.

    Other processes contend only for the cores that are left: on two cores, one busy neighbour
    leaves a single-threaded measurement its core.
    """
    cores = min(before.cores, after.cores)
    passed_s = after.at_s - before.at_s
    if cores == 0 or not passed_s > 0.0:
        return Noise(spread=spread)
    own_s = max(0.0, after.own_s - before.own_s)
    others_cores = max(0.0, after.busy_s - before.busy_s - own_s) / passed_s
    wanted = min(threads, cores)
    taken = min(max(0.0, others_cores - (cores - wanted)), wanted)
    stolen_s = max(0.0, after.steal_s - before.steal_s)
    return Noise(
        spread=spread, steal=min(1.0, stolen_s / (passed_s * cores)), contention=taken / wanted
    )


def parse_stat(text: str, cpus: Collection[int], tick_s: float) -> tuple[float, float, int]:
    """Returns busy seconds, stolen seconds and cores of ``cpus`` in the text of /proc/stat."""
    busy_s, steal_s, cores = 0.0, 0.0, 0
    for line in text.splitlines():
        name, *fields = line.split()
        if not (name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cpus):
            continue
        # user nice system idle iowait irq softirq steal (guest time is part of user)
        ticks = [int(field) for field in fields[:8]] + [0] * (8 - len(fields[:8]))
        busy_s += (ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6]) * tick_s
        steal_s += ticks[7] * tick_s
        cores += 1
    return busy_s, steal_s, cores


def read_counters(cpus: Collection[int], stat: Path = Path("/proc/stat")) -> CpuCounters:
    """Returns the counters now, with 0 cores where the system has no /proc/stat."""
    try:
        text = stat.read_text(encoding="ascii")
        tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
    except (AttributeError, OSError, ValueError):
        return CpuCounters(time.perf_counter(), 0.0, 0.0, 0.0, 0)
    busy_s, steal_s, cores = parse_stat(text, cpus, tick_s)
    return CpuCounters(time.perf_counter(), busy_s, steal_s, time.process_time(), cores)


def fixed_work() -> None:
    """Run the probe's computation, which is always the same and uses only the interpreter."""
    total = 0
    for number in range(PROBE_LOOPS):
        total += number & 7


def await_quiet(probe_once: Callable[[], Noise]) -> Noise:
    """Probe until it is quiet, at most ``PROBE_ATTEMPTS`` times, and return the last noise."""
    noise = probe_once()
    for _ in range(PROBE_ATTEMPTS - 1):
        if noise.level <= 1.0:
            break
        noise = probe_once()
    return noise


class HostNoise:
    """Measures the noise of this host for work on a number of threads.

    The kernel counts in steps of 10 ms, so a window is at least ``window_s`` long: a quick
    measurement is judged together with what ran just before it.

    Args:
        counters: reads the counters; by default those of the cores this process may use.
        window_s: shortest window, seconds.
        work: the probe's computation.
        clock: monotonic clock for the probe, seconds.
    """

    def __init__(
        self,
        counters: Callable[[], CpuCounters] | None = None,
        window_s: float = 0.5,
        work: Callable[[], None] = fixed_work,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._counters = counters or partial(read_counters, allowed_cpus())
        self._window_s = window_s
        self._work, self._clock = work, clock
        self._readings: deque[CpuCounters] = deque([self._counters()])

    def probe(self, threads: int, runs: int) -> Noise:
        """Returns the noise during ``runs`` runs of a fixed computation; 100 take 0.1 to 0.3 s."""
        before = self._counters()
        durations_s = []
        for _ in range(runs):
            started_s = self._clock()
            self._work()
            durations_s.append(self._clock() - started_s)
        spread = spread_of(durations_s)
        return noise_between(before, self._counters(), threads=threads, spread=spread)

    def since(self, start_s: float, threads: int, spread: float) -> Noise:
        """Returns the noise from about ``start_s`` until now.

        The window begins earlier where it would be shorter than ``window_s``.

        Args:
            start_s: beginning of the work on ``time.perf_counter``, seconds.
            threads: cores that the work wants.
            spread: known spread of a fixed computation.
        """
        now = self._counters()
        start_s = min(start_s, now.at_s - self._window_s)
        readings = self._readings
        while len(readings) > 1 and readings[1].at_s <= start_s:
            readings.popleft()
        noise = noise_between(readings[0], now, threads=threads, spread=spread)
        readings.append(now)
        return noise
