"""Most free memory first: spreads instances over the memory of the workers."""

from __future__ import annotations

from collections.abc import Sequence

from modelless.policies.seams import PlacementPolicy
from modelless.policies.views import WorkerState


class MostFreeMemory(PlacementPolicy):
    """Worst fit; ties by id."""

    def rank(
        self, variant_id: str, memory_bytes: int, workers: Sequence[WorkerState]
    ) -> Sequence[WorkerState]:
        return sorted(workers, key=lambda worker: (-worker.free_bytes, worker.worker_id))
