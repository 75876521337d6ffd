"""The analytical estimate: time for arithmetic, for memory traffic, for weights and for launches.

After Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for
multicore architectures" (2009), with a sum in place of the maximum: real networks are bound by
one thing in one layer and by another in the next, and what is bound by both overlaps little.

The constants are those of the typical device of a kind. What its vendor publishes of a device
scales them, or what it was itself measured to do takes their place (``own_speed``); what it differs
by besides is learned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from modelless.profiler.cost_model.learned.device_speed import Speed
from modelless.variants.estimates import FloatArray

COMPONENTS = ("ms_per_gmac", "ms_per_mactivation", "ms_per_mparam", "ms_per_layer")
_LEAST_MS = 1e-9
_UNKNOWN_KIND = "cpu"
_TYPICAL_LAYERS = 100.0


@dataclass(frozen=True, slots=True)
class Roofline:
    """Milliseconds by component, for each device kind.

    Attributes:
        constants: by device kind, shape (4,) in the order of ``COMPONENTS``.
    """

    constants: Mapping[str, FloatArray]

    def unit_ms(self, kind: str, speed: Speed) -> FloatArray:
        """Milliseconds a unit of each component on some device, shape (4,).

        Args:
            kind: of the device; one that is not known is taken as a CPU.
            speed: beside the typical device of its kind.
        """
        constants = self.constants.get(kind, self.constants[_UNKNOWN_KIND])
        relative = np.array([speed.arithmetic, speed.memory, speed.memory, 1.0])
        return np.asarray(constants / relative)

    @staticmethod
    def estimate(
        unit_ms: Sequence[FloatArray], sizes: Mapping[str, FloatArray]
    ) -> tuple[FloatArray, FloatArray]:
        """(log milliseconds an item, shape (n,); shares of each component, shape (n, 4)).

        Args:
            unit_ms: of the devices, n times shape (4,): see ``unit_ms``.
            sizes: ``gmacs``, ``mactivations_m``, ``params_m``, ``layers`` and ``batch``, shape (n,)
                each; NaN where unknown: then that component is left out, and layers are typical.
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
