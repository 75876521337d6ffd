"""Checks of selection policies."""

# ruff: noqa: S101  (this is a test suite)

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from modelless.policies.seams import SelectionPolicy
from modelless.policies.testing.case import PolicyConformance, copy_of
from modelless.policies.testing.options import (
    NOW_S,
    make_candidates,
    make_query,
    make_queues,
    make_worker,
    reorder,
)
from modelless.policies.testing.process import Question
from modelless.policies.testing.rules import (
    check_bound_in_time,
    check_choice,
    check_decision,
    check_late_in_time,
    check_late_limits_kept,
    check_limits_kept,
)
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

HOOKS = ("on_arrival", "on_late")


class SelectionConformance(PolicyConformance):
    """Checks that a policy binds and runs nothing that breaks a client's hard limits.

    The minimum accuracy and the maximum cost are hard; an unknown latency is refused, too. (A
    policy that runs batches does not know costs.) Deadlines depend on estimates, and policies may
    treat them differently.

    Declarations, besides ``PolicyConformance``'s:

    is_yardstick: it ignores clients' limits and serves only for comparison.
    keeps_deadlines: what it binds is in time at the median, wait included; and what it gives to an
    idle worker makes no query late that would be in time alone there.
    trades_deadlines: it may make some queries of a batch late that could be in time, but not all of
    them, because the others gain more.
    looser_deadline_never_costs_more: with more time a query gets no dearer variant.
    looser_deadline_never_less_accurate: with more time a query gets no less accurate variant.
    """

    seam = SelectionPolicy
    budget_s: ClassVar[float] = 0.005
    is_yardstick: ClassVar[bool] = False
    keeps_deadlines: ClassVar[bool] = True
    trades_deadlines: ClassVar[bool] = False
    looser_deadline_never_costs_more: ClassVar[bool] = False
    looser_deadline_never_less_accurate: ClassVar[bool] = False

    def questions(self, policy: Any) -> list[Question]:
        rng = np.random.default_rng(11)
        asked: list[Question] = []
        for number in range(40):
            rows, unknown = int(rng.choice([0, 1, 2, 30, 200])), float(rng.choice([0.0, 0.3]))
            candidates = make_candidates(rng, rows, unknown=unknown)
            query = make_query(rng, number)
            hook = HOOKS[number % 2]
            asked.append((hook, (query, candidates, np.random.default_rng(number))))
        for number in range(10):
            worker = make_worker(rng, 5)
            queues = _queues_for(policy, rng, worker, 20)
            asked.append(("on_idle", (worker, queues, NOW_S, np.random.default_rng(number))))
        return asked

    def large_questions(self, policy: Any) -> list[Question]:
        rng = np.random.default_rng(12)
        query = make_query(rng, 1)._replace(deadline_s=NOW_S + 0.05)
        asked: list[Question] = [(hook, (query, make_candidates(rng, 1000), rng)) for hook in HOOKS]
        worker = make_worker(rng, 20, max_batch=64)
        queues = _queues_for(policy, rng, worker, 1000)
        return [*asked, ("on_idle", (worker, queues, NOW_S, rng))]

    def service(self, policy: Any) -> Iterator[Question]:
        rng = np.random.default_rng(113)
        candidates, worker = make_candidates(rng, 5, idle=True), make_worker(rng, 5)
        is_late = _binds_late(policy, candidates)
        for number in itertools.count():
            now_s = NOW_S + 0.1 * number
            query = make_query(rng, number, limited=False)._replace(
                arrival_s=now_s,
                deadline_s=now_s + 0.05 * (1 + number % 2),
                min_accuracy_percent=10.0 * (number % 3),
                items=1 + number % 3,
                tenant=f"tenant-{number}",
            )
            now = replace(candidates, now_s=now_s, free_at_s=np.full(5, now_s))
            yield "on_arrival", (query, now, rng)
            (queue,) = make_queues(rng, worker, 1, 1, deferred=is_late)
            waiting = query._replace(batch_key=queue.batch_key, min_accuracy_percent=0.0)
            yield "on_idle", (worker, [queue._replace(queries=(waiting,))], now_s, rng)

    # -- on arrival, and when late ------------------------------------------------------------

    @pytest.mark.parametrize("hook", HOOKS)
    @pytest.mark.parametrize("rows", [0, 1, 2, 30, 1000])
    @pytest.mark.parametrize("unknown", [0.0, 0.3, 1.0])
    def test_chooses_among_the_options(
        self, policy: Any, hook: str, rows: int, unknown: float
    ) -> None:
        """Rows whose estimates are inf or NaN included, which a good policy does not bind to."""
        rng = np.random.default_rng(13)
        for number in range(30 if rows < 1000 else 8):
            candidates = make_candidates(rng, rows, unknown=unknown)
            query = make_query(rng, number)
            choice = getattr(policy, hook)(query, candidates, rng)
            check_choice(choice, candidates)
            if not self.is_yardstick:
                check_limits_kept(query, choice, candidates)
                if self.keeps_deadlines:
                    check_bound_in_time(query, choice, candidates)

    def test_serves_what_anything_could_serve(self, policy: Any) -> None:
        """A query without limits is not turned away from an idle system."""
        rng = np.random.default_rng(14)
        for rows in (1, 30, 1000):
            candidates = make_candidates(rng, rows, idle=True)
            choice = policy.on_arrival(make_query(rng, rows, limited=False), candidates, rng)
            assert not isinstance(choice, Reject), f"rejected, of {rows} rows: {choice.reason}"

    def test_the_order_of_the_options_does_not_matter(self, policy: Any) -> None:
        if self.order_matters:
            pytest.skip("declared: order_matters")
        rng = np.random.default_rng(15)
        for number in range(60):
            candidates = make_candidates(rng, int(rng.choice([2, 30, 300])))
            shuffled = reorder(candidates, rng.permutation(len(candidates.placements)))
            query = make_query(rng, number)
            first = _answer(policy, query, candidates, number)
            second = _answer(policy, query, shuffled, number)
            assert _chosen(first, candidates) == _chosen(second, shuffled), (
                "another order of the same options, another choice"
            )

    def test_a_shortlist_of_everything_changes_nothing(self, policy: Any) -> None:
        rng = np.random.default_rng(16)
        for number in range(30):
            candidates = make_candidates(rng, 50)
            everything = replace(candidates, shortlist=np.arange(50))
            query = make_query(rng, number)
            first = _answer(policy, query, candidates, number)
            second = _answer(policy, query, everything, number)
            assert _chosen(first, candidates) == _chosen(second, everything)

    def test_a_looser_deadline(self, policy: Any) -> None:
        """Loosens the deadline step by step, and holds the policy to what it declares."""
        cheaper = self.looser_deadline_never_costs_more
        more_accurate = self.looser_deadline_never_less_accurate
        if not (cheaper or more_accurate):
            pytest.skip("declared: neither looser_deadline_never_costs_more nor _less_accurate")
        rng = np.random.default_rng(17)
        for number in range(40):
            candidates = make_candidates(rng, int(rng.choice([3, 30, 300])))
            query = make_query(rng, number)
            bound: Bind | None = None
            for budget_s in (*np.geomspace(0.001, 2.0, 12).tolist(), np.inf):
                looser = query._replace(deadline_s=NOW_S + budget_s)
                choice = _answer(policy, looser, candidates, number)
                if bound is not None:
                    assert isinstance(choice, Bind), "served with less time, not with more"
                    if cheaper:
                        cost_usd = candidates.cost_usd
                        assert cost_usd[choice.row] <= cost_usd[bound.row], "more time, dearer"
                    if more_accurate:
                        accuracy = candidates.accuracy_percent
                        assert accuracy[choice.row] >= accuracy[bound.row], (
                            "more time, less accurate"
                        )
                bound = choice if isinstance(choice, Bind) else bound

    # -- when a worker is idle ----------------------------------------------------------------

    @pytest.mark.parametrize("queries", [1, 30, 1000])
    @pytest.mark.parametrize("unknown", [0.0, 0.3])
    def test_gives_an_idle_worker_what_it_can_run(
        self, policy: Any, queries: int, unknown: float
    ) -> None:
        rng = np.random.default_rng(18)
        for _ in range(10 if queries < 1000 else 2):
            worker = make_worker(rng, 5, unknown=unknown)
            self._check_idle(policy, worker, _queues_for(policy, rng, worker, queries), rng)

    @pytest.mark.parametrize("residents", [1, 2, 1000])
    def test_gives_work_whatever_a_worker_holds(self, policy: Any, residents: int) -> None:
        rng = np.random.default_rng(110)
        for _ in range(10 if residents < 1000 else 2):
            worker = make_worker(rng, residents)
            self._check_idle(policy, worker, _queues_for(policy, rng, worker, 60), rng)

    @pytest.mark.parametrize("residents", [0, 5])
    def test_with_nothing_queued_it_waits(self, policy: Any, residents: int) -> None:
        rng = np.random.default_rng(111)
        decision = policy.on_idle(make_worker(rng, residents), [], NOW_S, rng)
        assert isinstance(decision, Wait), f"a batch of nothing: {decision!r}"
        check_decision(decision, make_worker(rng, residents), [], NOW_S)

    def _check_idle(
        self,
        policy: Any,
        worker: WorkerView,
        queues: list[QueueView],
        rng: np.random.Generator,
    ) -> None:
        decision = policy.on_idle(worker, queues, NOW_S, rng)
        check_decision(decision, worker, queues, NOW_S)
        if not self.is_yardstick:
            check_late_limits_kept(decision, worker, queues)
            if self.keeps_deadlines:
                may_trade = self.trades_deadlines
                check_late_in_time(decision, worker, queues, NOW_S, may_trade=may_trade)

    def test_takes_up_again_what_it_deferred(self, policy: Any) -> None:
        rng = np.random.default_rng(19)
        query = make_query(rng, 1, limited=False)
        if not isinstance(policy.on_arrival(query, make_candidates(rng, 5), rng), Defer):
            pytest.skip("binds on arrival")
        worker = make_worker(rng, 5)
        (queue,) = make_queues(rng, worker, 1, 1, deferred=True)
        queue = queue._replace(queries=(query._replace(batch_key=queue.batch_key),))
        decision = policy.on_idle(worker, [queue], NOW_S, rng)
        check_decision(decision, worker, [queue], NOW_S)
        if not isinstance(decision, Run):  # it may wait, but not for ever
            decision = policy.on_idle(worker, [queue], decision.until_s + 60.0, rng)
        assert isinstance(decision, Run), "a deferred query was left waiting for ever"


