"""Each query comes out once, whatever events come in whatever order, and the counters add up."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from modelless.controller.dispatch.explanations import explain_receipt
from modelless.controller.dispatch.limits import DispatchLimits
from modelless.controller.dispatch.messages import (
    BatchDone,
    BatchFailed,
    BatchReturned,
    LoadChanged,
    QueryCancelled,
    WorkerLost,
)
from modelless.policies.batching.earliest_deadline_first import EarliestDeadlineFirst
from modelless.policies.reasons import Reason
from modelless.policies.seams import SelectionPolicy
from modelless.policies.selection.cheapest_feasible import CheapestFeasible
from modelless.policies.selection.most_accurate_feasible import MostAccurateFeasible
from modelless.policies.views import Candidates
from modelless.variants.estimates import Load

from .some_policies import LateBinding, Mixed, Unreliable
from .world import World

VARIANTS = {
    "imagenet/lite0/int8@1": (0.010, 70.0),
    "imagenet/lite0/fp32@1": (0.020, 75.0),
    "imagenet/lite2/fp32@1": (0.040, 80.0),
    "fashion/tiny/fp32@1": (0.002, 85.0),
    "fashion/unknown/fp32@1": (float("inf"), 99.0),
}
LIMITS = DispatchLimits(max_queued=12, max_batch=4, overdue_factor=5.0, overdue_s=0.5)
EVENTS = {
    "ask": 10.0,
    "finish": 8.0,
    "turn_back": 0.5,
    "tick": 1.0,
    "cancel": 0.5,
    "report": 0.6,
    "lose": 0.4,
    "fail": 0.4,
    "refresh": 0.3,
    "stale": 0.2,
    "count": 0.3,
}
STEPS = 200


class Frugal(CheapestFeasible):
    """With batches that must pay."""

    def __init__(self) -> None:
        super().__init__("p50", EarliestDeadlineFirst(min_gain=0.2))


POLICIES = (MostAccurateFeasible, Frugal, LateBinding, Mixed, Unreliable)


class Life:
    """A random life of a dispatcher. ``World`` checks each effect; see there.

    Args:
        policy: what decides.
        seed: of all that happens.
    """

    def __init__(self, policy: type[SelectionPolicy], seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.world = World(policy(), VARIANTS, LIMITS, seed=seed)
        self.counted: Counter[str] = Counter()
        self.found_nothing = 0
        self.look = self.world.dispatcher.instances.candidates
        self.world.dispatcher.instances.candidates = self.candidates  # type: ignore[method-assign]
        self.workers = [f"w{number}" for number in range(int(self.rng.integers(1, 4)))]
        for worker in self.workers:
            self.report(worker)

    def run(self) -> World:
        """Let ``STEPS`` things happen, then let everything end; check on the way and at the end."""
        names = list(EVENTS)
        odds = np.array(list(EVENTS.values())) / sum(EVENTS.values())
        for name in self.rng.choice(names, STEPS, p=odds):
            getattr(self, name)()
            self.check_queues()
        self.world.drain()
        self.check_end()
        return self.world

    def one_of(self, options: object) -> object:
        options = sorted(options) if isinstance(options, (set, dict)) else list(options)  # type: ignore[call-overload]
        return options[int(self.rng.integers(len(options)))]

    def candidates(
        self, scope: str, items: int, now_s: float, rank: int = 0, size: int = 0
    ) -> Candidates:
        """What the instances offers; counts how often that is nothing."""
        found = self.look(scope, items, now_s, rank, size)
        self.found_nothing += not found.placements
        return found

    # -- events -------------------------------------------------------------------------------

    def ask(self) -> None:
        for _ in range(int(self.rng.integers(1, 5))):
            batch_key = str(self.one_of("aab"))
            self.world.ask(
                scope=self.one_of(["imagenet"] * 4 + ["imagenet/lite0", "fashion", "nothing"]),
                latency_ms=self.one_of([None, 1.0, 15.0, 30.0, 60.0, 120.0, 500.0]),
                min_accuracy=self.one_of([0.0, 0.0, 72.0, 79.0, 99.5]),
                max_cost_usd=self.one_of([np.inf, np.inf, np.inf, 3e-7, 1e-12]),
                priority=int(self.one_of([0, 0, 0, 5])),  # type: ignore[call-overload]
                items=int(self.one_of([1, 1, 1, 2, 4, 0, 5])),  # type: ignore[call-overload]
                batch_key=batch_key,
                size={"a": 0, "b": 200}[batch_key],
                tenant=self.one_of(["", "one", "other"]),
                serve_late=bool(self.rng.random() < 0.2),
            )

    def finish(self) -> None:
        if self.world.running:
            worker = str(self.one_of(self.world.running))
            expected_s = min(self.world.expected_s(self.world.running[worker]), 1.0)
            others_s = float(self.one_of([0.0, 0.0, 0.0, 0.02]))  # type: ignore[arg-type]
            late = float(self.one_of([0.5, 1.0, 1.0, 3.0]))  # type: ignore[arg-type]
            self.world.finish(worker, expected_s * late, others_s)

    def turn_back(self) -> None:
        if self.world.running:
            worker = str(self.one_of(self.world.running))
            others_s = float(self.one_of([0.0, 0.01, 0.1]))  # type: ignore[arg-type]
            self.world.turn_back(worker, others_s, early=worker in self.world.early)

    def tick(self) -> None:
        self.world.tick(float(self.one_of([0.0, 0.02, 0.02, 0.02, 0.7])))  # type: ignore[arg-type]
        assert all(query.deadline_s > self.world.now_s for query in self.world.waiting())

    def cancel(self) -> None:
        if self.world.open_ids:
            self.world.cancel(int(self.one_of(self.world.open_ids)))  # type: ignore[call-overload]

    def report(self, worker: str = "") -> None:
        worker = worker or str(self.one_of(self.workers))
        held = {name for name in VARIANTS if self.rng.random() < 0.7}
        for batches in (self.world.running, self.world.early):
            if worker in batches:  # a device unloads nothing that it runs
                held.add(batches[worker].variant_id)
        device_class = "h200" if worker == "w2" else "cpu-1"
        hop_s = float(self.one_of([0.0, 0.002]))  # type: ignore[arg-type]
        lead_s = 0.01 if worker == "w1" else 0.0
        self.world.add_worker(worker, sorted(held), device_class, hop_s, lead_s)

    def lose(self) -> None:
        if self.world.residents:
            self.world.lose(str(self.one_of(self.world.residents)))

    def fail(self) -> None:
        if self.world.running:
            worker = str(self.one_of(self.world.running))
            early = worker in self.world.early and bool(self.rng.random() < 0.5)
            self.world.fail(worker, worker_lost=bool(self.rng.random() < 0.5), early=early)

    def refresh(self) -> None:
        self.world.dispatcher.handle(
            LoadChanged(Load(float(self.rng.integers(2)))), self.world.now_s
        )

    def stale(self) -> None:
        """What comes too late, or of nobody, changes nothing."""
        dispatcher, now_s = self.world.dispatcher, self.world.now_s
        assert dispatcher.handle(BatchDone(10**9, 0.01), now_s) == []
        assert dispatcher.handle(BatchReturned(10**9, 0.01), now_s) == []
        assert dispatcher.handle(BatchFailed(10**9, worker_lost=True), now_s) == []
        assert dispatcher.handle(WorkerLost("nobody"), now_s) == []
        for query_id in [*self.world.completed, *self.world.refused][-3:]:
            dispatcher.handle(QueryCancelled(query_id), now_s)

    def count(self) -> None:
        counters = self.world.dispatcher.take_counters()
        self.counted.update({f"arrived {k}": v for k, v in counters.arrivals.items()})
        self.counted.update({f"outcome {k}": v for k, v in counters.outcomes.items()})
        self.counted.update({f"used {w} {v}": n for (w, v), n in counters.used.items()})
        self.counted.update({"unmet": sum(counters.unmet.values())})

    # -- checks -------------------------------------------------------------------------------

    def check_queues(self) -> None:
        world = self.world
        batches = [*world.running.values(), *world.early.values()]
        running = {i for batch in batches for i in batch.query_ids}
        waiting = {query.query_id for query in world.waiting()}
        assert waiting == world.open_ids - running
        assert world.dispatcher.queued == len(waiting)
        assert len(waiting) <= LIMITS.max_queued + len(self.workers) * LIMITS.max_batch
        for worker_id, held in world.residents.items():
            assert world.dispatcher.in_use(worker_id) <= held

    def check_end(self) -> None:
        world = self.world
        assert world.open_ids == set()
        assert world.dispatcher.open_queries == world.dispatcher.queued == 0
        self.count()
        self.check_counts()
        for query_id in world.asked:
            self.check_receipt(query_id)
        for worker_id in world.residents:
            assert world.predicted_wait_s(worker_id) == 0.0

    def check_counts(self) -> None:
        world, counted = self.world, self.counted
        assert {k: v for k, v in counted.items() if k.startswith("arrived")} == world.happened
        assert counted["outcome refused"] == len(world.refused)
        assert counted["outcome cancelled"] == len(world.cancelled)
        assert counted["outcome served"] + counted["outcome served-late"] == len(world.completed)
        # And what is ready may not have been accurate enough, while a load could have helped.
        assert counted["unmet"] >= self.found_nothing
        # Some of those held for a load were served, cancelled or refused for something else.
        assert counted["unmet"] >= sum(
            refusal.reason is Reason.NOTHING_READY and "loaded yet" in refusal.message
            for refusal in world.refused.values()
        )
        used = Counter(f"used {b.worker_id} {b.variant_id}" for b in world.served_by.values())
        assert {k: v for k, v in counted.items() if k.startswith("used")} == used

    def check_receipt(self, query_id: int) -> None:
        world = self.world
        receipt = world.dispatcher.receipt(query_id)
        assert receipt is not None
        told = json.loads(json.dumps(explain_receipt(receipt), allow_nan=False))
        assert receipt.attempts <= LIMITS.max_attempts
        assert receipt.rebinds <= LIMITS.max_rebinds
        assert isinstance(receipt.reason, Reason)
        if query_id in world.completed:
            batch = world.served_by[query_id]
            in_time = world.answered_s[query_id] <= world.asked[query_id].deadline_s
            assert receipt.outcome == ("served" if in_time else "served-late")
            assert (told["variant"], told["worker"]) == (batch.variant_id, batch.worker_id)
            assert told["observed_latency_ms"] >= 0.0
            handed = sum(query_id in b.query_ids for b in world.executed)
            assert told["attempts"] == handed - world.turned_back[query_id]
        elif query_id in world.refused:
            assert receipt.outcome == "refused"
            assert receipt.reason is world.refused[query_id].reason
            assert not any(row["chosen"] for row in told.get("candidates", ()))
        else:
            assert receipt.outcome == "cancelled"
            assert receipt.reason is Reason.CANCELLED


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.__name__)
@pytest.mark.parametrize("seeds", [range(6), range(6, 12)], ids=str)
def test_what_goes_in_comes_out_once_and_the_books_balance(
    policy: type[SelectionPolicy], seeds: range
) -> None:
    for seed in seeds:
        Life(policy, seed).run()


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.__name__)
def test_same_seed_same_life(policy: type[SelectionPolicy]) -> None:
    """All that decides comes in as arguments: the same events bring the same effects."""
    first, second = Life(policy, 3).run(), Life(policy, 3).run()
    assert first.executed == second.executed
    assert first.refused == second.refused


def test_these_lives_are_worth_living() -> None:
    """The random lives above meet everything that they are there to meet."""
    met: Counter[str] = Counter()
    for policy in POLICIES:
        for seed in range(12):
            world = Life(policy, seed).run()
            met.update(refusal.reason.value for refusal in world.refused.values())
            met.update(batched=sum(len(batch.query_ids) > 1 for batch in world.executed))
            for query_id in world.asked:
                receipt = world.dispatcher.receipt(query_id)
                assert receipt is not None
                met.update([receipt.outcome])
                met.update(retried=receipt.attempts > 1, rebound=receipt.rebinds > 0)
    expected = {reason.value for reason in Reason if reason.value in met}
    assert expected >= {
        Reason.NOTHING_READY,
        Reason.TOO_INACCURATE,
        Reason.TOO_SLOW,
        Reason.TOO_DEAR,
        Reason.QUEUE_TOO_LONG,
        Reason.QUEUE_FULL,
        Reason.BAD_ITEM_COUNT,
        Reason.DEADLINE_PASSED,
        Reason.WORKER_LOST,
        Reason.EXECUTION_FAILED,
        Reason.POLICY_FAILED,
        Reason.SHUTTING_DOWN,
    }
    for what in ("batched", "served", "served-late", "cancelled", "retried", "rebound"):
        assert met[what] > 20, (what, met)
