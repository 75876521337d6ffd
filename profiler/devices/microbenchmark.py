"""Measures the rates of a device class with tiny graphs, in about a second for each class.

The graphs contain what models are made of: copied tensors, matrix products, depthwise filters,
operators that start. The engine that runs variants runs the graphs, so the rates include its
kernels. The roofline model (Williams, Waterman and Patterson, CACM 2009) needs the first two; the
others cover where it is known to be too optimistic. Each rate is the median of several short runs;
its spread and the noise of the machine are recorded with it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from statistics import median
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from modelless.common.errors import EnvironmentUnfitError, IntegrityError
from modelless.profiler.devices.device import DeviceFacts
from modelless.profiler.measure.noise import HostNoise, spread_of
from modelless.variants.vocabulary import DeviceClass, Engine

_OPSET, _IR_VERSION = 17, 8

MEMORY_BYTES: Final = 64 << 20
"""The size of the copy in memory: larger than most last-level caches, or at least larger than one
tenant's part of a shared cache."""

_CACHE_BYTES: Final = {"L2": 1 << 20, "L3": 8 << 20}  # where the host reports no size
_MOST_CACHE_BYTES: Final = 32 << 20
_COPIES: Final = 4
_SIDE: Final = 384  # of the matrices; three of them fill an ordinary second-level cache
_CHANNELS, _PICTURE_PX, _KERNEL_PX = 96, 56, 3
_FILTERS: Final = 4
_CHAIN: Final = 256


class Quantity(StrEnum):
    """The quantity that a probe measures."""

    COPY = "copy"
    PRODUCT = "product"
    DEPTHWISE = "depthwise"
    RUN = "run"
    CHAIN = "chain"


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """One graph.

    Attributes:
        of: its subdivision: a cache level or ``memory``; a precision; empty if there is only one.
        work: work of one run: bytes read and written; multiply-adds; operators.
    """

    quantity: Quantity
    of: str
    model: bytes
    feeds: Mapping[str, NDArray[Any]]
    work: int

    @property
    def name(self) -> str:
        """The name of the probe, such as ``product fp32``."""
        return f"{self.quantity.value} {self.of}".rstrip()


