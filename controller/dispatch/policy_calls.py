"""Calls of the selection policy, and the checks of its answers. No other module calls it.

A policy is foreign code. A policy that raises an error, or gives an answer that cannot be carried
out, costs the queries that it was asked about, and no others.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from modelless.common.errors import FOREIGN_ERRORS
from modelless.controller.dispatch.offline import OfflineBatches, is_offline
from modelless.controller.dispatch.queues import Queue, WaitingQueries, Worker
from modelless.controller.dispatch.ready_instances import ReadyInstances
from modelless.policies.advisory import Advisory
from modelless.policies.priorities import heads, urgency
from modelless.policies.reasons import AnyReason, Reason
from modelless.policies.scopes import in_scope
from modelless.policies.seams import SelectionPolicy
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
from modelless.variants.vocabulary import Placement

_CHOICES = (Bind, Defer, Reject)


class PolicyFailure(NamedTuple):
    """A policy raised an error, or gave an answer that cannot be carried out.

    Attributes:
        problem: the policy and its error, for people.
        query_ids: the waiting queries that it was asked about; at least one.
    """

    problem: str
    query_ids: tuple[int, ...]


def ask_on_query(
    selection: SelectionPolicy,
    query: QueryView,
    candidates: Candidates,
    rng: np.random.Generator,
    *,
    late: bool,
) -> Choice | PolicyFailure:
    """Ask the policy to choose for one query: on arrival, or because it would be late."""
    hook = selection.on_late if late else selection.on_arrival
    try:
        choice: object = hook(query, candidates, rng)
        problem = _problem_of_choice(choice, len(candidates.placements))
    except FOREIGN_ERRORS as error:  # whatever a policy raises, the gateway goes on
        problem = _raised(error)
    if problem is not None:
        return PolicyFailure(f"{_name(hook)} {problem}", (query.query_id,))
    return choice  # type: ignore[return-value]  # checked above


def ask_on_idle(
    selection: SelectionPolicy,
    worker: Worker,
    waiting: WaitingQueries,
    instances: ReadyInstances,
    offline: OfflineBatches,
    max_batch: int,
    now_s: float,
    rng: np.random.Generator,
    advisory: Advisory[SelectionPolicy] | None = None,
) -> Run | Wait | PolicyFailure | None:
    """Ask the policy what an idle worker runs; return None if no query waits that it could run.

    If the queues' first queries differ in rank, the policy sees only the queues of the first rank,
    and those of the next rank only if it runs nothing of the first. So priorities hold across
    queues, whatever the policy. Within a rank it sees the queues of one size at a time, and the
    worker's latencies for that size: the size of the most urgent query first. It never sees offline
    queries.
    """
    group, groups_by_scope = worker.group, instances.groups_by_scope
    queues = [*worker.queues.values()]
    queues += [q for key, q in waiting.deferred.items() if group in groups_by_scope[key[0]]]
    if not queues:
        return None
    alike: dict[tuple[int, int], list[QueueView]] = {}
    for queue in queues:
        alike.setdefault(queue.rank_and_size, []).append(queue.view)
    in_order = list(alike.items())
    if len(in_order) > 1:
        in_order.sort(key=lambda item: min(heads(item[1])))
    waits: list[Wait] = []
    filling_rank: int | None = None
    for (own, size), shown in in_order:
        if filling_rank is not None and own != filling_rank:
            break  # what goes behind would be in its way
        view = _view_of(worker, instances, size, max_batch)
        if is_offline(shown[0].queries[0]):
            price_usd_per_s = instances.price_usd_per_s(worker.device_class)
            decision: Run | Wait | PolicyFailure = offline.choose_batch(
                view, shown, price_usd_per_s, now_s
            )
        else:
            decision = _ask_on_idle(selection, worker, view, shown, waiting, now_s, rng, advisory)
        if not isinstance(decision, Wait) or decision.dropped:
            return decision
        waits.append(decision)
        if decision.reason is Reason.FILLING_BATCH:
            filling_rank = own
    return Wait(waits[-1].reason, min([wait.until_s for wait in waits]))


def _view_of(worker: Worker, instances: ReadyInstances, size: int, max_batch: int) -> WorkerView:
    """Return the worker with its latencies for items of a size."""
    residents = instances.residents(worker.worker_id, size)
    lead_s = worker.lead_s if worker.is_ours else 0.0
    name, device_class = worker.worker_id, worker.device_class
    return WorkerView(name, device_class, residents, max_batch, lead_s, instances.worker_counts)


def _ask_on_idle(
    selection: SelectionPolicy,
    worker: Worker,
    view: WorkerView,
    queues: Sequence[QueueView],
    waiting: WaitingQueries,
    now_s: float,
    rng: np.random.Generator,
    advisory: Advisory[SelectionPolicy] | None,
) -> Run | Wait | PolicyFailure:
    ids: tuple[int, ...] = ()
    try:
        decision: object = selection.on_idle(view, queues, now_s, rng)
        if isinstance(decision, Run):
            ids = tuple([query.query_id for query in decision.queries])
            problem = _problem_of_run(decision, ids, view, waiting)
            if problem is None and decision.dropped:
                problem = _problem_of_dropped(decision.dropped, ids, queues)
        elif isinstance(decision, Wait):
            problem = _problem_of_reason(decision.reason)
            if problem is None and decision.dropped:
                problem = _problem_of_dropped(decision.dropped, (), queues)
            float(decision.until_s)
        else:
            problem = f"returned {decision!r:.80}; allowed: a Run or a Wait"
    except FOREIGN_ERRORS as error:  # whatever a policy raises, the gateway goes on
        problem = _raised(error)
    if problem is not None:
        blamed = _within_reach(ids, worker, waiting) or (_most_urgent(queues).query_id,)
        return PolicyFailure(f"{_name(selection.on_idle)} {problem}", blamed)
    if advisory is not None:
        advise_on_idle(advisory, view, queues, now_s, decision)
    return decision  # type: ignore[return-value]  # checked above


def tell_plan(
    selection: SelectionPolicy, shares: Mapping[str, Mapping[Placement, float]]
) -> str | None:
    """Tell the policy the plan's shares; return its error, for people, or None."""
    try:
        selection.on_plan(shares)
    except FOREIGN_ERRORS as error:  # whatever a policy raises, the gateway goes on
        return f"{_name(selection.on_plan)} {_raised(error)}"
    return None


