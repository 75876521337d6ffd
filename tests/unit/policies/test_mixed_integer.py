"""The solver's limits: by work, the same everywhere; by the clock only as a backstop, and told."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from modelless.common.errors import InvalidInputError
from modelless.policies.scaling.mixed_integer import MixedIntegerProgram, SolverLimits, SolverResult


def knapsacks(items: int, rows: int, seed: int = 0) -> MixedIntegerProgram:
    """So many items in so many dimensions: takes a search tree."""
    rng = np.random.default_rng(seed)
    program = MixedIntegerProgram(rng.integers(1, 60, items).astype(float), items, np.ones(items))
    for row in rng.integers(1, 60, (rows, items)):
        program.add(dict(enumerate(row.astype(float).tolist())), -inf, float(row.sum() // 2))
    return program


def test_a_search_without_limits_proves_what_it_finds() -> None:
    found = knapsacks(14, 6).maximise(SolverLimits(100_000, 1e-9, 60.0))
    weights = knapsacks(14, 6)
    choices = (np.arange(1 << 14)[:, None] >> np.arange(14)) & 1
    fits = np.ones(len(choices), dtype=bool)
    rng = np.random.default_rng(0)
    rng.integers(1, 60, 14)
    for row in rng.integers(1, 60, (6, 14)):
        fits &= choices @ row <= row.sum() // 2
    assert found.worth == pytest.approx(float((choices[fits] @ weights.gain).max()))
    assert found.bound == pytest.approx(found.worth)
    assert not found.by_clock


def test_a_limit_of_nodes_ends_it_at_the_same_plan_every_time() -> None:
    few = [knapsacks(40, 12).maximise(SolverLimits(1, 1e-9, 600.0)) for _ in range(2)]
    for found in few:
        assert found.values is not None
        assert found.bound > found.worth, "not proven"
        assert not found.by_clock
    first, second = (found.values for found in few)
    assert first is not None
    assert second is not None
    assert (first == second).all()


def test_where_the_clock_ends_it_it_says_so() -> None:
    found = knapsacks(60, 30).maximise(SolverLimits(100_000, 1e-9, 1e-6))
    assert found.by_clock
    assert not found.is_impossible


def test_a_plan_is_worth_what_the_program_gives_it() -> None:
    program = MixedIntegerProgram(np.array([0.0, 3.0]), 1, np.array([5.0, inf]))
    program.add({0: -2.0, 1: 1.0}, -inf, 0.0)  # at most two of the other for one of the first
    assert program.evaluate_plan([2.0], 10.0).worth == pytest.approx(12.0)
    assert program.maximise(SolverLimits(100, 0.0, 10.0)).worth == pytest.approx(30.0)
    program.add({0: 1.0}, 3.0, inf)
    assert program.evaluate_plan([2.0], 10.0).is_impossible
    assert program.evaluate_plan([2.0], 10.0).worth == -inf


def test_zero_limits_find_nothing() -> None:
    assert knapsacks(5, 2).maximise(SolverLimits(0, 0.0, 1.0)) == SolverResult(None)


@pytest.mark.parametrize(
    "limits", [SolverLimits(-1, 0.0, 1.0), SolverLimits(1, 1.0, 1.0), SolverLimits(1, 0.0, inf)]
)
def test_limits_that_make_no_sense_is_refused(limits: SolverLimits) -> None:
    with pytest.raises(InvalidInputError):
        limits.validated()
