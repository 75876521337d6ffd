"""What a decision must look like whoever makes it."""

# ruff: noqa: S101  (this is a test suite)

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from modelless.policies.reasons import Reason
from modelless.policies.views import (
    Bind,
    Candidates,
    Choice,
    Defer,
    QueryView,
    QueueView,
    Reject,
    Run,
    Wait,
    WorkerView,
)


def check_choice(choice: Choice, candidates: Candidates) -> None:
    """A Bind to a row that there is, a Defer or a Reject; with a reason."""
    assert isinstance(choice, (Bind, Defer, Reject)), f"{choice!r} is no choice"
    assert isinstance(choice.reason, Reason), f"{choice!r} gives no reason"
    if isinstance(choice, Bind):
        rows = len(candidates.placements)
        assert isinstance(choice.row, (int, np.integer)), f"{choice!r}: the row is no number"
        assert 0 <= choice.row < rows, f"{choice!r}: there are {rows} rows"


def check_within_limits(query: QueryView, choice: Choice, candidates: Candidates) -> None:
    """A bound query is served within its limits, as far as anyone can tell."""
    if not isinstance(choice, Bind):
        return
    row = choice.row
    p50_s = float(candidates.estimates.p50_s[row])
    assert np.isfinite(p50_s), f"bound to row {row}, whose latency is unknown ({p50_s})"
    accuracy, cost_usd = candidates.accuracy_percent[row], candidates.cost_usd[row]
    assert accuracy >= query.min_accuracy_percent, (
        f"bound to {accuracy} % though {query.min_accuracy_percent} % were asked for"
    )
    assert cost_usd <= query.max_cost_usd, f"bound to {cost_usd} USD, limit {query.max_cost_usd}"
    finish_s = float(candidates.free_at_s[row]) + p50_s
    assert finish_s <= query.deadline_s, (
        f"bound to what is late even at the median, by {finish_s - query.deadline_s:.6f} s"
    )


def check_decision(
    decision: Run | Wait, worker: WorkerView, queues: Sequence[QueueView], now_s: float
) -> None:
    """A batch that the worker can run, of queries that wait for it, or a wait; with a reason."""
    assert isinstance(decision, (Run, Wait)), f"{decision!r} is no decision"
    assert isinstance(decision.reason, Reason), f"{decision!r} gives no reason"
    waiting = {query.query_id: (queue, query) for queue in queues for query in queue.queries}
    if isinstance(decision, Wait):
        assert not waiting or now_s < decision.until_s < float("inf"), (
            f"queries wait, but the worker is to wait until {decision.until_s}; "
            "allowed: a time after now, or nobody may ever ask again"
        )
        return
    assert decision.variant_id in worker.residents, f"{decision.variant_id!r} is not resident"
    ids = [query.query_id for query in decision.queries]
    assert ids, "an empty batch"
    assert len(set(ids)) == len(ids), f"a query twice in one batch: {ids}"
    assert set(ids) <= set(waiting), f"queries that do not wait: {sorted(set(ids) - set(waiting))}"
    members = [waiting[query_id] for query_id in ids]  # as they came, whatever it made of them
    bound_to = {queue.variant_id for queue, _ in members} - {None}
    assert bound_to <= {decision.variant_id}, f"queries bound to {bound_to} run by another variant"
    assert len({queue.batch_key for queue, _ in members}) == 1, "shapes are mixed"
    items = sum(query.items for _, query in members)
    assert items <= worker.max_batch, f"{items} items in a batch of at most {worker.max_batch}"


def check_accuracy_kept(
    decision: Run | Wait, worker: WorkerView, queues: Sequence[QueueView]
) -> None:
    """Nobody who left the choice open is served by what is less accurate than was asked for."""
    if not isinstance(decision, Run):
        return
    deferred = [queue for queue in queues if queue.variant_id is None]
    asked_for = {q.query_id: q.min_accuracy_percent for queue in deferred for q in queue.queries}
    accuracy = worker.residents[decision.variant_id].accuracy_percent
    for query in decision.queries:
        least = asked_for.get(query.query_id, 0.0)
        assert accuracy >= least, (
            f"query {query.query_id} run at {accuracy} % though {least} % were asked for"
        )


def check_deadlines_kept(decision: Run | Wait, worker: WorkerView, now_s: float) -> None:
    """Nobody who would be in time alone is late, at the median, because of the batch's size."""
    if not isinstance(decision, Run) or len(decision.queries) < 2:
        return
    latency_s = worker.residents[decision.variant_id].p50_s
    items = sum(query.items for query in decision.queries)
    for query in decision.queries:
        in_time_alone = now_s + latency_s[query.items] <= query.deadline_s
        assert not in_time_alone or now_s + latency_s[items] <= query.deadline_s, (
            f"query {query.query_id} would be in time alone, but not in this batch of {items} items"
        )
