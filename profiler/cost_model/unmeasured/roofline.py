"""The analytical latency estimate: time for arithmetic, memory traffic, weights and launches.

The model follows Williams, Waterman and Patterson, "Roofline: an insightful visual performance
model for multicore architectures" (2009), with a sum in place of the maximum: a real network is
bound by one resource in one layer and by another in the next, and the two overlap little.

The constants describe the typical device of a kind. Published figures of a device scale them
(``published_speed``); measured rates of a device replace them (``measured_unit_ms``).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from modelless.profiler.devices.known_devices import KnownDevice, find_known_device, known_devices
from modelless.variants.estimates import FloatArray

if TYPE_CHECKING:
    from modelless.profiler.devices.microbenchmark import DeviceRates

COMPONENTS = ("ms_per_gmac", "ms_per_mactivation", "ms_per_mparam", "ms_per_layer")
_LEAST_MS = 1e-9
_UNKNOWN_KIND = "cpu"
_TYPICAL_LAYERS = 100.0

_BANDWIDTH = "bandwidth_bytes_per_s"
# The peak rate of each precision, and the rates that stand in for one that is not published.
_ARITHMETIC = {
    "int8": ("int8_operations_per_s", "fp16_operations_per_s", "fp32_operations_per_s"),
    "fp16": ("fp16_operations_per_s", "fp32_operations_per_s"),
    "fp32": ("fp32_operations_per_s", "fp16_operations_per_s"),
}

_COMPONENT_TIMES: Final = np.array([0.67, 1.2, 0.12, 2.1])
"""The time of each component as a multiple of its probe's time.

The layers of models differ from the probes. The factors were fitted to eight profiles of
EfficientNet-Lite and small plain CNNs, fp32 and int8, on one and two cores of one kind of processor
(a server's with AMX). Weights are below 1 because they stay in caches; multiply-adds are below 1
because those of depthwise layers count with their activations, too. Fitted without one of the
machines, the factors predict it within 0.33 in log latency (root mean square, none of it measured);
fitted to one of the two model families, they predict the other within 0.55 to 0.86. Of 1,229
published models on another processor 0.37 remains after their mean is subtracted.
"""

_DEPTHWISE_MULTIPLY_ADDS: Final = 9.0
_WEIGHT_BYTES: Final = 4.0


class RelativeSpeed(NamedTuple):
    """The speed of a device as multiples of the typical device's.

    Attributes:
        arithmetic: peak arithmetic rate of a precision.
        memory: memory bandwidth.
    """

    arithmetic: float
    memory: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """The time that each component of a network takes, for each device kind.

    Attributes:
        constants: milliseconds per unit by device kind, shape (4,) in the order of ``COMPONENTS``.
    """

    constants: Mapping[str, FloatArray]

    def unit_ms(self, kind: str, speed: RelativeSpeed) -> FloatArray:
        """Returns the milliseconds per unit of each component on a device, shape (4,).

        Args:
            kind: device kind; an unknown kind counts as a CPU.
            speed: the device's speed relative to the typical device of its kind.
        """
        constants = self.constants.get(kind, self.constants[_UNKNOWN_KIND])
        relative = np.array([speed.arithmetic, speed.memory, speed.memory, 1.0])
        return np.asarray(constants / relative)

    @staticmethod
    def estimate(
        unit_ms: Sequence[FloatArray], sizes: Mapping[str, FloatArray]
    ) -> tuple[FloatArray, FloatArray]:
        """Returns the log milliseconds an item and each component's share of the time.

        Args:
            unit_ms: milliseconds per unit on the device of each of n points, shape (4,) each.
            sizes: ``gmacs``, ``mactivations_m``, ``params_m``, ``layers`` and ``batch``, shape (n,)
                each. A component whose size is NaN is left out; unknown layers are typical ones.

        Returns:
            Log milliseconds, shape (n,), and shares, shape (n, 4).
        """
        work = np.stack(
            [
                np.nan_to_num(sizes["gmacs"]),
                np.nan_to_num(sizes["mactivations_m"]),
                np.nan_to_num(sizes["params_m"]) / sizes["batch"],
                np.nan_to_num(sizes["layers"], nan=_TYPICAL_LAYERS) / sizes["batch"],
            ],
            axis=1,
        )
        time_ms = work * np.array(unit_ms).reshape(len(work), len(COMPONENTS))
        total_ms = np.maximum(time_ms.sum(axis=1), _LEAST_MS)
        return np.log(total_ms), time_ms / total_ms[:, None]


@cache
def published_speed(device: str, kind: str, precision: str) -> RelativeSpeed:
    """Returns the relative speed of a device by its vendor's figures; 1 and 1 without figures.

    Args:
        device: the name that tables and drivers use.
        kind: ``cpu``, ``gpu`` or ``npu``.
        precision: ``fp32``, ``fp16`` or ``int8``; any other counts as ``int8``.
    """
    known = find_known_device(device, kind)
    if known is None:
        return RelativeSpeed(1.0, 1.0)
    memory = _relative_figure(known, _BANDWIDTH)
    names = _ARITHMETIC.get(precision, _ARITHMETIC["int8"])
    arithmetic = next((found for name in names if (found := _relative_figure(known, name))), None)
    # A figure that is not published is assumed to be as much better or worse as the published one.
    either = arithmetic or memory or 1.0
    return RelativeSpeed(arithmetic or either, memory or either)


def _relative_figure(known: KnownDevice, name: str) -> float | None:
    value: float | None = getattr(known, name)
    return None if value is None else float(value / _typical_figure(known.kind, name))


@cache
def _typical_figure(kind: str, name: str) -> float:
    values = [getattr(known, name) for known in known_devices() if known.kind == kind]
    return float(statistics.median([value for value in values if value is not None]))


def measured_unit_ms(rates: DeviceRates, precision: str) -> FloatArray | None:
    """Returns the milliseconds per unit of each component by a device's measured rates, shape (4,).

    The units are 10^9 multiply-adds, 10^6 activations, 10^6 weights and a layer. Each component
    is computed from the probe of ``microbenchmark`` that is most like it:

    - a multiply-add from the matrix product;
    - an activation from nine multiply-adds of the depthwise 3x3 convolution, whose time is mostly
      the time to move each activation through the caches;
    - a weight from four bytes copied in memory; - a layer from one run of a graph of a single
    operator, which starts the threads as a layer does.

    Args:
        rates: what the device was measured to do.
        precision: ``fp32``, ``fp16`` or ``int8``; a precision without a rate counts as fp32.

    Returns:
        None if a rate is missing.
    """
    product = _rate_of(rates.product_multiply_adds_per_s, precision)
    depthwise = _rate_of(rates.depthwise_multiply_adds_per_s, precision)
    copy = rates.copy_bytes_per_s.get("memory")
    if product is None or depthwise is None or copy is None or rates.run_s is None:
        return None
    probe_ms = [
        1e3 * 1e9 / product,
        1e3 * 1e6 * _DEPTHWISE_MULTIPLY_ADDS / depthwise,
        1e3 * 1e6 * _WEIGHT_BYTES / copy,
        1e3 * rates.run_s,
    ]
    return np.asarray(_COMPONENT_TIMES * np.array(probe_ms))


def _rate_of(by_precision: Mapping[str, float], precision: str) -> float | None:
    return by_precision.get(precision, by_precision.get("fp32"))