def probes(cache_bytes: Mapping[str, int]) -> list[Probe]:
    """Returns every probe, for a device with caches of these sizes by level (``L2``, ``L3``)."""
    found = [_copy("memory", MEMORY_BYTES, 1)]
    for level, otherwise in _CACHE_BYTES.items():
        size_bytes = min(cache_bytes.get(level, otherwise), _MOST_CACHE_BYTES)
        # A quarter of a cache: other processes use the rest.
        found.append(_copy(level, size_bytes // 4, _COPIES))
    found += [_product("fp32", np.float32), _product("fp16", np.float16), _int8_product()]
    found += [_depthwise(), _int8_depthwise()]
    one = np.ones(1, np.float32)
    found += [_negations(Quantity.RUN, "", one, 1, 1)]
    found += [_negations(Quantity.CHAIN, "", one, _CHAIN, _CHAIN)]
    return found


def _copy(level: str, size_bytes: int, times: int) -> Probe:
    x = np.ones(size_bytes // 4, np.float32)
    return _negations(Quantity.COPY, level, x, times, 2 * times * x.nbytes)


def _negations(quantity: Quantity, of: str, x: NDArray[Any], times: int, work: int) -> Probe:
    """Returns a probe of negations in a row, an operator that only reads and writes."""
    nodes = [helper.make_node("Neg", [f"x{i}"], [f"x{i + 1}"]) for i in range(times)]
    return _probe(quantity, of, nodes, [], x, work)


def _product(precision: str, dtype: DTypeLike) -> Probe:
    x = np.ones((_SIDE, _SIDE), dtype)
    nodes = [helper.make_node("MatMul", ["x0", "w"], ["x1"])]
    weights = [numpy_helper.from_array(x, "w")]
    return _probe(Quantity.PRODUCT, precision, nodes, weights, x, _SIDE**3)


def _int8_product() -> Probe:
    """Returns a probe of uint8 activations by int8 weights, as static quantisation writes them."""
    x = np.ones((_SIDE, _SIDE), np.uint8)
    node = helper.make_node("QLinearMatMul", _quantised("x0"), ["x1"])
    weights = _quantised_weight(np.ones((_SIDE, _SIDE), np.int8))
    return _probe(Quantity.PRODUCT, "int8", [node], weights, x, _SIDE**3)


def _depthwise() -> Probe:
    weights = [numpy_helper.from_array(np.ones(_FILTER_SHAPE, np.float32), "w")]
    return _filters("fp32", "Conv", lambda x: [x, "w"], weights, np.float32)


def _int8_depthwise() -> Probe:
    weights = _quantised_weight(np.ones(_FILTER_SHAPE, np.int8))
    return _filters("int8", "QLinearConv", _quantised, weights, np.uint8)


_FILTER_SHAPE: Final = (_CHANNELS, 1, _KERNEL_PX, _KERNEL_PX)


def _filters(
    precision: str,
    operator: str,
    inputs_of: Callable[[str], list[str]],
    weights: Sequence[TensorProto],
    dtype: DTypeLike,
) -> Probe:
    pads = [_KERNEL_PX // 2] * 4
    nodes = [
        helper.make_node(operator, inputs_of(f"x{i}"), [f"x{i + 1}"], group=_CHANNELS, pads=pads)
        for i in range(_FILTERS)
    ]
    x = np.ones((1, _CHANNELS, _PICTURE_PX, _PICTURE_PX), dtype)
    work = _FILTERS * x.size * _KERNEL_PX**2
    return _probe(Quantity.DEPTHWISE, precision, nodes, weights, x, work)


def _quantised(x: str) -> list[str]:
    return [x, "scale", "x_zero", "w", "scale", "w_zero", "scale", "x_zero"]


def _quantised_weight(weight: NDArray[Any]) -> list[TensorProto]:
    return [
        numpy_helper.from_array(weight, "w"),
        numpy_helper.from_array(np.array(0.01, np.float32), "scale"),
        numpy_helper.from_array(np.array(0, np.uint8), "x_zero"),
        numpy_helper.from_array(np.array(0, np.int8), "w_zero"),
    ]


def _probe(
    quantity: Quantity,
    of: str,
    nodes: Sequence[NodeProto],
    weights: Sequence[TensorProto],
    x: NDArray[Any],
    work: int,
) -> Probe:
    """Returns a probe of nodes from ``x0`` to the last output, both of ``x``'s shape and type."""
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        nodes,
        quantity.value,
        [helper.make_tensor_value_info("x0", kind, x.shape)],
        [helper.make_tensor_value_info(nodes[-1].output[0], kind, x.shape)],
        weights,
    )
    opsets = [helper.make_opsetid("", _OPSET)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)
    return Probe(quantity, of, model.SerializeToString(), {"x0": x}, work)


BENCHMARK: Final = 1
"""The version of the benchmark; rates of another version are measured again."""

TYPICAL_S: Final = 2.0
"""The most seconds that a benchmark of a device class takes on an ordinary machine."""

SAMPLES: Final = 9
SAMPLE_S: Final = 0.008
"""The duration of a sample, which repeats its run, so that a stray interrupt matters little."""

Run = Callable[[], object]


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """The rates of a device class with its engine; unmeasured rates are absent.

    Attributes:
        engine: engine that ran the probes, ``onnxruntime-cpu-1.20.1``; empty if none is installed.
        copy_bytes_per_s: bytes read and written by an elementwise operator, by the place of its
            data: ``L2``, ``L3``, ``memory``.
        product_multiply_adds_per_s: rate of a matrix product, by precision. Where a processor has
            no arithmetic of a precision, the engine converts, and the rate includes that.
        depthwise_multiply_adds_per_s: rate of a depthwise 3x3 convolution, by precision.
        operator_s: time of one more operator in a graph, without its work, seconds.
        run_s: time of a call of the engine with a graph of one tiny operator, seconds.
        spread: p90 / p10 - 1 of the runs of each rate, by the probe's name.
        noise: noise as a multiple of its limit.
        elapsed_s: time of the benchmark, seconds.
        measured_at: time, ISO 8601, UTC.
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
        """Returns the rates as plain data for JSON."""
        return {"benchmark": BENCHMARK, **dataclasses.asdict(self)}

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> DeviceRates | None:
        """Returns the rates in a document; None if another benchmark version measured them."""
        if document.get("benchmark") != BENCHMARK:
            return None
        return cls(**{each.name: document[each.name] for each in dataclasses.fields(cls)})


@dataclass(frozen=True)
class BenchmarkEnvironment:
    """The clocks, engine and noise gauge of the benchmark; tests substitute their own.

    Attributes:
        open_probe: returns a probe ready to run with so many threads, or raises
            EnvironmentUnfitError if the engine cannot run it. None if no engine is installed.
        clock: monotonic clock, seconds.
    """

    open_probe: Callable[[Probe, int], Run] | None
    clock: Callable[[], float]
    gauge: HostNoise
    now: Callable[[], datetime]


def host_environment() -> BenchmarkEnvironment:
    """Returns the real environment, with the engine if it is installed."""
    open_probe: Callable[[Probe, int], Run] | None = _open_with_onnx_runtime
    try:
        import modelless.variants.runtimes.onnxruntime_cpu  # noqa: F401
    except ImportError:
        open_probe = None
    return BenchmarkEnvironment(
        open_probe, time.perf_counter, HostNoise(), lambda: datetime.now(UTC)
    )


def measure_rates(
    device: DeviceClass,
    facts: DeviceFacts,
    *,
    environment: BenchmarkEnvironment | None = None,
    wanted: Sequence[Probe] | None = None,
) -> DeviceRates:
    """Returns what ``device`` does in a second.

    Args:
        facts: facts of this machine: its caches and its engines' versions.
        wanted: only these probes, in tests.
    """
    environment = environment or host_environment()
    started_s = environment.clock()
    engine = Engine.ONNXRUNTIME_CPU.value
    runs: dict[Probe, Run] = {}
    if environment.open_probe is not None and device.kind == "cpu":
        for probe in probes(facts.cache_bytes) if wanted is None else wanted:
            try:
                runs[probe] = environment.open_probe(probe, device.threads)
            except (EnvironmentUnfitError, IntegrityError):
                continue  # the engine has no such operator
    durations = sample_in_turn(runs, environment.clock)
    spread = {probe.name: spread_of(found) for probe, found in durations.items()}
    noise = environment.gauge.since(
        started_s, device.threads, median(spread.values()) if spread else 0.0
    ).level
    run_s, operator_s = _overheads(durations)
    return DeviceRates(
        threads=device.threads,
        engine=facts.engine_name(engine) if durations and engine in facts.engines else "",
        copy_bytes_per_s=_rates(durations, Quantity.COPY),
        product_multiply_adds_per_s=_rates(durations, Quantity.PRODUCT),
        depthwise_multiply_adds_per_s=_rates(durations, Quantity.DEPTHWISE),
        operator_s=operator_s,
        run_s=run_s,
        spread=spread,
        noise=noise,
        trusted=noise <= 1.0,
        elapsed_s=environment.clock() - started_s,
        measured_at=environment.now().isoformat(),
    )


def sample_in_turn(
    runs: Mapping[Probe, Run], clock: Callable[[], float]
) -> dict[Probe, list[float]]:
    """Returns the seconds of a run, ``SAMPLES`` of each, each the mean over ``SAMPLE_S`` or one
    run.

    The probes take turns, so that a neighbour's burst affects a sample or two of each and no
    median.
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


def _overheads(durations: Mapping[Probe, Sequence[float]]) -> tuple[float | None, float | None]:
    """Returns the time of a run and of one more operator, from a short graph and a long chain."""
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
