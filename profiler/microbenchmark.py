"""A device describes itself: a short benchmark of what models are made of, about a second a class.

What is measured is written down in ``probe_graphs``. Each rate is the median of several short runs;
beside it stands how much they varied, and the whole says how noisy the machine was meanwhile.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import median
from typing import Any, Final

from modelless.profiler.device import DeviceFacts
from modelless.profiler.noise import HostNoise, NoiseGauge, NoiseLimits, spread_of
from modelless.profiler.probe_graphs import Probe, Quantity, probes
from modelless.variants.errors import EnvironmentUnfitError, IntegrityError
from modelless.variants.vocabulary import DeviceClass, Engine

BENCHMARK: Final = 1
"""Rises when rates come to mean something else; those of another benchmark are measured anew."""

TYPICAL_S: Final = 2.0
"""What a benchmark takes at most on an ordinary machine, a device class."""

SAMPLES: Final = 9
SAMPLE_S: Final = 0.008
"""A sample repeats its run for about so long: a stray interrupt then matters little."""

Run = Callable[[], object]


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """What a device class does in a second, as its engine uses it. What was not measured is absent.

    Attributes:
        threads: intra-op threads it was measured with.
        engine: what ran the probes, ``onnxruntime-cpu-1.20.1``; empty if none is installed.
        copy_bytes_per_s: bytes read and written by an elementwise operator, by where its data lies:
            ``L2``, ``L3``, ``memory``.
        product_multiply_adds_per_s: of a matrix product, by precision. Where a processor has no
            arithmetic of a precision, the engine converts, and the rate is what is left of it.
        depthwise_multiply_adds_per_s: of a depthwise 3x3 convolution, by precision.
        operator_s: an operator more in a graph, its work aside.
        run_s: a call of the engine with a graph of one tiny operator.
        spread: p90 / p10 - 1 of the runs behind each rate, by the probe's name.
        noise: how noisy it was, as a multiple of what is still quiet enough.
        trusted: whether it was quiet enough.
        elapsed_s: what the benchmark took.
        measured_at: when, ISO 8601, UTC.
    """

    threads: int
    engine: str = ""
    copy_bytes_per_s: Mapping[str, float] = field(default_factory=dict)
    product_multiply_adds_per_s: Mapping[str, float] = field(default_factory=dict)
    depthwise_multiply_adds_per_s: Mapping[str, float] = field(default_factory=dict)
    operator_s: float | None = None
    run_s: float | None = None
    spread: Mapping[str, float] = field(default_factory=dict)
    noise: float = 0.0
    trusted: bool = True
    elapsed_s: float = 0.0
    measured_at: str = ""

    def document(self) -> dict[str, Any]:
        """The rates as plain data for JSON."""
        return {"benchmark": BENCHMARK, **dataclasses.asdict(self)}

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> DeviceRates | None:
        """The rates that a document holds; None if another benchmark measured them."""
        if document.get("benchmark") != BENCHMARK:
            return None
        return cls(**{each.name: document[each.name] for each in dataclasses.fields(cls)})


@dataclass(frozen=True)
class Bench:
    """What the benchmark needs of the world.

    Attributes:
        open_probe: makes one ready to run with so many threads; EnvironmentUnfitError if the engine
            cannot run it. None if no engine is installed.
        clock: seconds, monotonic.
        gauge: how noisy it is.
        now: the time of day.
    """

    open_probe: Callable[[Probe, int], Run] | None
    clock: Callable[[], float]
    gauge: NoiseGauge
    now: Callable[[], datetime]


def host_bench() -> Bench:
    """The real world, and the engine if it is installed."""
    open_probe: Callable[[Probe, int], Run] | None = _open_with_onnx_runtime
    try:
        import modelless.variants.runtimes.onnxruntime_cpu  # noqa: F401 (is it there?)
    except ImportError:
        open_probe = None
    return Bench(open_probe, time.perf_counter, HostNoise(), lambda: datetime.now(UTC))


def measure_rates(
    device: DeviceClass,
    facts: DeviceFacts,
    *,
    bench: Bench | None = None,
    wanted: Sequence[Probe] | None = None,
) -> DeviceRates:
    """Measure what ``device`` does in a second.

    Args:
        device: a class of this machine's.
        facts: of this machine: its caches and its engines' versions.
        bench: another world, in tests.
        wanted: these probes only, in tests.
    """
    bench = bench or host_bench()
    started_s = bench.clock()
    engine = Engine.ONNXRUNTIME_CPU
    runs: dict[Probe, Run] = {}
    if bench.open_probe is not None and device.kind == "cpu":
        for probe in probes(facts.cache_bytes) if wanted is None else wanted:
            try:
                runs[probe] = bench.open_probe(probe, device.threads)
            except (EnvironmentUnfitError, IntegrityError):
                continue  # the engine has no such operator
    durations = sample_in_turn(runs, bench.clock)
    spread = {probe.name: spread_of(found) for probe, found in durations.items()}
    limits = NoiseLimits()
    noise = bench.gauge.since(
        started_s, device.threads, median(spread.values()) if spread else 0.0
    ).level(limits)
    run_s, operator_s = _overheads(durations)
    version = facts.engines.get(engine.value)
    return DeviceRates(
        threads=device.threads,
        engine=f"{engine.value}-{version}" if durations and version else "",
        copy_bytes_per_s=_rates(durations, Quantity.COPY),
        product_multiply_adds_per_s=_rates(durations, Quantity.PRODUCT),
        depthwise_multiply_adds_per_s=_rates(durations, Quantity.DEPTHWISE),
        operator_s=operator_s,
        run_s=run_s,
        spread=spread,
        noise=noise,
        trusted=noise <= 1.0,
        elapsed_s=bench.clock() - started_s,
        measured_at=bench.now().isoformat(),
    )


def sample_in_turn(
    runs: Mapping[Probe, Run], clock: Callable[[], float]
) -> dict[Probe, list[float]]:
    """Seconds a run, ``SAMPLES`` of each, each the mean over ``SAMPLE_S`` or one run.

    They take turns, so that a neighbour's burst spoils a sample or two of each and no median.
    """
    repeats: dict[Probe, int] = {}
    for probe, run in runs.items():
        run()  # the first allocates
        started_s = clock()
        run()
        once_s = clock() - started_s
        repeats[probe] = max(1, round(SAMPLE_S / once_s)) if once_s > 0.0 else 1
    found: dict[Probe, list[float]] = {probe: [] for probe in runs}
    for _ in range(SAMPLES):
        for probe, run in runs.items():
            started_s = clock()
            for _ in range(repeats[probe]):
                run()
            found[probe].append((clock() - started_s) / repeats[probe])
    return found


def _rates(durations: Mapping[Probe, Sequence[float]], quantity: Quantity) -> dict[str, float]:
    return {
        probe.of: probe.work / median(found)
        for probe, found in durations.items()
        if probe.quantity is quantity and median(found) > 0.0
    }


def _overheads(
    durations: Mapping[Probe, Sequence[float]],
) -> tuple[float | None, float | None]:
    """(a run, an operator more): from a graph of one tiny operator and one of a long chain."""
    by_quantity = {probe.quantity: (probe, median(found)) for probe, found in durations.items()}
    short, long = by_quantity.get(Quantity.RUN), by_quantity.get(Quantity.CHAIN)
    if short is None or long is None:
        return None, None
    more_s = (long[1] - short[1]) / (long[0].work - short[0].work)
    return short[1], max(0.0, more_s)


def _open_with_onnx_runtime(probe: Probe, threads: int) -> Run:
    from modelless.variants.runtimes.onnxruntime_cpu import open_on_cpu

    session = open_on_cpu(probe.model, threads, f"the probe '{probe.name}'")
    outputs = [output.name for output in session.get_outputs()]
    return lambda: session.run(outputs, probe.feeds)
