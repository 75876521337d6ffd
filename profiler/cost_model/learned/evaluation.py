"""Trying the predictor beside the baselines: what is left out is predicted from a few measurements.

Everyone gets the same training rows, and of each device that is left out the same measurements
(``sampling``); these are not judged. With 0 measurements a device is predicted unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from modelless.common.errors import InvalidInputError
from modelless.profiler.cost_model.learned.baselines import BASELINES
from modelless.profiler.cost_model.learned.points import in_order
from modelless.profiler.cost_model.learned.predictor import Predictor
from modelless.profiler.cost_model.learned.prior import Prior
from modelless.profiler.cost_model.learned.sampling import Sampler, sample_at_random
from modelless.profiler.measure.table import TableRow
from modelless.variants.estimates import FloatArray

MODELLESS = "modelless"
HOLDOUT_PARTS = ("device", "family", "source", "model", "task", "engine", "precision")
BAND = 0.90
MOST_JUDGED = 5000
"""Rows of a device; of more, so many are drawn: what is predicted at once grows with them."""
_SHOWN = 30  # values of a column, in an error

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Holdout:
    """What is left out of training.

    Attributes:
        part: one of ``HOLDOUT_PARTS``.
        value: of that column.
    """

    part: str
    value: str

    @classmethod
    def of(cls, text: str) -> Holdout:
        """From ``part=value``.

        Raises:
            InvalidInputError: it is not that.
        """
        part, equals, value = text.partition("=")
        if not equals or part not in HOLDOUT_PARTS or not value:
            allowed = "one of " + ", ".join(f"{name}=..." for name in HOLDOUT_PARTS)
            raise InvalidInputError.of("--holdout", text, allowed)
        return cls(part, value)

    def holds(self, row: TableRow) -> bool:
        """Whether the row is left out."""
        return bool(getattr(row, self.part) == self.value)


@dataclass(frozen=True, slots=True)
class Score:
    """How one method did on one device.

    Attributes:
        device: which, of which ``source``.
        shots: measurements of it that were given.
        method: ``modelless`` or a baseline.
        seeds: draws of the measurements; figures are means over them.
        points: rows judged, of each draw.
        mape_percent: mean absolute error, relative to what was measured.
        mape_low_percent, mape_high_percent: of the best and the worst draw.
        median_error_percent: median absolute relative error.
        within_10_percent: share of rows predicted within 10 %, in per cent.
        rank_correlation: Spearman's; None where all predictions or latencies are equal.
        band_coverage_percent: rows within the central 90 % band; None for baselines.
        band_coverage_low_percent, band_coverage_high_percent: of the draws.
        band_width: median ratio of the band's upper to its lower end.
    """

    device: str
    source: str
    shots: int
    method: str
    seeds: int
    points: int
    mape_percent: float
    mape_low_percent: float
    mape_high_percent: float
    median_error_percent: float
    within_10_percent: float
    rank_correlation: float | None
    band_coverage_percent: float | None = None
    band_coverage_low_percent: float | None = None
    band_coverage_high_percent: float | None = None
    band_width: float | None = None

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Draw:
    mape: float
    median: float
    within: float
    rank: float
    coverage: float = np.nan
    width: float = np.nan


@dataclass(frozen=True, slots=True)
class Trial:
    """One device to predict, and what may be known.

    Attributes:
        training: rows that may be learned from.
        wanted: rows of the device; a few of them will be given.
        passed_over: rows of it that are neither given nor judged, beyond ``MOST_JUDGED``.
    """

    training: Sequence[TableRow]
    wanted: Sequence[TableRow]
    passed_over: int = 0


def plan_trials(
    rows: Sequence[TableRow],
    training: Sequence[TableRow] | None,
    holdouts: Sequence[Holdout],
) -> list[Trial]:
    """What to predict from what.

    With ``training``, every device of ``rows`` is predicted from it. Without, what ``holdouts``
    name is left out all at once and predicted from the rest, device by device; without holdouts
    each device is left out in turn. A point that is to be predicted is never learned from, even
    where ``training`` holds it too.

    Raises:
        InvalidInputError: a holdout that no row has.
    """
    rows = in_order(rows)
    if training is not None:
        training = in_order(training)
    for holdout in holdouts:
        if not any(holdout.holds(row) for row in rows):
            values = sorted({str(getattr(row, holdout.part)) or "(blank)" for row in rows})
            shown = ", ".join(values[:_SHOWN]) + (", ..." if len(values) > _SHOWN else "")
            raise InvalidInputError.of(
                f"--holdout {holdout.part}", holdout.value, f"one of {shown}"
            )
    judged = [row for row in rows if not holdouts or any(one.holds(row) for one in holdouts)]
    trials = []
    for device in sorted({(row.source, row.device) for row in judged}):
        wanted = [row for row in judged if (row.source, row.device) == device]
        keys = {row.key for row in wanted}
        known = [
            row
            for row in (rows if training is None else training)
            if row.key not in keys
            and not any(one.holds(row) for one in holdouts)
            and (holdouts or training is not None or (row.source, row.device) != device)
        ]
        drawn = np.random.default_rng(0).permutation(len(wanted))[:MOST_JUDGED]
        kept = [wanted[number] for number in np.sort(drawn)]
        trials.append(Trial(known, kept, len(wanted) - len(kept)))
    return trials


def evaluate(
    trial: Trial,
    prior: Prior,
    shots: Sequence[int],
    seeds: int,
    progress: Progress | None = None,
    sampler: Sampler = sample_at_random,
) -> list[Score]:
    """Scores of every method for each number of shots.

    Args:
        trial: see ``plan_trials``.
        prior: what ``modelless`` supposes.
        shots: how many measurements are given; a number that leaves no row to judge is left out.
        seeds: draws.
        progress: told of draws done and to do.
        sampler: which measurements are given.
    """
    latency_ms = np.array([row.latency_ms for row in trial.wanted])
    predictor = Predictor(prior, trial.training, trial.wanted)
    others = {
        name: make(trial.training, trial.wanted, prior.roofline) for name, make in BASELINES.items()
    }
    possible = [count for count in shots if count < len(trial.wanted)]
    scores = []
    for number, count in enumerate(possible):
        draws: dict[str, list[_Draw]] = {}
        for seed in range(seeds):
            given = np.sort(sampler(predictor, latency_ms, count, seed))
            rows = np.setdiff1d(np.arange(len(trial.wanted)), given)
            truth_ms = latency_ms[rows]
            own = predictor.predict(given, latency_ms[given], rows)
            draws.setdefault(MODELLESS, []).append(
                _judge(own.least_error_ms, truth_ms, own.low_ms, own.high_ms)
            )
            for name, other in others.items():
                predicted_ms = other.predict(given, latency_ms[given], rows)
                draws.setdefault(name, []).append(_judge(predicted_ms, truth_ms))
            if progress is not None:
                progress(number * seeds + seed + 1, len(possible) * seeds)
        first = trial.wanted[0]
        scores += [
            _score(first.device, first.source, count, name, len(trial.wanted) - count, drawn)
            for name, drawn in draws.items()
        ]
    return scores


def _judge(
    predicted_ms: FloatArray,
    truth_ms: FloatArray,
    low_ms: FloatArray | None = None,
    high_ms: FloatArray | None = None,
) -> _Draw:
    error = np.abs(predicted_ms / truth_ms - 1.0)
    rank = np.nan
    if np.ptp(predicted_ms) > 0.0 and np.ptp(truth_ms) > 0.0:
        from scipy.stats import spearmanr

        rank = float(spearmanr(predicted_ms, truth_ms).statistic)
    draw = _Draw(
        100.0 * float(error.mean()),
        100.0 * float(np.median(error)),
        100.0 * float((error <= 0.10).mean()),
        rank,
    )
    if low_ms is None or high_ms is None:
        return draw
    inside = (truth_ms >= low_ms) & (truth_ms <= high_ms)
    return _Draw(
        draw.mape,
        draw.median,
        draw.within,
        rank,
        100.0 * float(inside.mean()),
        float(np.median(high_ms / low_ms)),
    )


def _score(
    device: str, source: str, shots: int, method: str, points: int, draws: Sequence[_Draw]
) -> Score:
    def mean(name: str) -> float | None:
        values = np.array([getattr(draw, name) for draw in draws])
        values = values[np.isfinite(values)]
        return float(values.mean()) if len(values) else None

    coverage = [draw.coverage for draw in draws if np.isfinite(draw.coverage)]
    mapes = [draw.mape for draw in draws]
    return Score(
        device=device,
        source=source,
        shots=shots,
        method=method,
        seeds=len(draws),
        points=points,
        mape_percent=float(np.mean(mapes)),
        mape_low_percent=min(mapes),
        mape_high_percent=max(mapes),
        median_error_percent=float(np.mean([draw.median for draw in draws])),
        within_10_percent=float(np.mean([draw.within for draw in draws])),
        rank_correlation=mean("rank"),
        band_coverage_percent=mean("coverage"),
        band_coverage_low_percent=min(coverage, default=None),
        band_coverage_high_percent=max(coverage, default=None),
        band_width=mean("width"),
    )
