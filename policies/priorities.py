"""The order of queues, shared by every policy that takes the most urgent query."""

from __future__ import annotations

from collections.abc import Sequence

from modelless.policies.views import QueryView, QueueView, WorkerView


def rank(query: QueryView) -> int:
    """Returns the rank of a query, lowest first: by priority, then by being demoted.

    Rank comes before all deadlines.
    """
    return query.demoted - 2 * query.priority


def urgency(query: QueryView) -> tuple[int, float, int]:
    """Returns the sort key of a query: rank, then deadline, then arrival."""
    return (query.demoted - 2 * query.priority, query.deadline_s, query.query_id)


def heads(queues: Sequence[QueueView]) -> list[tuple[int, float, int]]:
    """Returns the urgency of each queue's first query."""
    return [queue.head or urgency(queue.queries[0]) for queue in queues]


def bound_queues(worker: WorkerView, queues: Sequence[QueueView]) -> list[QueueView]:
    """Returns the queues bound to variants that the worker holds, the most urgent head first."""
    bound = [queue for queue in queues if queue.variant_id in worker.residents and queue.queries]
    return sorted(bound, key=lambda queue: urgency(queue.queries[0]))
