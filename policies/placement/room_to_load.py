"""Room to load: prefers free memory, then an idle loader, then the home of the variant."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from modelless.policies.seams import PlacementPolicy
from modelless.policies.views import WorkerState


class RoomToLoad(PlacementPolicy):
    """Most free memory where it suffices; otherwise the loads are spread over the workers.

    Full workers differ in free memory only by accident. To rank them by it would send load after
    load to the same one, while what the others hold is never evicted. So among workers without
    room, those with the fewest loads under way come first, and then each variant has an order of
    its own (rendezvous hashing; Thaler and Ravishankar, IEEE/ACM ToN 1998), so that it returns to
    the worker with the same rivals.

    Of workers with room and equally many loads, the one comes first whose host's other devices slow
    the variant less, in steps of a tenth, where that is known (``WorkerState.slowdowns``).
    """

    def rank(
        self, variant_id: str, memory_bytes: int, workers: Sequence[WorkerState]
    ) -> Sequence[WorkerState]:
        def order(worker: WorkerState) -> tuple[bool, int, float, int, int, str]:
            fits = worker.free_bytes >= memory_bytes
            under_way = sum(instance.is_loading for instance in worker.instances)
            home = zlib.crc32(f"{variant_id} {worker.worker_id}".encode())
            slowdown = round(worker.slowdowns.get(variant_id, 1.0), 1)
            free = -worker.free_bytes if fits else 0
            return not fits, under_way, slowdown, free, home, worker.worker_id

        return sorted(workers, key=order)
