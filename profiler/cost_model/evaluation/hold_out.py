"""Compares the predictor with the baselines on devices, families and other parts that are left out.

All methods get the same training rows and the same measurements ("shots") of each left-out device.
No row of an item of which any row is a shot is judged, so an item's other batch sizes tell nothing.
With 0 shots a device is predicted unseen. A *sampler* chooses the shots:
``random`` takes any; ``chosen`` takes one after the other the row that reduces the expected errors
of the others most (``experiment_design``). ``modelless profile --budget`` chooses in the same way,
but weighs the reduction by the time that the measurement takes. A sampler sees only the latencies
of the rows that it has taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from modelless.common.errors import InvalidInputError
from modelless.profiler.cost_model.evaluation.baselines import BASELINES, Baselines
from modelless.profiler.cost_model.unmeasured.device_predictor import DevicePredictor
from modelless.profiler.cost_model.unmeasured.experiment_design import ErrorReduction
from modelless.profiler.cost_model.unmeasured.features import IntArray, NameCodes, encode, sort_rows
from modelless.profiler.cost_model.unmeasured.prior import Prior
from modelless.profiler.measure.table import TableRow
from modelless.variants.estimates import FloatArray

MODELLESS = "modelless"
HOLDOUT_PARTS = ("device", "family", "source", "model", "task", "engine", "precision")
MOST_JUDGED = 5000
"""The most rows of a device; of more, so many are drawn, because memory and time grow with them."""
_SHOWN = 30  # values of a column in an error
# Rows considered for each shot, drawn anew at random: the time of a choice grows with their square,
# and one of them is nearly the best of all (Mirzasoleiman et al., "Lazier Than Lazy Greedy", 2015).
_CANDIDATES = 100

Progress = Callable[[int, int], None]
"""Receives the number of finished draws and of all draws."""


Covariance = Callable[[IntArray, FloatArray, IntArray], tuple[FloatArray, float]]
"""States how uncertain rows are, given the shots; see ``DevicePredictor.covariance``."""

Sampler = Callable[[Covariance, FloatArray, int, int], IntArray]
"""Returns the shots in the order in which they are taken, shape (shots,).

