"""Estimates from receipts beside what can be reckoned by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from modelless.common.errors import InvalidInputError
from modelless.controller.history.off_policy import (
    Estimate,
    ask_other,
    estimate,
    observe,
    read_decisions,
)
from modelless.policies.reasons import Reason
from modelless.policies.seams import SelectionPolicy
from modelless.policies.views import Bind, Candidates, Choice, Defer, QueryView, Reject

QUICK, SLOW = "t/quick/v@1", "t/slow/v@1"
ACCURACY = {QUICK: 70.0, SLOW: 80.0}
USD = {QUICK: 1e-6, SLOW: 4e-6}


class Always(SelectionPolicy):
    """Binds to one variant, or does this one other thing."""

    def __init__(self, choice: str | Choice) -> None:
        super().__init__()
        self.choice = choice

    def on_arrival(
        self, query: QueryView, candidates: Candidates, rng: np.random.Generator
    ) -> Choice:
        if not isinstance(self.choice, str):
            return self.choice
        row = candidates.row_of(self.choice, "cpu-1")
        assert row is not None
        return Bind(row, Reason.ALWAYS)


def receipt(
    number: int,
    chosen: str,
    propensity: float,
    *,
    explored: bool = False,
    in_time: bool = True,
    p50_ms: Mapping[str, float] | None = None,
    weight: float = 1.0,
    deferred: bool = False,
) -> dict[str, Any]:
    """A query that was served by what was chosen, in time or late."""
    median_ms = p50_ms or {QUICK: 10.0, SLOW: 20.0}
    return {
        "query_id": number, "gateway": "g", "scope": "t", "tenant": "", "latency_ms": 100.0,
        "arrived_at": f"2026-01-01T00:{number // 60 % 60:02}:{number % 60:02}.000+00:00",
        "is_default_latency": False, "min_accuracy": 0.0, "max_cost_usd": None, "priority": 0,
        "when_late": "refuse", "items": 1, "item_size": None, "variant": chosen,
        "device_class": "cpu-1", "outcome": "served" if in_time else "served-late",
        "cost_usd": USD[chosen], "weight": weight,
        "first_choice": {
            "variant": None if deferred and not explored else chosen,
            "device_class": None if deferred else "cpu-1",
            "explored": explored, "propensity": propensity, "after_ms": 0.0,
        },
        "candidates": [
            {
                "variant": name, "device_class": "cpu-1", "accuracy": ACCURACY[name],
                "p50_ms": median_ms[name], "p99_ms": 1.2 * median_ms[name], "wait_ms": 0.0,
                "cost_usd": USD[name], "misses": [], "chosen": name == chosen,
            }
            for name in (QUICK, SLOW)
        ],
    }  # fmt: skip


def reckon(
    receipts: Sequence[Mapping[str, Any]], choice: str | Choice, *, doubly_robust: bool = False
) -> Estimate:
    other = ask_other(lambda: Always(choice), read_decisions(receipts))
    return estimate(other, doubly_robust=doubly_robust)


def some(in_time: Sequence[bool] = (True, False)) -> list[dict[str, Any]]:
    """Queries served by the quick variant, and two of which the slow one was drawn for."""
    quick = [receipt(number, QUICK, 0.75) for number in range(6)]
    probable, rare = in_time
    return [
        *quick,
        receipt(6, SLOW, 0.25, explored=True, in_time=probable),
        receipt(7, SLOW, 0.125, explored=True, in_time=rare),
    ]


def test_propensity_scores_weigh_the_matching_choices() -> None:
    found = reckon(some(), SLOW).figures
    # The weights are 4 and 8, and the first is in time.
    assert found == pytest.approx([0.8 / 3.0, 1.0 / 3.0, 80.0, 4e-6])
    assert reckon(some(), QUICK).figures == pytest.approx([0.7, 1.0, 70.0, 1e-6])


def test_doubly_robust_corrects_what_the_estimates_promise() -> None:
    # All are promised to be in time with a cost of 4e-6; the weighted truth is that a third is.
    assert reckon(some(), SLOW, doubly_robust=True).figures[:2] == pytest.approx([0.8 / 3, 1 / 3])
    # Half of the queries promise nothing of the slow variant, and none of them was explored: the
    # correction is that of the others, as their promise was kept.
    slow = [receipt(n, QUICK, 0.75, p50_ms={QUICK: 10.0, SLOW: 500.0}) for n in range(10, 18)]
    found = reckon(some((True, True)) + slow, SLOW, doubly_robust=True).figures
    assert found[1] == pytest.approx(0.5)
    assert reckon(some((True, True)) + slow, SLOW).figures[1] == pytest.approx(1.0)


def test_a_policy_that_defers_has_what_was_not_drawn() -> None:
    receipts = [receipt(n, QUICK, 0.5, deferred=True, in_time=n % 4 > 0) for n in range(8)]
    receipts += [receipt(n, SLOW, 0.25, deferred=True, explored=True) for n in range(8, 12)]
    assert reckon(receipts, Defer(), doubly_robust=True).figures[1] == pytest.approx(0.75)
    assert reckon(receipts, SLOW, doubly_robust=True).figures[1] == pytest.approx(1.0)
    assert reckon(receipts, Reject(Reason.TOO_SLOW)).figures[[0, 1, 3]] == pytest.approx(0.0)


def test_a_receipt_counts_for_the_queries_that_it_stands_for() -> None:
    once = [receipt(0, SLOW, 0.5, explored=True, in_time=False)]
    once += [receipt(n, SLOW, 0.5, explored=True) for n in (1, 2, 3)]
    heavy = [receipt(0, SLOW, 0.5, explored=True, in_time=False, weight=3.0), once[1]]
    assert reckon(once, SLOW).figures[1] == pytest.approx(0.75)
    assert reckon(heavy, SLOW).figures[1] == pytest.approx(0.25)
    assert observe(read_decisions(heavy))[1] == pytest.approx(0.25)
    assert len(read_decisions([*heavy, receipt(9, QUICK, 0.5, weight=0.0)])) == 2


@pytest.mark.parametrize("doubly_robust", [False, True])
def test_intervals_hold_the_truth(doubly_robust: bool) -> None:
    """Estimates that promise too much; late answers depend on which variant, and on the hour."""
    rng = np.random.default_rng(3)
    truth, held, errors = 0.0, [], []
    for _ in range(60):
        receipts = []
        for number in range(240):
            busy = number // 60 % 2
            explored = bool(rng.random() < 0.2)
            chosen = SLOW if explored else QUICK
            p_in_time = 1.0 - 0.1 * busy if chosen == QUICK else 0.8 - 0.4 * busy
            receipts.append(
                receipt(
                    number, chosen, 0.2 if explored else 0.8, explored=explored,
                    in_time=bool(rng.random() < p_in_time),
                )
            )  # fmt: skip
        truth = 0.6
        found = reckon(receipts, SLOW, doubly_robust=doubly_robust)
        errors.append(found.figures[1] - truth)
        held.append(abs(errors[-1]) <= 2.09 * found.errors[1])
    assert abs(np.mean(errors)) < 3.0 * np.std(errors) / np.sqrt(len(errors))
    assert np.mean(held) >= 0.9


def test_what_was_never_seen_may_still_happen() -> None:
    receipts = [receipt(n, SLOW, 0.5, explored=True) for n in range(50)]
    assert reckon(receipts, SLOW).errors[1] == pytest.approx(1.0 / 50)


def test_receipts_without_propensities_say_what_to_set() -> None:
    bare = [{**each, "first_choice": None} for each in some()]
    with pytest.raises(InvalidInputError, match=r"policies\.explore"):
        read_decisions(bare)
    with pytest.raises(InvalidInputError, match=r"policies\.explore"):
        read_decisions([])
    with pytest.raises(InvalidInputError, match="'scope'"):
        read_decisions([{"a": 1}])