# Advice: what another policy would have done. It draws from a generator of its own.


def advise_on_query(
    advisory: Advisory[SelectionPolicy],
    query: QueryView,
    candidates: Candidates,
    choice: Choice | PolicyFailure,
    now_s: float,
) -> None:
    """Ask the advisory about a query that was chosen for."""

    def ask(policy: SelectionPolicy) -> str | None:
        rng = np.random.default_rng(query.query_id)
        would = _choice_words(policy.on_arrival(query, candidates, rng), candidates)
        return None if would == done == _LATER else would  # then on_idle compares them

    done = _choice_words(choice, candidates)
    advisory.note(now_s, done, ask)


def advise_on_idle(
    advisory: Advisory[SelectionPolicy],
    worker: WorkerView,
    queues: Sequence[QueueView],
    now_s: float,
    decision: object,
) -> None:
    """Ask the advisory what the worker would run, unless its policy binds on arrival."""

    def ask(policy: SelectionPolicy) -> str | None:
        if type(policy).on_idle is SelectionPolicy.on_idle:
            return None
        seed = [queues[0].queries[0].query_id, int(now_s * 1e6)]
        would = policy.on_idle(worker, queues, now_s, np.random.default_rng(seed))
        return _run_words(would, worker)

    advisory.note(now_s, _run_words(decision, worker), ask)


def advise_on_plan(
    advisory: Advisory[SelectionPolicy], shares: Mapping[str, Mapping[Placement, float]]
) -> None:
    """Tell the advisory the plan's shares."""

    def ask(policy: SelectionPolicy) -> None:
        policy.on_plan(shares)

    advisory.note(0.0, "", ask)