The arguments are the covariance, the latency of each of the device's n rows in milliseconds, the
number of shots and a seed."""


def sample_at_random(_: Covariance, latency_ms: FloatArray, count: int, seed: int) -> IntArray:
    """A ``Sampler`` that draws the shots uniformly."""
    return np.random.default_rng([seed, count]).permutation(len(latency_ms))[:count]


def sample_by_choice(
    covariance: Covariance, latency_ms: FloatArray, count: int, seed: int
) -> IntArray:
    """A ``Sampler`` that takes each time the row that reduces the expected errors most.

    With the same seed, few shots are the first ones of many.
    """
    rng = np.random.default_rng(seed)
    shots, left = np.arange(0), np.arange(len(latency_ms))
    for _ in range(count):
        candidates = rng.permutation(left)[:_CANDIDATES]
        reduction = ErrorReduction(*covariance(shots, latency_ms[shots], candidates))
        best = candidates[np.argmax(reduction.by_point())]
        shots, left = np.append(shots, best), left[left != best]
    return shots


SAMPLERS: Mapping[str, Sampler] = {"random": sample_at_random, "chosen": sample_by_choice}


@dataclass(frozen=True, slots=True)
class Holdout:
    """A part of the rows that is left out of training.

    Attributes:
        part: one of ``HOLDOUT_PARTS``, a column.
        value: the value of the column.
    """

    part: str
    value: str

    @classmethod
    def of(cls, text: str) -> Holdout:
        """Returns the holdout that ``part=value`` describes.

        Raises:
            InvalidInputError: the text has another form.
        """
        part, equals, value = text.partition("=")
        if not equals or part not in HOLDOUT_PARTS or not value:
            allowed = "one of " + ", ".join(f"{name}=..." for name in HOLDOUT_PARTS)
            raise InvalidInputError.of("--holdout", text, allowed)
        return cls(part, value)

    def holds(self, row: TableRow) -> bool:
        """Returns whether the row is left out."""
        return bool(getattr(row, self.part) == self.value)


@dataclass(frozen=True, slots=True)
class MethodScore:
    """The errors of one method on one device.

    Attributes:
        device, source: the device and the table it is from.
        shots: measurements of the device that the method got.
        method: ``modelless`` or a baseline.
        seeds: draws of the shots; the figures are means over them.
        points: judged rows of the first draw.
        mape_percent: mean absolute error relative to the measured latency.
        mape_low_percent, mape_high_percent: that error in the best and the worst draw.
        median_error_percent: median absolute relative error.
        median_error_low_percent, median_error_high_percent: that of the best and the worst draw.
        within_10_percent: share of rows predicted within 10 %, per cent.
        rank_correlation: Spearman's; None where all predictions or latencies are equal.
        band_coverage_percent: share of rows within the central 90 % band, per cent; None for
            baselines.
        band_coverage_low_percent, band_coverage_high_percent: the least and the largest of a draw.
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
    median_error_low_percent: float
    median_error_high_percent: float
    within_10_percent: float
    rank_correlation: float | None
    band_coverage_percent: float | None = None
    band_coverage_low_percent: float | None = None
    band_coverage_high_percent: float | None = None
    band_width: float | None = None

    def document(self) -> dict[str, Any]:
        """Returns the score as data for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class HoldoutCase:
    """One device to predict and the rows to train on.

    Attributes:
        training: training rows.
        wanted: rows of the device; a few of them are the shots.
        passed_over: number of rows of the device beyond ``MOST_JUDGED``, which are not used.
    """

    training: Sequence[TableRow]
    wanted: Sequence[TableRow]
    passed_over: int = 0

    @property
    def most_shots(self) -> int:
        """The most shots that leave an item to judge: the rows without those of the smallest."""
        return len(self.wanted) - min(Counter(row.item for row in self.wanted).values())


def plan_cases(
    rows: Sequence[TableRow],
    training: Sequence[TableRow] | None,
    holdouts: Sequence[Holdout],
) -> list[HoldoutCase]:
    """Returns a case for each device to predict.

    With ``training``, every device of ``rows`` is predicted from it. Otherwise all ``holdouts`` are
    left out together and predicted from the rest, device by device; without holdouts each device is
    left out in turn. A point to predict is never trained on, even if ``training`` contains it.

    Raises:
        InvalidInputError: no row has a value that a holdout names.
    """
    rows = sort_rows(rows)
    if training is not None:
        training = sort_rows(training)
    for holdout in holdouts:
        if not any(holdout.holds(row) for row in rows):
            values = sorted({str(getattr(row, holdout.part)) or "(blank)" for row in rows})
            shown = ", ".join(values[:_SHOWN]) + (", ..." if len(values) > _SHOWN else "")
            raise InvalidInputError.of(
                f"--holdout {holdout.part}", holdout.value, f"one of {shown}"
            )
    judged = [row for row in rows if not holdouts or any(one.holds(row) for one in holdouts)]
    cases = []
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
        cases.append(HoldoutCase(known, kept, len(wanted) - len(kept)))
    return cases


def evaluate(
    case: HoldoutCase,
    prior: Prior,
    shots: Sequence[int],
    seeds: int,
    progress: Progress | None = None,
    sampler: Sampler = sample_at_random,
) -> list[MethodScore]:
    """Returns the scores of every method for each number of shots.

    Args:
        case: the device and the training rows.
        prior: the prior of the method ``modelless``.
        shots: numbers of shots; a number that leaves no row to judge is skipped.
        seeds: number of draws.
        progress: receives each finished draw.
        sampler: chooses the shots.
    """
    latency_ms = np.array([row.latency_ms for row in case.wanted])
    predictor = DevicePredictor(prior, case.training, case.wanted)
    baselines = Baselines(case.training, case.wanted, prior.roofline)
    items = encode(case.wanted, NameCodes(), prior.roofline).item
    possible = [count for count in shots if count <= case.most_shots]
    scores = []
    for number, count in enumerate(possible):
        draws: dict[str, list[dict[str, float]]] = {}
        judged = 0
        for seed in range(seeds):
            open_rows = _open_rows(items, count, seed)
            covariance = partial(_covariance_of_part, predictor, open_rows)
            drawn_rows = sampler(covariance, latency_ms[open_rows], count, seed)
            given = np.sort(open_rows[drawn_rows])
            rows = np.flatnonzero(~np.isin(items, items[given]))
            judged = len(rows) if not seed else judged
            truth_ms = latency_ms[rows]
            own = predictor.predict(given, latency_ms[given], rows)
            draws.setdefault(MODELLESS, []).append(
                judge(own.median_ms, truth_ms, own.low_ms, own.high_ms)
            )
            for name in BASELINES:
                predicted_ms = baselines.predict(name, given, latency_ms[given], rows)
                draws.setdefault(name, []).append(judge(predicted_ms, truth_ms))
            if progress is not None:
                progress(number * seeds + seed + 1, len(possible) * seeds)
        first = case.wanted[0]
        scores += [
            _score(first.device, first.source, count, name, judged, drawn)
            for name, drawn in draws.items()
        ]
    return scores


def _open_rows(items: IntArray, count: int, seed: int) -> IntArray:
    """Returns the rows that may be shots: those of half of the items, or of as many as it takes.

    The smallest item is taken last, and one item is left to be judged.
    """
    codes, sizes = np.unique(items, return_counts=True)
    order = np.random.default_rng([seed, 1]).permutation(len(codes))
    order = order[np.argsort(order == np.argmin(sizes), kind="stable")]
    least = int(np.searchsorted(np.cumsum(sizes[order]), count)) + 1
    taken = min(max(least, (len(codes) + 1) // 2), len(codes) - 1) if count else 0
    return np.flatnonzero(np.isin(items, codes[order[:taken]]))


def _covariance_of_part(
    predictor: DevicePredictor,
    part: IntArray,
    shots: IntArray,
    latency_ms: FloatArray,
    rows: IntArray,
) -> tuple[FloatArray, float]:
    """A ``Covariance`` of some of a predictor's rows, by their numbers in that part."""
    return predictor.covariance(part[shots], latency_ms, part[rows])


