"""The quantiles keep their promise, and what says so counts right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from modelless.profiler.cost_model.online.coverage import Coverage, merge_coverage

from .helpers import IDLE, Noise, covered_percent, lognormal, make_model, placement, tell


def heavy(rng: np.random.Generator) -> float:
    """A tail far from a normal's: Pareto, shape 4."""
    return 0.84 * (1.0 + float(rng.pareto(4.0)))


def skewed(rng: np.random.Generator) -> float:
    """Never below its least, as latencies are."""
    return 0.93 + float(rng.exponential(0.1))


def bimodal(rng: np.random.Generator) -> float:
    """Now and then something else runs that nobody tells of."""
    return float(rng.lognormal(0.0, 0.03)) * (1.5 if rng.random() < 0.3 else 1.0)


@pytest.mark.parametrize("noise", [lognormal(0.02), lognormal(0.2), heavy, skewed, bimodal])
def test_p90_and_p99_cover_what_they_say_whatever_the_noise(make: Any, noise: Noise) -> None:
    """The profile says 5 % and 10 % over the median: too much for the first, too little else."""
    told = tell(make_model(make), 8000, noise, seed=5)
    p50, p90, p99 = covered_percent(told[1000:])
    assert p50 == pytest.approx(50.0, abs=2.0)
    assert p90 == pytest.approx(90.0, abs=1.0)
    assert p99 == pytest.approx(99.0, abs=0.7)


def test_they_do_under_contention(make: Any) -> None:
    told = tell(
        make_model(make),
        6000,
        lognormal(0.1),
        lambda _t, _n, load: 1.0 + 0.5 * load.busy_neighbours,
        loads=(0.0, 0.5, 1.0, 2.0, 3.0),
    )
    _, p90, p99 = covered_percent(told[500:])
    assert p90 == pytest.approx(90.0, abs=1.0)
    assert p99 == pytest.approx(99.0, abs=0.5)


def test_they_do_again_after_a_change(make: Any) -> None:
    """Everything takes 1.8 times as long at 3,000, and varies three times as much."""
    rng = np.random.default_rng(8)
    told = tell(
        make_model(make),
        6000,
        lambda _rng: 1.0,
        lambda t, _n, _load: (
            float(rng.lognormal(0.0, 0.05)) if t < 3000 else 1.8 * float(rng.lognormal(0.0, 0.15))
        ),
    )
    _, p90, p99 = covered_percent(told[3300:])
    assert p90 == pytest.approx(90.0, abs=1.5)
    assert p99 == pytest.approx(99.0, abs=0.7)
    assert np.median([outcome.p99_s / outcome.p50_s for outcome in told[5000:]]) < 1.7


def test_a_burst_does_not_keep_p99_high(make: Any) -> None:
    told = tell(
        make_model(make),
        6000,
        lognormal(0.05),
        lambda t, _n, _load: 6.0 if 3000 <= t < 3050 else 1.0,
    )
    width = [outcome.p99_s / outcome.p50_s for outcome in told]
    assert max(width) < 20.0
    assert np.median(width[5500:]) < 1.4


def test_a_placement_never_seen_has_its_class_tails(make: Any) -> None:
    model = make_model(make, count=6)
    tell(model, 3000, lognormal(0.2), count=5)
    seen, unseen = (
        model.estimate((placement(number),), 1, IDLE).p99_s[0]
        / model.estimate((placement(number),), 1, IDLE).p50_s[0]
        for number in (0, 5)
    )
    assert 1.2 < unseen < seen


def test_what_is_counted_is_what_was_predicted(make: Any) -> None:
    model = make_model(make)
    assert model.coverage() == ()
    told = tell(model, 900, lognormal(0.1))
    (counted,) = model.coverage()
    assert (counted.device_class, counted.outcomes) == ("cpu-1", 900)
    assert counted.median_error_percent == pytest.approx(
        100.0 * np.median([outcome.error for outcome in told[-500:]])
    )
    keep = (1.0 - 1.0 / 1000.0) ** np.arange(899, -1, -1)
    for level, name in enumerate(("within_p50_percent", "within_p90_percent")):
        hits = [outcome.latency_s <= outcome[level] for outcome in told]
        assert getattr(counted, name) == pytest.approx(100.0 * np.average(hits, weights=keep))
    with pytest.raises(AttributeError):
        counted.outcomes = 0  # type: ignore[misc]


def test_what_several_gateways_counted_is_weighted() -> None:
    parts = [
        Coverage("b", 10, 10.0, 50.0, 90.0, 100.0, 4.0),
        Coverage("a", 7, 7.0, 50.0, 90.0, 100.0, 4.0),
        Coverage("b", 40, 30.0, 70.0, 94.0, 100.0, 8.0),
    ]
    assert merge_coverage(parts) == (parts[1], Coverage("b", 50, 40.0, 65.0, 93.0, 100.0, 7.0))


def test_a_class_whose_outcomes_are_all_ignored_is_told_of(make: Any) -> None:
    model = make_model(make)
    for _ in range(3):
        model.observe(placement(0), 1, IDLE, 1e6)
    (told,) = model.coverage()
    assert (told.outcomes, told.ignored, told.within_p90_percent) == (0, 3, None)
    seen = Coverage(told.device_class, 7, 7.0, 50.0, 90.0, 100.0, 4.0, 1)
    merged = Coverage(told.device_class, 7, 7.0, 50.0, 90.0, 100.0, 4.0, 4)
    assert merge_coverage([told, seen]) == (merged,)
    assert merge_coverage([told]) == (told,)
