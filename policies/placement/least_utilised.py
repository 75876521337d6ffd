"""Least utilised first: takes the least busy worker, as INFaaS does (ATC 2021)."""

from __future__ import annotations

from collections.abc import Sequence

from modelless.policies.seams import PlacementPolicy
from modelless.policies.views import WorkerState


class LeastUtilised(PlacementPolicy):
    """Workers with room first, then by busy share since the last view, then by free memory."""

    def rank(
        self, variant_id: str, memory_bytes: int, workers: Sequence[WorkerState]
    ) -> Sequence[WorkerState]:
        def order(worker: WorkerState) -> tuple[bool, float, int, str]:
            fits = worker.free_bytes >= memory_bytes
            return not fits, worker.busy_share, -worker.free_bytes, worker.worker_id

        return sorted(workers, key=order)
