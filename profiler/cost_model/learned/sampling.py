"""Which of a device's rows are measured, to predict the others from: its shots.

``random`` takes any. ``chosen`` takes, one after the other, what is expected to tell most of all
the rest (``acquisition``), as ``modelless profile --budget`` does; only that there a measurement is
worth what it tells for a second of measuring, and here all cost the same. It sees the latencies of
what it has taken, and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from modelless.profiler.cost_model.learned.acquisition import Gains
from modelless.variants.estimates import FloatArray

IntArray = NDArray[np.intp]

# Rows looked at for each shot, taken anew at random: the cost of a choice grows with their square,
# and nearly the best of all is among them (Mirzasoleiman et al., "Lazier Than Lazy Greedy", 2015).
_CANDIDATES = 100


class Learner(Protocol):
    """Learns from a device's shots, and knows how unsure it is of the rest."""

    def unknown(
        self, shots: IntArray, latency_ms: FloatArray, rows: IntArray
    ) -> tuple[FloatArray, float]:
        """See ``Predictor.unknown``."""
        ...


Sampler = Callable[[Learner, FloatArray, int, int], IntArray]
"""From (who learns, latency of each of a device's n rows in milliseconds, how many shots, seed) to
the shots in the order in which they are taken, shape (shots,)."""


def sample_at_random(_: Learner, latency_ms: FloatArray, count: int, seed: int) -> IntArray:
    """A ``Sampler`` that looks at nothing."""
    return np.random.default_rng([seed, count]).permutation(len(latency_ms))[:count]


def sample_by_choice(learner: Learner, latency_ms: FloatArray, count: int, seed: int) -> IntArray:
    """A ``Sampler``: each by what it is expected to tell after those before it were seen.

    With the same seed, few shots are the first of many.
    """
    rng = np.random.default_rng(seed)
    shots, left = np.arange(0), np.arange(len(latency_ms))
    for _ in range(count):
        candidates = rng.permutation(left)[:_CANDIDATES]
        gains = Gains(*learner.unknown(shots, latency_ms[shots], candidates))
        best = candidates[np.argmax(gains.now())]
        shots, left = np.append(shots, best), left[left != best]
    return shots


SAMPLERS: Mapping[str, Sampler] = {"random": sample_at_random, "chosen": sample_by_choice}
