"""Which loads are under way: a view shows that an instance is in use, not that it still loads."""

from __future__ import annotations

from collections.abc import Mapping

from modelless.policies.views import ClusterView


class LoadsUnderWay:
    """Takes an instance that appears, in use but never used, to be loading for as long as that
    takes; one after another on each worker."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, str]] = set()
        self._ready_at_s: dict[str, dict[str, float]] = {}  # by worker and variant

    def observe(self, view: ClusterView) -> Mapping[str, float]:
        """How long each worker will go on loading, seconds; workers that do not are left out."""
        seen: set[tuple[str, str]] = set()
        loading: dict[str, dict[str, float]] = {}
        left_s: dict[str, float] = {}
        for worker in view.workers:
            before = self._ready_at_s.get(worker.worker_id, {})
            now: dict[str, float] = {}
            last_s = view.now_s
            fresh = []
            for instance in sorted(worker.instances, key=lambda instance: instance.variant_id):
                seen.add((worker.worker_id, instance.variant_id))
                if not instance.is_loading:
                    continue
                ready_s = before.get(instance.variant_id)
                if ready_s is not None:
                    now[instance.variant_id] = ready_s
                    last_s = max(last_s, ready_s)
                elif (worker.worker_id, instance.variant_id) not in self._seen:
                    fresh.append(instance)
            for instance in fresh:
                last_s += instance.load_s if 0.0 <= instance.load_s < 1e9 else 0.0
                now[instance.variant_id] = last_s
            if now:
                loading[worker.worker_id] = now
            if last_s > view.now_s:
                left_s[worker.worker_id] = last_s - view.now_s
        self._seen, self._ready_at_s = seen, loading
        return left_s
