"""Trials in a gateway: the queries that try a new version, and the counts of both arms; and what
feedback says of all answers.

The queries that the version on trial or the current one could serve are assigned to two arms by a
hash. One arm sees only the version on trial of that variant, the other only the current one, and
both see all other variants. So the arms differ in the version and in nothing else.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from modelless.controller.dispatch.receipts import Receipt
from modelless.policies.reasons import Reason
from modelless.policies.scopes import arm_of, base_of, in_scope, task_of
from modelless.variants.registry.versions import Trial
from modelless.variants.vocabulary import Placement

ANSWERS_KEPT: Final = 65_536
"""Number of queries of a gateway whose answers get feedback; older ones are forgotten."""

_FAILED: Final = (Reason.EXECUTION_FAILED, Reason.WORKER_LOST)
_FINEST_S: Final = 1e-4
_STEP: Final = 1.1  # of the sketch: quantiles are exact to 10 %

SHADOW: Final = "(shadow)"
"""In the place of a tenant, where a reference variant says what is right."""

Shares = Mapping[str, Mapping[Placement, float]]


def latency_step(latency_s: float) -> int:
    """Return the step of the latency sketch for a latency in seconds; steps grow by a tenth."""
    return max(math.ceil(math.log(max(latency_s, _FINEST_S) / _FINEST_S, _STEP)), 0)


def step_s(step: int) -> float:
    """Return the longest latency of a step, seconds."""
    return float(_FINEST_S * _STEP**step)


@dataclass(slots=True)
class ArmCounts:
    """Counts of one arm's queries over some time.

    Attributes:
        queries: answered or refused queries; cancelled ones do not count.
        latencies: answered queries by step of latency; the rest of ``queries`` were refused.
        answered, failed: queries that the arm's version answered, or failed on.
        labelled, wrong: items of these answers that got feedback, and those of them that are wrong.
    """

    queries: int = 0
    latencies: dict[int, int] = field(default_factory=dict)
    answered: int = 0
    failed: int = 0
    labelled: int = 0
    wrong: float = 0.0


class TrialCounts(NamedTuple):
    """Both arms' counts of one trial.

    Attributes:
        tried, standing: of the version on trial, and of the current one.
    """

    number: int
    tried: ArmCounts
    standing: ArmCounts


class FeedbackCounts(NamedTuple):
    """What feedback of one tenant said of a variant's answers over some time.

    Attributes:
        tenant: of the key that the feedback came with; empty where there are no keys; ``SHADOW``
            for what a reference variant says.
        right, wrong: items; an item with a score between 0 and 1 counts in part for either.
    """

    variant_id: str
    tenant: str
    right: float
    wrong: float


class Answer(NamedTuple):
    """An answer that feedback may come for.

    Attributes:
        number: of the trial in an arm of which it was given; 0 if it was in none, or if another
            variant gave it than the arm's.
        on_trial: whether the version on trial answered, or else the current one.
        items: number of items.
        classes: the class that the answer puts first, for each item; None if the task has none.
    """

    number: int
    task: str
    on_trial: bool
    items: int
    classes: tuple[int, ...] | None
    variant_id: str = ""


Judge = Callable[[Answer], Sequence[float]]
"""Returns for each of an answer's items how right it is: 0 to 1."""


