"""Read-only columns of the views that policies get."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from modelless.policies.views import FloatArray
from modelless.variants.estimates import Estimates


def column(values: Iterable[float]) -> FloatArray:
    """The values as a read-only float64 column."""
    made = np.fromiter(values, dtype=np.float64)
    made.flags.writeable = False
    return made


def plus(estimates: Estimates, hop_s: FloatArray) -> Estimates:
    """The estimates with a hop of ``hop_s`` seconds, shape (n,), on the way; read-only."""
    columns = (
        estimates.p50_s + hop_s,
        estimates.p90_s + hop_s,
        estimates.p99_s + hop_s,
        estimates.memory_bytes.view(),  # of the cost model's own arrays: theirs stay as they are
        estimates.load_s.view(),
    )
    for each in columns:
        each.flags.writeable = False
    return Estimates(*columns)