def judge(
    predicted_ms: FloatArray,
    truth_ms: FloatArray,
    low_ms: FloatArray | None = None,
    high_ms: FloatArray | None = None,
) -> dict[str, float]:
    """Returns the figures of one draw's predictions by the names of ``MethodScore``.

    A figure that does not exist is NaN.

    Args:
        predicted_ms: predicted latencies, shape (n,).
        truth_ms: measured latencies, shape (n,).
        low_ms, high_ms: the bands, if the method states any, shape (n,).
    """
    from scipy.stats import spearmanr

    error = np.abs(predicted_ms / truth_ms - 1.0)
    coverage = width = rank = np.nan
    if np.ptp(predicted_ms) > 0.0 and np.ptp(truth_ms) > 0.0:
        rank = float(spearmanr(predicted_ms, truth_ms).statistic)
    if low_ms is not None and high_ms is not None:
        coverage = 100.0 * float(((truth_ms >= low_ms) & (truth_ms <= high_ms)).mean())
        width = float(np.median(high_ms / low_ms))
    return {
        "mape_percent": 100.0 * float(error.mean()),
        "median_error_percent": 100.0 * float(np.median(error)),
        "within_10_percent": 100.0 * float((error <= 0.10).mean()),
        "rank_correlation": rank,
        "band_coverage_percent": coverage,
        "band_width": width,
    }


def _score(
    device: str,
    source: str,
    shots: int,
    method: str,
    points: int,
    draws: Sequence[dict[str, float]],
) -> MethodScore:
    """Returns the means of the draws' figures, and the extremes of two of them."""
    by_figure = {name: [draw[name] for draw in draws] for name in draws[0]}
    known = {name: [v for v in some if np.isfinite(v)] for name, some in by_figure.items()}
    means: dict[str, Any] = {n: float(np.mean(v)) if v else None for n, v in known.items()}
    coverage = known["band_coverage_percent"]
    return MethodScore(
        device=device,
        source=source,
        shots=shots,
        method=method,
        seeds=len(draws),
        points=points,
        mape_low_percent=min(by_figure["mape_percent"]),
        mape_high_percent=max(by_figure["mape_percent"]),
        median_error_low_percent=min(by_figure["median_error_percent"]),
        median_error_high_percent=max(by_figure["median_error_percent"]),
        band_coverage_low_percent=min(coverage, default=None),
        band_coverage_high_percent=max(coverage, default=None),
        **means,
    )
