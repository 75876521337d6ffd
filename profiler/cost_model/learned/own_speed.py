"""How fast a device of one's own is: what it was measured to do, as milliseconds a unit of work.

A vendor's figure says what silicon could do at best; the short benchmark of a device of one's own
(``microbenchmark``) says what the engine gets out of it, with its threads, in each precision. So it
does not scale the constants of the typical device, it takes their place. Each component of the
roofline is the work of the probe that is most like it:

- a multiply-add is one of a matrix product;
- an activation is nine multiply-adds of a depthwise 3x3 convolution, which is bound by what most is
  that is done for each activation: getting it through the caches;
- a weight is four bytes copied in memory;
- a layer is a run of a graph of one operator: threads are called together for both.

Layers of models are no probes. By how much they differ from them was fitted to eight profiles of
EfficientNet-Lite and small plain CNNs, fp32 and int8, on one and two cores of one kind of processor
(a server's with AMX). With all machines but one, the other is predicted within 0.33 in log latency
(root mean square, nothing of it being measured), with the one family of models the other within
0.55 to 0.86, and of 1,229 published models on another processor 0.37 is left when their mean is
taken off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from modelless.variants.estimates import FloatArray

if TYPE_CHECKING:
    from modelless.profiler.devices.microbenchmark import DeviceRates

LEFT_OPEN: Final[Mapping[str, tuple[float, float]]] = {
    "all": (0.012, 0.01),
    "kind": (0.024, 0.01),
    "source": (0.006, 0.01),
    "precision": (0.05, 0.01),
    "engine": (0.05, 0.01),
    "device": (0.10, 1.0),
    "setting": (1.0, 1.0),
}
"""By level (``points.LEVELS``): how much is left open of the prior's variance of the level itself,
and of that of all other terms. The prior's are those of devices of which at most a vendor's figures
are known. Before the first measurement one latency in ten is then expected to take more than 2.7
times as long as the median, and none did of 224: what that was seen on is one kind of processor."""

_TIMES: Final = np.array([0.67, 1.2, 0.12, 2.1])
"""How many times as long as their probes the components take. A weight's is below 1 as it stays in
caches, a multiply-add's as those of depthwise layers are counted with their activations, too."""

_DEPTHWISE_MULTIPLY_ADDS: Final = 9.0
_WEIGHT_BYTES: Final = 4.0


def unit_ms_of(rates: DeviceRates, precision: str) -> FloatArray | None:
    """Milliseconds per 10^9 multiply-adds, 10^6 activations, 10^6 weights and layer, shape (4,).

    None where a rate that this needs was not measured.

    Args:
        rates: of the device.
        precision: ``fp32``, ``fp16`` or ``int8``; one that has no rate is taken as fp32.
    """
    product = _rate(rates.product_multiply_adds_per_s, precision)
    depthwise = _rate(rates.depthwise_multiply_adds_per_s, precision)
    copy = rates.copy_bytes_per_s.get("memory")
    if product is None or depthwise is None or copy is None or rates.run_s is None:
        return None
    probe_ms = [
        1e3 * 1e9 / product,
        1e3 * 1e6 * _DEPTHWISE_MULTIPLY_ADDS / depthwise,
        1e3 * 1e6 * _WEIGHT_BYTES / copy,
        1e3 * rates.run_s,
    ]
    return np.asarray(_TIMES * np.array(probe_ms))


def _rate(by_precision: Mapping[str, float], precision: str) -> float | None:
    return by_precision.get(precision, by_precision.get("fp32"))
