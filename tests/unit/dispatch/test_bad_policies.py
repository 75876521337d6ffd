"""A policy that raises or answers nonsense costs the queries it was asked about, and no others."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from modelless.common.errors import ModellessError
from modelless.controller.dispatch.explanations import explain_receipt
from modelless.policies.reasons import Reason
from modelless.policies.views import Bind, Candidates, Defer, QueryView, QueueView, Run, Wait

from .some_policies import Scripted
from .world import LADDER, World

INT8, FP32, LITE2 = LADDER
GOOD = Reason.CHEAPEST_FEASIBLE


def raises(*_: object) -> Any:
    raise ZeroDivisionError("a bug")


def raises_ours(*_: object) -> Any:
    raise ModellessError("one of ours")


def quits(*_: object) -> Any:
    sys.exit(3)


BAD_CHOICES: dict[str, tuple[Callable[..., Any], str]] = {
    "raises": (raises, "raised ZeroDivisionError: a bug"),
    "raises one of ours": (raises_ours, "raised ModellessError: one of ours"),
    "ends the process": (quits, "raised SystemExit: 3"),
    "None": (lambda q, c: None, "allowed: a Bind, a Defer or a Reject"),
    "a tuple": (lambda q, c: (0, GOOD), "allowed: a Bind, a Defer or a Reject"),
    "a Run": (lambda q, c: Run(INT8, (q,), GOOD), "allowed: a Bind, a Defer or a Reject"),
    "row too high": (lambda q, c: Bind(3, GOOD), "bound row 3; allowed: 0 to 2"),
    "row negative": (lambda q, c: Bind(-1, GOOD), "bound row -1"),
    "row None": (lambda q, c: Bind(None, GOOD), "bound row None"),
    "row a fraction": (lambda q, c: Bind(0.0, GOOD), "bound row 0.0"),
    "reason a string": (lambda q, c: Bind(0, "why not"), "gave the reason 'why not'"),
    "reason missing": (lambda q, c: Defer(None), "gave the reason None"),
}


@pytest.mark.parametrize(("bad", "message"), BAD_CHOICES.values(), ids=BAD_CHOICES)
def test_a_bad_choice_on_arrival(bad: Callable[..., Any], message: str) -> None:
    is_bad = [True]

    def arrival(query: QueryView, candidates: Candidates) -> Any:
        return bad(query, candidates) if is_bad[0] else Bind(0, GOOD)

    world = World(Scripted(arrival=arrival))
    world.add_worker()
    query = world.ask()
    refusal = world.refused[query]
    assert refusal.reason is Reason.POLICY_FAILED
    assert refusal.retry_after_s is None
    assert message in refusal.message
    assert "Scripted.on_arrival" in refusal.message
    receipt = world.dispatcher.receipt(query)
    assert receipt is not None
    assert message in json.loads(json.dumps(explain_receipt(receipt)))["problem"]
    is_bad[0] = False
    after = world.ask()
    assert world.running["w0"].query_ids == (after,)
    assert world.dispatcher.open_queries == 1


def test_an_exception_on_late_costs_only_the_late_one() -> None:
    world = World(Scripted(late=raises))
    world.add_worker()
    world.ask()
    late, other = world.ask(latency_ms=90.0), world.ask(latency_ms=900.0)
    world.finish(after_s=0.060)
    assert world.refused[late].reason is Reason.POLICY_FAILED
    assert "on_late raised ZeroDivisionError" in world.refused[late].message
    assert world.running["w0"].query_ids == (other,)


def first(queues: list[QueueView]) -> QueryView:
    return queues[0].queries[0]


BAD_BATCHES: dict[str, tuple[Callable[..., Any], str]] = {
    "raises": (raises, "raised ZeroDivisionError"),
    "None": (lambda w, q: None, "allowed: a Run or a Wait"),
    "a Bind": (lambda w, q: Bind(0, GOOD), "allowed: a Run or a Wait"),
    "unknown variant": (lambda w, q: Run("no/such@1", (first(q),), GOOD), "not ready on 'w0'"),
    "variant None": (lambda w, q: Run(None, (first(q),), GOOD), "not ready on 'w0'"),
    "unhashable variant": (lambda w, q: Run([], (first(q),), GOOD), "raised TypeError"),
    "another variant": (lambda w, q: Run(INT8, (first(q),), GOOD), "may not be served by"),
    "no queries": (lambda w, q: Run(LITE2, (), GOOD), "allowed: 1 or more, each once"),
    "twice the same": (lambda w, q: Run(LITE2, (first(q),) * 2, GOOD), "each once"),
    "queries of strings": (lambda w, q: Run(LITE2, ("q",), GOOD), "raised AttributeError"),
    "queries None": (lambda w, q: Run(LITE2, None, GOOD), "raised TypeError"),
    "a stranger": (
        lambda w, q: Run(LITE2, (first(q)._replace(query_id=999),), GOOD),
        "named query 999, which is not waiting",
    ),
    "reason a string": (lambda w, q: Run(LITE2, (first(q),), "so"), "gave the reason 'so'"),
    "waits for a reason unheard of": (lambda w, q: Wait("so"), "gave the reason 'so'"),
    "waits until None": (lambda w, q: Wait(GOOD, None), "raised TypeError"),
}


@pytest.mark.parametrize(("bad", "message"), BAD_BATCHES.values(), ids=BAD_BATCHES)
def test_a_bad_batch(bad: Callable[..., Any], message: str) -> None:
    """The most urgent query, or those that were named, are refused; the others are served."""
    is_bad = [False]
    policy = Scripted()

    def idle(worker: Any, queues: list[QueueView]) -> Any:
        if is_bad[0]:
            is_bad[0] = False
            return bad(worker, queues)
        return policy.batching.next_batch(worker, queues, 0.0)

    policy.idle = idle
    world = World(policy)
    world.add_worker()
    world.ask()
    victim, other = world.ask(latency_ms=500.0), world.ask(latency_ms=800.0)
    is_bad[0] = True
    world.finish()
    assert world.refused[victim].reason is Reason.POLICY_FAILED
    assert message in world.refused[victim].message
    assert "Scripted.on_idle" in world.refused[victim].message
    assert world.running["w0"].query_ids == (other,)
    world.finish()
    assert other in world.completed
    assert world.dispatcher.queued == 0


def test_a_batch_that_is_too_large() -> None:
    policy = Scripted()
    policy.idle = lambda worker, queues: Run(LITE2, tuple(queues[0].queries), GOOD)
    world = World(policy)
    world.add_worker()
    world.ask()
    queries = [world.ask(latency_ms=5000.0) for _ in range(9)]
    world.finish()
    assert all(world.refused[query].reason is Reason.POLICY_FAILED for query in queries)
    assert "9 items; allowed: 1 to 8" in world.refused[queries[0]].message
    assert world.dispatcher.queued == 0


def test_a_batch_of_mixed_shapes() -> None:
    policy = Scripted()
    policy.idle = lambda worker, queues: Run(
        LITE2, tuple(query for queue in queues for query in queue.queries), GOOD
    )
    world = World(policy)
    world.add_worker()
    world.ask(batch_key="a")
    queries = [world.ask(latency_ms=5000.0, batch_key=key) for key in "ab"]
    world.finish()
    assert all("different shapes" in world.refused[query].message for query in queries)


def test_a_deferred_query_is_not_run_by_a_variant_of_another_task() -> None:
    other = "fashion/tiny/fp32@1"
    policy = Scripted(
        arrival=lambda query, candidates: Defer(),
        idle=lambda worker, queues: Run(other, queues[0].queries, GOOD),
    )
    world = World(policy, {**LADDER, other: (0.002, 85.0)})
    world.add_worker()
    query = world.ask()
    assert "may not be served by 'fashion/tiny/fp32@1'" in world.refused[query].message


def test_queries_of_another_worker_are_out_of_reach() -> None:
    """Neither run by the wrong worker nor refused for somebody else's mistake."""
    policy = Scripted()
    stolen: list[QueryView] = []

    def idle(worker: Any, queues: list[QueueView]) -> Any:
        if stolen and worker.worker_id == "w1":
            return Run(LITE2, (stolen[0],), GOOD)
        return policy.batching.next_batch(worker, queues, 0.0)

    policy.idle = idle
    world = World(policy)
    world.add_worker("w0")
    world.ask(latency_ms=900.0)
    theirs = world.ask(latency_ms=900.0)
    world.add_worker("w1")
    world.ask(latency_ms=900.0)
    waiting = world.ask(latency_ms=900.0)
    assert [batch.worker_id for batch in world.executed] == ["w0", "w1"]
    stolen.append(world.asked[theirs])
    world.finish("w1")
    assert theirs in world.open_ids
    assert world.refused[waiting].reason is Reason.POLICY_FAILED