_LATER = "later"


def _choice_words(choice: object, candidates: Candidates) -> str:
    if isinstance(choice, Bind):
        variant_id, device_class = candidates.placements[choice.row]
        return f"{variant_id} on {device_class}"
    return _LATER if isinstance(choice, Defer) else "refuse"


def _run_words(decision: object, worker: WorkerView) -> str:
    return (
        f"{decision.variant_id} on {worker.device_class}" if isinstance(decision, Run) else "wait"
    )


def _within_reach(
    query_ids: Sequence[object], worker: Worker, waiting: WaitingQueries
) -> tuple[int, ...]:
    """Return those of the queries that the worker could be given, each once."""
    reached: dict[int, None] = {}
    for query_id in query_ids:
        place = waiting.place(query_id) if isinstance(query_id, int) else None
        if place is not None and place.worker in (None, worker):
            reached[place.query.query_id] = None
    return tuple(reached)


def _problem_of_choice(choice: object, rows: int) -> str | None:
    if not isinstance(choice, _CHOICES):
        return f"returned {choice!r:.80}; allowed: a Bind, a Defer or a Reject"
    if isinstance(choice, Bind):
        row: object = choice.row
        if not isinstance(row, (int, np.integer)) or not 0 <= row < rows:
            return f"bound row {row!r:.80}; allowed: 0 to {rows - 1}"
    return None if isinstance(choice.reason, Reason) else _problem_of_reason(choice.reason)


def _problem_of_run(
    run: Run, query_ids: Sequence[int], worker: WorkerView, waiting: WaitingQueries
) -> str | None:
    """Return why the worker cannot run the batch, for people; None if it can."""
    if run.variant_id not in worker.residents:
        return f"chose {run.variant_id!r:.80}, which is not ready on {worker.worker_id!r}"
    if not query_ids or len(set(query_ids)) != len(query_ids):
        return f"gave a batch of the queries {query_ids!r:.80}; allowed: 1 or more, each once"
    items = 0
    checked: dict[Queue, Hashable] = {}
    for query_id in query_ids:
        place = waiting.place(query_id)
        if place is None:
            return f"named query {query_id!r:.80}, which is not waiting"
        if place.queue not in checked:
            scope, bound_to, checked[place.queue] = place.queue.key
            if place.worker is not None:
                fits = (place.worker.worker_id, bound_to) == (worker.worker_id, run.variant_id)
            else:
                fits = in_scope(run.variant_id, scope)
            if not fits:
                return (
                    f"named query {query_id}, which may not be served by {run.variant_id!r} on "
                    f"{worker.worker_id!r}"
                )
        items += place.query.items
    if len(set(checked.values())) != 1:
        return f"put queries of different shapes in one batch: {query_ids!r:.80}"
    if items > worker.max_batch:
        return f"gave a batch of {items} items; allowed: 1 to {worker.max_batch}"
    return _problem_of_reason(run.reason)


def _problem_of_dropped(
    dropped: Sequence[QueryView], run: Sequence[int], queues: Sequence[QueueView]
) -> str | None:
    ids = tuple([query.query_id for query in dropped])
    if len(set(ids)) != len(ids) or not set(ids).isdisjoint(run):
        return f"dropped the queries {ids!r:.80}; allowed: each once, and none that it runs"
    shown = {query.query_id for queue in queues for query in queue.queries}
    if not shown.issuperset(ids):
        return f"dropped the queries {ids!r:.80}; allowed: those that it was shown"
    return None


def _problem_of_reason(reason: object) -> str | None:
    if isinstance(reason, AnyReason):
        return None
    return f"gave the reason {reason!r:.80}; allowed: a member of Reason or a CustomReason"


def _most_urgent(queues: Sequence[QueueView]) -> QueryView:
    return min((queue.queries[0] for queue in queues), key=urgency)


def _raised(error: BaseException) -> str:
    return f"raised {type(error).__name__}: {error!s:.200}"


def _name(hook: object) -> str:
    return getattr(hook, "__qualname__", repr(hook))
