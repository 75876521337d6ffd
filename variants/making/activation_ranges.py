"""The range of an activation that its 8-bit codes cover, by three rules.

- ``min-max``: from the smallest to the largest value seen. One outlier makes every step coarser.
- ``percentile``: saturates what is larger in size than a given share of the values.
- ``entropy``: saturates where the coarsened distribution tells most about the original one: the
  threshold of least Kullback-Leibler divergence; Migacz, "8-bit Inference with TensorRT", GTC 2017,
  https://on-demand.gputechconf.com/gtc/2017/presentation/s7310-8-bit-inference-with-tensorrt.pdf.

Both saturating rules work on sizes, so they cut both signs alike, but never beyond what was seen.
Exact zeros are left out of the histograms: zero has a code of its own under every threshold, so it
is no evidence for any, and after a ReLU it would drown all that is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, helper

from modelless.variants.making.bounded_memory import Pieces
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.making.maker import send_message
from modelless.variants.making.session import Session

Method = Literal["min-max", "percentile", "entropy"]
Counts = NDArray[np.int64]

BINS: Final = 2048
"""Bins of a histogram; Migacz's number."""

_CODES: Final = 256
_VALUES_AT_ONCE: Final = 1 << 20
_STRIDE: Final = 16  # candidates are 16 bins apart: thresholds to 1/128 of the largest value


@dataclass(frozen=True, slots=True)
class ActivationRange:
    """The values that codes shall cover; they lie on both sides of zero, or end in it."""

    low: float
    high: float

    @property
    def size(self) -> float:
        """The largest size in it."""
        return max(-self.low, self.high)

    @property
    def codes(self) -> int:
        """How many of the 256 codes lie on its larger side."""
        return max(2, round(_CODES * self.size / (self.high - self.low))) if self.size else _CODES

    def saturated(self, threshold: float) -> ActivationRange:
        """The range without what is larger in size than ``threshold``."""
        return ActivationRange(max(self.low, -threshold), min(self.high, threshold))


def measure_ranges(
    model: ModelProto,
    names: Iterable[str],
    calibration: CalibrationData,
    method: Method,
    percentile: float,
) -> dict[str, ActivationRange]:
    """The range of each named float32 tensor of ``model`` on calibration data.

    The data is run once for the extremes and, for a saturating rule, once more for the histograms,
    so that every bin is known before the first value is counted. Nothing else is kept, and no run
    is asked for more values than ``bounded_memory.MOST_BYTES``.

    Args:
        model: float32; not changed.
        names: tensors to look at.
        percentile: share of the values, per cent, that ``percentile`` keeps.
    """
    wanted = sorted(set(names))
    extremes = dict.fromkeys(wanted, ActivationRange(0.0, 0.0))
    for name, values in activations(model, wanted, calibration, "extremes of activations"):
        seen = extremes[name]
        extremes[name] = ActivationRange(
            min(seen.low, float(values.min())), max(seen.high, float(values.max()))
        )
    if method == "min-max":
        return extremes
    counts = {name: np.zeros(BINS, np.int64) for name in wanted}
    for name, values in activations(model, wanted, calibration, "histograms of activations"):
        flat = values.reshape(-1)
        for start in range(0, flat.size, _VALUES_AT_ONCE):
            some = flat[start : start + _VALUES_AT_ONCE]
            sizes = np.abs(some[some != 0])
            if sizes.size:
                counts[name] += np.histogram(sizes, BINS, (0.0, extremes[name].size))[0]
    bins: Callable[[Counts, int], int] = (
        entropy_bins if method == "entropy" else lambda found, _: percentile_bins(found, percentile)
    )
    return {
        name: seen.saturated(seen.size * bins(counts[name], seen.codes) / BINS)
        for name, seen in extremes.items()
    }


def percentile_bins(counts: Counts, percentile: float) -> int:
    """How many bins hold ``percentile`` per cent of what was counted; all if nothing was.

    Args:
        counts: int64 [bins], by size.
    """
    below = np.cumsum(counts)
    if not below[-1]:
        return len(counts)
    return int(np.searchsorted(below, percentile / 100.0 * below[-1])) + 1


def entropy_bins(counts: Counts, levels: int) -> int:
    """How many bins to keep, so that quantising them to ``levels`` loses least information.

    For each candidate, the reference is the distribution with all that lies beyond saturated into
    its last bin. Against it stands what ``levels`` codes can tell: the bins merged into as many
    groups, the count of each spread evenly over those of its bins that hold anything. The candidate
    of least divergence D(reference || quantised) wins; of equals, the largest.

    Args:
        counts: int64 [bins], by size.
        levels: codes there are for sizes.
    """
    bins, total = len(counts), int(counts.sum())
    if not total or levels >= bins:
        return bins
    best, least = bins, np.inf
    for kept in range(bins, levels - 1, -_STRIDE):
        divergence = _divergence(counts, kept, levels, total)
        if divergence < least:
            best, least = kept, divergence
    return best


def _divergence(counts: Counts, kept: int, levels: int, total: int) -> float:
    reference = counts[:kept].astype(np.float64)
    occupied = reference > 0
    starts = np.arange(levels) * kept // levels
    merged = np.add.reduceat(reference, starts)
    places = np.add.reduceat(occupied.astype(np.float64), starts)
    even = np.divide(merged, places, out=np.zeros(levels), where=places > 0)
    quantised = np.repeat(even, np.diff(starts, append=kept)) * occupied
    reference[-1] += counts[kept:].sum()
    # Where only saturated values lie, the codes tell nothing and the divergence would be infinite:
    # half an observation stands for not having seen any.
    quantised[-1] = max(quantised[-1], 0.5)
    p, q = reference / total, quantised / quantised.sum()
    seen = p > 0
    return float(np.sum(p[seen] * np.log(p[seen] / q[seen])))


def activations(
    model: ModelProto, names: Iterable[str], calibration: CalibrationData, what: str = ""
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """The values of the named float32 tensors, piece by piece; empty ones are left out.

    Args:
        model: not changed.
        names: inputs, outputs, or anything between.
        calibration: the data; a call may be cut into several pieces.
        what: tells the maker's progress what they are for.
    """
    wanted = sorted(names)
    session = Session(_with_outputs(model, wanted), arena=False)
    pieces = Pieces(session, [name for name in wanted if name not in session.inputs])
    for done, feed in enumerate(calibration.feeds):
        for number, piece in enumerate(pieces.cut(feed)):
            if what:
                send_message(f"{what}, call {done + 1}/{len(calibration.feeds)}, part {number + 1}")
            inputs = {name: piece[name] for name in wanted if name in piece}
            for found in chain([inputs], pieces.run(piece)):
                yield from ((name, values) for name, values in found.items() if values.size)


def _with_outputs(model: ModelProto, names: list[str]) -> bytes:
    more = deepcopy(model)
    there = {value.name for value in (*more.graph.output, *more.graph.input)}
    for name in names:
        if name not in there:
            more.graph.output.append(helper.make_empty_tensor_value_info(name))
    return bytes(more.SerializeToString())
