"""Made-up profiles of which everything is known, and the few words tests need about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelless.profiler.cost_model.unmeasured.device_predictor import DevicePredictor, Prediction
from modelless.profiler.cost_model.unmeasured.features import NameCodes, Points, encode
from modelless.profiler.cost_model.unmeasured.prior import shipped_prior
from modelless.profiler.measure.table import TableRow

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]

_ROW = TableRow(
    source="lab",
    task="imagenet",
    model="net",
    family="nets",
    device="a",
    device_kind="cpu",
    engine="onnxruntime",
    precision="fp32",
    resolution_px=224,
    batch=1,
    concurrency=None,
    params_m=5.0,
    gmacs=0.5,
    mactivations_m=6.0,
    layers=50,
    latency_ms=10.0,
    latency_p99_ms=None,
    throughput_per_s=None,
    memory_mib=None,
    accuracy=None,
    accuracy_metric="",
)

BLANK_SIZES: Mapping[str, Any] = {
    "params_m": None,
    "gmacs": None,
    "mactivations_m": None,
    "layers": None,
    "resolution_px": None,
}


def row(**changes: Any) -> TableRow:
    """One plausible row, but for ``changes``."""
    return replace(_ROW, **changes)


def multiples(
    factors: Mapping[str, float], models: int = 20, seed: int = 0, **changes: Any
) -> list[TableRow]:
    """Devices that are exact multiples of one another; models differ in size and in kind."""
    rng = np.random.default_rng(seed)
    gmacs = np.exp(rng.normal(0.0, 1.0, models))
    latency_ms = 10.0 * gmacs * np.exp(rng.normal(0.0, 0.2, models))
    return [
        row(
            **{
                "device": device,
                "model": f"net{number}",
                "family": f"family-{number % 4}",
                "gmacs": float(gmacs[number]),
                "params_m": 5.0 * float(gmacs[number]),
                "latency_ms": factor * float(latency_ms[number]),
                **changes,
            }
        )
        for device, factor in factors.items()
        for number in range(models)
    ]


def varied(devices: int = 4, models: int = 12, seed: int = 0) -> list[TableRow]:
    """Devices of three kinds with engines, precisions and batches; latencies at random."""
    rng = np.random.default_rng(seed)
    kinds = ("cpu", "gpu", "npu")
    return [
        row(
            device=f"d{device}",
            device_kind=kinds[device % 3],
            engine=f"engine-{number % 2}",
            precision=("fp32", "int8")[(number // 2) % 2],
            model=f"net{number % 7}_v{number}",
            family=f"family-{number % 3}",
            batch=(1, 4, 16)[number % 3],
            gmacs=float(np.exp(rng.normal())),
            params_m=None if number % 5 == 0 else float(np.exp(rng.normal(2.0))),
            layers=None if number % 4 == 0 else int(rng.integers(10, 300)),
            latency_ms=float(np.exp(rng.normal(2.0))),
        )
        for device in range(devices)
        for number in range(models)
    ]


def encoded(rows: Sequence[TableRow], item_effect_seed: int | None = None) -> Points:
    """The rows as points; how they fare elsewhere drawn at random, or not known."""
    points = encode(rows, NameCodes(), shipped_prior().roofline)
    if item_effect_seed is None:
        return points
    rng = np.random.default_rng(item_effect_seed)
    known = (rng.random(len(points)) < 0.7).astype(np.float64)
    return replace(points, item_effect=known * rng.normal(size=len(points)), has_item_effect=known)


def parted(rows: Sequence[TableRow], device: str) -> tuple[list[TableRow], list[TableRow]]:
    """(rows of other devices, rows of ``device``)."""
    return (
        [one for one in rows if one.device != device],
        [one for one in rows if one.device == device],
    )


def latencies_ms(rows: Sequence[TableRow]) -> FloatArray:
    """Measured milliseconds, shape (n,)."""
    return np.array([one.latency_ms for one in rows])


def drawn(count: int, of: int, seed: int = 0) -> tuple[IntArray, IntArray]:
    """(``count`` shots, the other rows) of ``of`` rows."""
    order = np.random.default_rng(seed).permutation(of)
    return np.sort(order[:count]), np.sort(order[count:])


def predict(
    rows: Sequence[TableRow], device: str, shots: int, seed: int = 0, spoil: float = 1.0
) -> tuple[Prediction, FloatArray]:
    """(prediction of a device from the others and some shots, what is true).

    Args:
        rows: of several devices.
        device: is left out.
        shots: of it that are given.
        seed: of their draw.
        spoil: multiplies the first shot's latency.
    """
    training, wanted = parted(rows, device)
    given, rest = drawn(shots, len(wanted), seed)
    true_ms = latencies_ms(wanted)
    seen_ms = true_ms[given]
    seen_ms[:1] *= spoil
    predictor = DevicePredictor(shipped_prior(), training, wanted)
    return predictor.predict(given, seen_ms, rest), true_ms[rest]


def errors_percent(prediction: Prediction, true_ms: FloatArray) -> FloatArray:
    """Absolute errors of the medians relative to the truth, per cent."""
    return np.asarray(100.0 * np.abs(prediction.median_ms / true_ms - 1.0))


def band_width(prediction: Prediction) -> float:
    """Median ratio of a band's upper to its lower end."""
    return float(np.median(prediction.high_ms / prediction.low_ms))


@contextmanager
def one_thread() -> Iterator[None]:
    """Boosted trees in one thread meanwhile: with more, joblib polls, which unit tests refuse."""
    import sklearn.ensemble  # noqa: F401  (its threads can be limited once it is loaded)
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1, user_api="openmp"):
        yield