def test_a_policy_that_always_fails_empties_the_queue_and_no_more() -> None:
    world = World(Scripted(idle=raises))
    world.add_worker()
    for _ in range(5):
        world.ask(latency_ms=500.0)
    assert len(world.refused) == 5
    world.tick(0.02)
    assert world.dispatcher.open_queries == 0


def test_a_query_that_a_policy_changed_runs_as_it_came() -> None:
    policy = Scripted()
    policy.idle = lambda worker, queues: Run(LITE2, (first(queues)._replace(items=7),), GOOD)
    world = World(policy)
    world.add_worker()
    query = world.ask()
    receipt = world.dispatcher.receipt(query)
    assert receipt is not None
    assert receipt.batch_items == 1
    world.finish()
    assert world.cost_model.observed[0][1] == 1


def test_a_list_of_queries_will_do() -> None:
    policy = Scripted()
    policy.idle = lambda worker, queues: Run(LITE2, [first(queues)], GOOD)  # type: ignore[arg-type]
    world = World(policy)
    world.add_worker()
    query = world.ask()
    assert world.running["w0"].query_ids == (query,)


def test_what_is_meant_to_end_the_process_does() -> None:
    def interrupted(*_: object) -> Any:
        raise KeyboardInterrupt

    world = World(Scripted(arrival=interrupted))
    world.add_worker()
    with pytest.raises(KeyboardInterrupt):
        world.ask()
