"""The sequential test: right as often as it says, however often it is asked, and quick enough."""

from __future__ import annotations

import math

import numpy as np
import pytest

from modelless.controller.control.canary_verdict import Evidence, Stream, weigh

ALPHA = 0.05
NEEDED = math.log(1.0 / ALPHA)


def peek(
    rng: np.random.Generator,
    rates: tuple[float, float],
    tolerance: float,
    *,
    share: float = 0.2,
    at_most: int = 2000,
    step: int = 40,
) -> tuple[str, int]:
    """What one trial shows first, looked at after every ``step`` queries, and after how many."""
    tried, standing = Stream(0, 0), Stream(0, 0)
    for asked in range(step, at_most + 1, step):
        mine = int(rng.binomial(step, share))
        tried = Stream(tried.total + mine, tried.bad + int(rng.binomial(mine, rates[0])))
        others = step - mine
        standing = Stream(
            standing.total + others, standing.bad + int(rng.binomial(others, rates[1]))
        )
        found = weigh(tried, standing, tolerance)
        if found.log_worse >= NEEDED:
            return "worse", asked
        if found.log_fine >= NEEDED:
            return "fine", asked
    return "open", at_most


@pytest.mark.parametrize("rate", [0.002, 0.1, 0.5])
def test_a_version_at_the_border_is_called_worse_as_seldom_as_it_may(rate: float) -> None:
    rng = np.random.default_rng(7)
    tolerance = 0.05
    found = [peek(rng, (rate + tolerance, rate), tolerance) for _ in range(500)]
    assert sum(outcome == "worse" for outcome, _ in found) <= ALPHA * 500
    assert sum(outcome == "fine" for outcome, _ in found) <= ALPHA * 500


def test_the_same_version_is_never_called_worse() -> None:
    rng = np.random.default_rng(8)
    found = [peek(rng, (0.1, 0.1), 0.02, at_most=2000) for _ in range(500)]
    assert sum(outcome == "worse" for outcome, _ in found) <= ALPHA * 500


def test_without_a_tolerance_worth_the_name_it_still_holds() -> None:
    rng = np.random.default_rng(9)
    found = [peek(rng, (0.1, 0.1), 1e-6, at_most=2000) for _ in range(500)]
    assert sum(outcome == "worse" for outcome, _ in found) <= ALPHA * 500


@pytest.mark.parametrize(
    ("rates", "tolerance", "outcome", "most_queries"),
    [
        ((0.2, 0.1), 0.02, "worse", 3600),  # ten points worse: some 550 labels of the canary
        ((0.3, 0.1), 0.02, "worse", 1000),
        ((0.9, 0.1), 0.02, "worse", 120),
        ((0.1, 0.1), 0.05, "fine", 7000),
        ((0.0, 0.0), 0.02, "fine", 4000),
    ],
)
def test_it_decides_soon(
    rates: tuple[float, float], tolerance: float, outcome: str, most_queries: int
) -> None:
    rng = np.random.default_rng(10)
    found = [peek(rng, rates, tolerance, at_most=12_000, step=40) for _ in range(40)]
    assert {outcome for outcome, _ in found} == {outcome}
    assert np.median([asked for _, asked in found]) <= most_queries


def test_nothing_seen_says_nothing() -> None:
    assert weigh(Stream(0, 0), Stream(0, 0), 0.02) == Evidence(0.0, 0.0)
    alone = weigh(Stream(0, 0), Stream(5000, 5), 0.02)
    assert alone.log_worse < NEEDED
    assert alone.log_fine < NEEDED


@pytest.mark.parametrize("total", [1, 10, 10**7])
@pytest.mark.parametrize("bad", [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)])
@pytest.mark.parametrize("tolerance", [1e-6, 0.02, 0.999999])
def test_extremes_are_finite(total: int, bad: tuple[float, float], tolerance: float) -> None:
    tried, standing = (Stream(total, int(total * share)) for share in bad)
    found = weigh(tried, standing, tolerance)
    assert all(math.isfinite(value) for value in found)
    assert min(found) < NEEDED  # never both


def test_it_is_what_its_formula_says() -> None:
    """Against the mixture and a grid, without the closed forms."""
    tried, standing, tolerance = Stream(30, 12), Stream(80, 9), 0.05
    rates = np.linspace(1e-6, 1.0 - 1e-6, 200_001)
    density = 1.0 / (math.pi * np.sqrt(rates * (1.0 - rates)))  # Beta(1/2, 1/2)

    def likelihood(stream: Stream, at: np.ndarray) -> np.ndarray:
        result: np.ndarray = at**stream.bad * (1.0 - at) ** (stream.total - stream.bad)
        return result

    mixture = [
        float(np.trapezoid(likelihood(stream, rates) * density, rates))
        for stream in (tried, standing)
    ]
    border = rates[rates < 1.0 - tolerance]
    best = float((likelihood(tried, border + tolerance) * likelihood(standing, border)).max())
    expected = math.log(mixture[0]) + math.log(mixture[1]) - math.log(best)
    assert weigh(tried, standing, tolerance).log_worse == pytest.approx(expected, abs=1e-3)
