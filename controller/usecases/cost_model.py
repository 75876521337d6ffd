"""Evaluating the learned cost model on any profiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelless.common.errors import InvalidInputError
from modelless.common.pages import count_of
from modelless.controller.usecases.progress import Note, Progress, Step, ignore
from modelless.profiler.cost_model.learned.evaluation import (
    SAMPLERS,
    Holdout,
    MethodScore,
    evaluate,
    plan_cases,
)
from modelless.profiler.cost_model.learned.prior import read_prior, shipped_prior
from modelless.profiler.measure.table import TableRow, read_table


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How well each method predicts.

    Attributes:
        scores: of each method, device and number of shots.
        prior: version of the prior.
    """

    scores: Sequence[MethodScore]
    prior: str

    def document(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {"prior": self.prior, "results": [score.document() for score in self.scores]}


def evaluate_cost_model(
    tables: Sequence[Path],
    *,
    train: Sequence[Path] | None = None,
    holdout: Sequence[str] = (),
    shots: Sequence[int] = (0, 10, 50),
    seeds: int = 3,
    draw: str = "random",
    prior: Path | None = None,
    on_progress: Progress = ignore,
) -> Evaluation:
    """Predict profiles from other profiles and a few measurements, and compare with baselines.

    Every method gets the same training rows and the same shots; shots are not judged. Repeated
    points of a table with other latencies are kept: the tables do not say what differed.

    Args:
        tables: profiles to predict, CSV.
        train: learn from these alone; then the tables are unseen but for the shots.
        holdout: leave these out of training and predict them, ``PART=VALUE``; default: each device
            in turn.
        shots: numbers of measurements given of each device, ascending.
        seeds: draws of the shots.
        draw: how shots are drawn, ``random`` or ``chosen``.
        prior: a prior of one's own; default: the shipped one.
        on_progress: receives the progress.

    Raises:
        InvalidInputError: an argument or a table does not fit.
    """
    if draw not in SAMPLERS:
        raise InvalidInputError.of("--draw", draw, "one of " + ", ".join(SAMPLERS))
    known_prior = shipped_prior() if prior is None else read_prior(prior)
    rows, training = _read(tables), _read(train) if train else None
    cases = plan_cases(rows, training, [Holdout.of(text) for text in holdout])
    for case in cases:
        count, name = len(case.wanted), case.wanted[0].device
        rows_there = count_of(count, "drawn row" if case.passed_over else "row")
        if case.passed_over:
            whole = count + case.passed_over
            on_progress(Note(f"note: {name} has {whole:,} rows: {count:,} of them are drawn"))
        if too_many := [str(each) for each in shots if each >= count]:
            left_out = f"left out: {', '.join(too_many)} shots"
            on_progress(Note(f"note: {name} has {rows_there}: {left_out}"))
        if not case.training:
            on_progress(Note(f"note: no row to learn {name} from but its shots: see --train"))
    scores: list[MethodScore] = []
    for number, case in enumerate(cases):
        device = case.wanted[0].device

        def show(done: int, total: int, number: int = number, device: str = device) -> None:
            now = f"{device}, draw {done} of {total}"
            on_progress(Step("predicting", number, len(cases), now))

        on_progress(Step("predicting", number, len(cases), device))
        scores += evaluate(case, known_prior, shots, seeds, show, SAMPLERS[draw])
    on_progress(Step("predicting", len(cases), len(cases)))
    if not scores:
        most = max(len(case.wanted) for case in cases)
        allowed = f"fewer than a device has rows, {most} at most here"
        raise InvalidInputError.of("--shots", ",".join(map(str, shots)), allowed)
    return Evaluation(scores, known_prior.version)


def _read(tables: Sequence[Path]) -> list[TableRow]:

    return [row for path in tables for row in read_table(path)]
