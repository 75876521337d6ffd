"""Which of several queues comes first, said once for every policy that takes the most urgent."""

from __future__ import annotations

from collections.abc import Sequence

from modelless.policies.views import QueryView, QueueView, WorkerView


def rank(query: QueryView) -> int:
    """What comes before all deadlines, the lowest first: priority, then who is not demoted."""
    return query.demoted - 2 * query.priority


def urgency(query: QueryView) -> tuple[int, float, int]:
    """The order in queues: rank, then deadline, then arrival."""
    return (query.demoted - 2 * query.priority, query.deadline_s, query.query_id)


def heads(queues: Sequence[QueueView]) -> list[tuple[int, float, int]]:
    """The urgency of each queue's first query."""
    return [queue.head or urgency(queue.queries[0]) for queue in queues]


def bound_queues(worker: WorkerView, queues: Sequence[QueueView]) -> list[QueueView]:
    """The queues bound to what the worker holds, the one with the most urgent head first."""
    bound = [queue for queue in queues if queue.variant_id in worker.residents and queue.queries]
    return sorted(bound, key=lambda queue: urgency(queue.queries[0]))