def _binds_late(policy: Any, candidates: Candidates) -> bool:
    query = make_query(np.random.default_rng(0), 0, limited=False)
    return isinstance(_answer(policy, query, candidates, 0), Defer)


def _answer(policy: Any, query: QueryView, candidates: Candidates, seed: int) -> Choice:
    """Returns the policy's answer now; a copy answers, so that the policy learns nothing."""
    choice: Choice = copy_of(policy).on_arrival(query, candidates, np.random.default_rng(seed))
    return choice


def _chosen(choice: Choice, candidates: Candidates) -> tuple[object, ...]:
    what = candidates.placements[choice.row] if isinstance(choice, Bind) else type(choice)
    return what, choice.reason


def _queues_for(
    policy: Any, rng: np.random.Generator, worker: WorkerView, queries: int
) -> list[QueueView]:
    """Returns queues of the kinds that the policy's own choices fill: bound, deferred, or both."""
    probe = copy_of(policy)
    candidates, draws = make_candidates(rng, 30), np.random.default_rng(10)
    made = {
        type(probe.on_arrival(make_query(draws, number), candidates, draws)) for number in range(30)
    }
    queues = []
    for kind in [kind for kind in (Bind, Defer) if kind in made] or [Bind]:
        queues += make_queues(rng, worker, min(queries, 8), queries, deferred=kind is Defer)
    return _renumbered(queues)


def _renumbered(queues: list[QueueView]) -> list[QueueView]:
    """Returns the queues with distinct ids for all queries, each in its order."""
    ids = itertools.count()
    return [
        queue._replace(queries=tuple(q._replace(query_id=next(ids)) for q in queue.queries))
        for queue in queues
    ]
