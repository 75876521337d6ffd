"""Checks of decisions of any policy."""

# ruff: noqa: S101  (this is a test suite)

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from modelless.policies.reasons import AnyReason
from modelless.policies.scopes import in_scope
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
    """Check a Bind to an existing row, a Defer or a Reject, with a reason."""
    assert isinstance(choice, (Bind, Defer, Reject)), f"{choice!r} is no choice"
    assert isinstance(choice.reason, AnyReason), f"{choice!r} gives no reason"
    if isinstance(choice, Bind):
        rows = len(candidates.placements)
        assert isinstance(choice.row, (int, np.integer)), f"{choice!r}: the row is no number"
        assert 0 <= choice.row < rows, f"{choice!r}: there are {rows} rows"


def check_limits_kept(query: QueryView, choice: Choice, candidates: Candidates) -> None:
    """Check that a bound query is served as accurately and cheaply as its limits demand."""
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


def check_bound_in_time(query: QueryView, choice: Choice, candidates: Candidates) -> None:
    """Check that a bound query is answered by its deadline at the median, wait included."""
    if not isinstance(choice, Bind):
        return
    p50_s = float(candidates.estimates.p50_s[choice.row])
    finish_s = float(candidates.free_at_s[choice.row]) + p50_s
    assert finish_s <= query.deadline_s, (
        f"bound to what is late even at the median, by {finish_s - query.deadline_s:.6f} s"
    )


def check_decision(
    decision: Run | Wait, worker: WorkerView, queues: Sequence[QueueView], now_s: float
) -> None:
    """Check a batch that the worker can run, of queries that wait for it, or a wait."""
    assert isinstance(decision, (Run, Wait)), f"{decision!r} is no decision"
    assert isinstance(decision.reason, AnyReason), f"{decision!r} gives no reason"
    waiting = {query.query_id: (queue, query) for queue in queues for query in queue.queries}
    dropped = [query.query_id for query in decision.dropped]
    assert len(set(dropped)) == len(dropped), f"a query dropped twice: {dropped}"
    assert set(dropped) <= set(waiting), f"dropped, but not shown: {set(dropped) - set(waiting)}"
    if isinstance(decision, Wait):
        waiting = {query_id: it for query_id, it in waiting.items() if query_id not in dropped}
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
    assert not set(ids) & set(dropped), f"both run and dropped: {set(ids) & set(dropped)}"
    members = [waiting[query_id] for query_id in ids]  # as they came, whatever it made of them
    bound_to = {queue.variant_id for queue, _ in members} - {None}
    assert bound_to <= {decision.variant_id}, f"queries bound to {bound_to} run by another variant"
    for queue, _ in members:
        assert in_scope(decision.variant_id, queue.scope), (
            f"{decision.variant_id} is not of the scope {queue.scope!r} that was asked for"
        )
    assert len({queue.batch_key for queue, _ in members}) == 1, "shapes are mixed"
    items = sum(query.items for _, query in members)
    assert items <= worker.max_batch, f"{items} items in a batch of at most {worker.max_batch}"


def check_late_limits_kept(
    decision: Run | Wait, worker: WorkerView, queues: Sequence[QueueView]
) -> None:
    """Check that no deferred query runs with too little accuracy or an unknown latency."""
    for query in _deferred(decision, queues):
        assert isinstance(decision, Run)
        resident = worker.residents[decision.variant_id]
        accuracy, least = resident.accuracy_percent, query.min_accuracy_percent
        assert accuracy >= least, (
            f"query {query.query_id} run at {accuracy} % though {least} % were asked for"
        )
        p50_s = resident.p50_s[_items(decision)]
        assert np.isfinite(p50_s), f"{resident.variant_id} run, whose latency is unknown ({p50_s})"


def check_late_in_time(
    decision: Run | Wait,
    worker: WorkerView,
    queues: Sequence[QueueView],
    now_s: float,
    *,
    may_trade: bool,
) -> None:
    """Check that no deferred query is late at the median because of the choice.

    A query that would be in time alone, with any variant that the worker holds, must be in time.

    Args:
        decision: the decision.
        worker: the idle worker.
        queues: its queues.
        now_s: time of the decision, seconds.
        may_trade: whether it is enough that one of these queries is in time.
    """
    late, able = [], 0
    for query in _deferred(decision, queues):
        assert isinstance(decision, Run)
        left_s = query.deadline_s - now_s
        if any(
            in_scope(name, query.scope)
            and resident.accuracy_percent >= query.min_accuracy_percent
            and resident.p50_s[query.items] <= left_s
            for name, resident in worker.residents.items()
        ):
            able += 1
            if not worker.residents[decision.variant_id].p50_s[_items(decision)] <= left_s:
                late.append(query.query_id)
    assert not late or (may_trade and len(late) < able), (
        f"queries {late} could be in time alone, but not in this batch with this variant"
    )


def _deferred(decision: Run | Wait, queues: Sequence[QueueView]) -> list[QueryView]:
    """Returns the deferred queries of the batch, as they were given."""
    if not isinstance(decision, Run):
        return []
    ids = {query.query_id for query in decision.queries}
    deferred = [queue for queue in queues if queue.variant_id is None]
    return [query for queue in deferred for query in queue.queries if query.query_id in ids]


def _items(decision: Run) -> int:
    return sum(query.items for query in decision.queries)


def check_deadlines_kept(decision: Run | Wait, worker: WorkerView, now_s: float) -> None:
    """Check that no query is late at the median because of the batch's size."""
    if not isinstance(decision, Run) or len(decision.queries) < 2:
        return
    latency_s = worker.residents[decision.variant_id].p50_s
    items = _items(decision)
    for query in decision.queries:
        in_time_alone = now_s + latency_s[query.items] <= query.deadline_s
        assert not in_time_alone or now_s + latency_s[items] <= query.deadline_s, (
            f"query {query.query_id} would be in time alone, but not in this batch of {items} items"
        )