class TrialArms:
    """Assigns one gateway's queries to the arms of trials, and counts them.

    Args:
        seed, gateway_id: with the trial's number, they decide which queries are in the share.
        is_served: tells whether a scope has a ready variant; a version that is not ready has no
            share yet.
    """

    def __init__(self, seed: int, gateway_id: str, is_served: Callable[[str], bool]) -> None:
        self._salt = f"{seed}/{gateway_id}"
        self._is_served = is_served
        self._since: dict[int, int] = {}  # by trial, the first query that counts
        self._trials: dict[str, Trial] = {}  # by task
        self._counts: dict[int, TrialCounts] = {}
        # In turn, a query's id and the parts of its answer: Python's garbage collector leaves plain
        # tuples of plain values alone.
        self._answers: list[tuple[Any, ...] | None] = [None] * ANSWERS_KEPT
        self._feedback: dict[tuple[str, str], list[float]] = {}
        self._labelled: dict[str, int] = {}  # by variant, the last query with feedback

    def set_trials(self, trials: Iterable[Trial]) -> None:
        """Set the trials that run from now on, and forget the counts of all others."""
        self._trials = {trial.task: trial for trial in trials}
        numbers = {trial.number for trial in self._trials.values()}
        self._counts = {n: counts for n, counts in self._counts.items() if n in numbers}
        self._since = {n: first for n, first in self._since.items() if n in numbers}

    def assign_arm(self, scope: str, query_id: int, tenant: str) -> str:
        """Return the scope that a query is served in: an arm of ``scope``, if a trial touches it.

        Args:
            scope: the scope in the request; a request that names a version gets that version.
            query_id: the query's id, larger than all before.
        """
        if not self._trials or "@" in scope:
            return scope
        trial = self._trials.get(task_of(scope))
        if trial is None or not in_scope(trial.variant_id, scope):
            return scope
        is_ready = self._is_served(trial.variant_id)
        if is_ready:
            self._since.setdefault(trial.number, query_id)
        on_trial = is_ready and is_in_share(trial, self._salt, query_id, tenant)
        return arm_of(scope, trial.variant_id, on_trial=on_trial)

    def count_answer(self, receipt: Receipt, classes: Callable[[], tuple[int, ...] | None]) -> None:
        """Count an answered query, and remember its answer, of these ``classes``, for feedback."""
        number, on_trial = 0, False
        arm = self._arm(receipt)
        if arm is not None:
            trial, on_trial, counts = arm
            counts.queries += 1
            step = latency_step(receipt.observed_latency_s or 0.0)
            counts.latencies[step] = counts.latencies.get(step, 0) + 1
            if receipt.variant_id == _version_of(trial, on_trial):
                counts.answered += 1
                number = trial.number
        query, variant_id = receipt.query, receipt.variant_id
        answer = number, task_of(query.scope), on_trial, query.items, classes(), variant_id
        self._answers[query.query_id % len(self._answers)] = query.query_id, *answer

    def count_refusal(self, receipt: Receipt) -> None:
        """Count a query that was refused, or that failed."""
        arm = self._arm(receipt)
        if arm is None:
            return
        trial, on_trial, counts = arm
        counts.queries += 1
        if receipt.reason in _FAILED and receipt.variant_id == _version_of(trial, on_trial):
            counts.failed += 1

    def count_feedback(self, query_id: int, judge: Judge, tenant: str = "") -> bool:
        """Count feedback on an answer; return False if the answer is unknown.

        An answer is unknown if it is too old, or had feedback already.

        Args:
            tenant: whose feedback it is.

        Raises:
            Exception: any error of ``judge``; the answer is kept then.
        """
        place = query_id % len(self._answers)
        found = self._answers[place]
        if found is None or found[0] != query_id:
            return False
        answer = Answer(*found[1:])
        scores = judge(answer)
        self._answers[place] = None
        self.add_scores(answer.variant_id, tenant, scores)
        if any(answer.number == trial.number for trial in self._trials.values()):
            pair = self._counts_of(answer.number)
            counts = pair.tried if answer.on_trial else pair.standing
            counts.labelled += len(scores)
            counts.wrong += len(scores) - sum(scores)
        self._labelled[answer.variant_id] = query_id
        return True

    def add_scores(self, variant_id: str, tenant: str, scores: Sequence[float]) -> None:
        """Count how right a variant's items are, each 0 to 1, by somebody's word."""
        told = self._feedback.setdefault((variant_id, tenant), [0.0, 0.0])
        told[0] += sum(scores)
        told[1] += len(scores) - sum(scores)

    def is_labelled(self, variant_id: str, query_id: int) -> bool:
        """Return whether feedback came for one of the variant's last answers before a query."""
        last = self._labelled.get(variant_id)
        return last is not None and query_id - last < len(self._answers)

    def take_feedback(self) -> tuple[FeedbackCounts, ...]:
        """Return what feedback said since the last call, and count from zero again."""
        taken, self._feedback = self._feedback, {}
        return tuple(FeedbackCounts(*key, *counts) for key, counts in taken.items())

    def take_counts(self) -> tuple[TrialCounts, ...]:
        """Return the counts since the last call, and count from zero again."""
        taken, self._counts = self._counts, {}
        return tuple(taken.values())

    def add_arms(self, shares: Shares) -> Shares:
        """Return a plan's shares with those of the arms' scopes added."""
        told = dict(shares)
        for scope, of_scope in shares.items():
            trial = self._trials.get(task_of(scope))
            if trial is None or "@" in scope or not in_scope(trial.variant_id, scope):
                continue
            for on_trial in (True, False):
                arm = arm_of(scope, trial.variant_id, on_trial=on_trial)
                told[arm] = {
                    _standing_in(placement, trial) if on_trial else placement: share
                    for placement, share in of_scope.items()
                }
        return told

    def _arm(self, receipt: Receipt) -> tuple[Trial, bool, ArmCounts] | None:
        """Return the query's trial, whether its arm is that of the new version, and its counts."""
        scope = (
            receipt.standing or receipt.query
        ).scope  # a query of an arm that is gone has no arm
        if not self._trials or " " not in scope:
            return None
        trial = self._trials.get(task_of(scope))
        if trial is None or not scope.endswith(f" {trial.variant_id}"):
            return None
        if receipt.query.query_id < self._since.get(trial.number, math.inf):
            return None  # it came before both versions were ready
        on_trial = scope == arm_of(base_of(scope), trial.variant_id, on_trial=True)
        pair = self._counts_of(trial.number)
        return trial, on_trial, pair.tried if on_trial else pair.standing

    def _counts_of(self, number: int) -> TrialCounts:
        found = self._counts.get(number)
        if found is None:
            found = self._counts[number] = TrialCounts(number, ArmCounts(), ArmCounts())
        return found


def is_in_share(trial: Trial, *key: object) -> bool:
    """Whether the query with this key tries the new version: the same for equal keys."""
    text = "/".join(map(str, (trial.number, trial.variant_id, *key))).encode()
    drawn = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
    return drawn < trial.share * 2.0**64


def _version_of(trial: Trial, on_trial: bool) -> str:
    return trial.variant_id if on_trial else trial.against_id


def _standing_in(placement: Placement, trial: Trial) -> Placement:
    """Return the placement that replaces this one in the arm of the new version."""
    if placement.variant_id != trial.against_id:
        return placement
    return Placement(trial.variant_id, placement.device_class)
