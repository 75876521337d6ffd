"""Which rows can ever be the best choice: with them, a choice among thousands is as quick as any.

A row is left out if another row *with the same workers* is at least as accurate, as cheap and as
quick at every quantile: such a row waits as long, so it loses whatever the queues are. Computed
once for each set of estimates, not for each query.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from modelless.policies.views import FloatArray
from modelless.variants.estimates import Estimates

WORTHWHILE_ROWS = 128
"""Below this many rows, looking at all of them costs no more."""


def find_shortlist(
    accuracy_percent: FloatArray,
    cost_usd: FloatArray,
    estimates: Estimates,
    workers_of: NDArray[np.intp],
) -> NDArray[np.intp] | None:
    """The rows worth looking at, ascending, or None for all of them.

    Args:
        accuracy_percent, cost_usd: shape (n,), float64.
        estimates: n rows; those of which no quantile is known are of no use and left out.
        workers_of: shape (n,): rows with equal numbers are ready on the same workers.
    """
    if len(accuracy_percent) < WORTHWHILE_ROWS:
        return None
    latency_s = np.stack([estimates.p50_s, estimates.p90_s, estimates.p99_s])
    known = np.isfinite(latency_s).any(axis=0)
    columns = np.concatenate([[-accuracy_percent, cost_usd], latency_s])
    columns[np.isnan(columns)] = np.inf
    kept = [
        _undominated(columns, np.flatnonzero(known & (workers_of == number)))
        for number in np.unique(workers_of)
    ]
    rows: NDArray[np.intp] = np.sort(np.concatenate(kept))
    rows.flags.writeable = False
    return rows


def _undominated(columns: FloatArray, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Those of ``rows`` that no other one equals or betters in all columns (less is better).

    Of rows that are equal in all columns the first is kept.
    """
    rows = rows[np.lexsort(columns[:, rows])]  # nothing later can dominate what comes first
    kept = []
    while len(rows):
        first, rest = rows[0], rows[1:]
        kept.append(first)
        better_somewhere = (columns[:, rest] < columns[:, first, None]).any(axis=0)
        rows = rest[better_somewhere]
    return np.array(kept, dtype=np.intp)
