"""``modelless costmodel``: the learned cost model, tried on any profiles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from modelless.common.errors import InvalidInputError
from modelless.controller.cli.arguments import names_of
from modelless.controller.cli.screen import Json, Steps, emit, say, show_table

if TYPE_CHECKING:
    from modelless.profiler.cost_model.learned.evaluation import HoldoutCase, MethodScore
    from modelless.profiler.measure.table import TableRow

EPILOG = (
    "Examples: modelless costmodel evaluate profiles.csv; "
    "modelless costmodel evaluate a.csv b.csv --holdout device=rtx4090 --shots 0,10 --json; "
    "modelless costmodel evaluate new.csv --train known.csv --seeds 5"
)
_MOST_SHOTS = 100_000


class _TablesAfterTrain(TyperCommand):
    """Takes every word from ``--train`` to the next option as a training table."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        spread: list[str] = []
        is_training = False
        for word in args:
            if word.startswith("-"):
                is_training = word.split("=")[0] == "--train"
            elif is_training and spread[-1] != "--train":
                spread.append("--train")
            spread.append(word)
        return super().parse_args(ctx, spread)


app = typer.Typer(help="The learned cost model.", no_args_is_help=True)


@app.command(cls=_TablesAfterTrain, epilog=EPILOG)
def evaluate(
    tables: Annotated[
        list[Path], typer.Argument(metavar="TABLE.csv...", help="Profiles to predict.")
    ],
    train: Annotated[
        list[Path] | None,
        typer.Option(
            "--train",
            metavar="TABLE.csv",
            help="Learn from this alone; then the tables are unseen but for the shots. Several may "
            "follow, up to the next option.",
        ),
    ] = None,
    holdout: Annotated[
        list[str] | None,
        typer.Option(
            "--holdout",
            metavar="PART=VALUE",
            help="Leave this out of training and predict it: device=, family=, source=, model=, "
            "task=, engine= or precision=; repeatable. Default: each device in turn.",
        ),
    ] = None,
    shots: Annotated[
        str,
        typer.Option("--shots", metavar="N,...", help="Measurements given of each device."),
    ] = "0,10,50",
    seeds: Annotated[
        int, typer.Option("--seeds", metavar="N", min=1, max=1000, help="Draws of the shots.")
    ] = 3,
    draw: Annotated[
        str,
        typer.Option(
            "--draw",
            metavar="random|chosen",
            help="How shots are drawn: at random, or chosen one after the other by what each is "
            "expected to tell of all the rest, as `modelless profile --budget` chooses.",
        ),
    ] = "random",
    prior: Annotated[
        Path | None,
        typer.Option("--prior", metavar="FILE", help="A prior of one's own; see the docs."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict profiles from other profiles and a few measurements, and compare with baselines.

    Every method gets the same training rows and the same shots; shots are not judged. Points that
    a table holds several times with other latencies are kept: what told them apart was not
    published.
    """
    from modelless.profiler.cost_model.learned.evaluation import (
        SAMPLERS,
        Holdout,
        evaluate,
        plan_cases,
    )
    from modelless.profiler.cost_model.learned.prior import read_prior, shipped_prior

    counts = _counts_of(shots)
    if draw not in SAMPLERS:
        raise InvalidInputError.of("--draw", draw, "one of " + ", ".join(SAMPLERS))
    known_prior = shipped_prior() if prior is None else read_prior(prior)
    rows = _read(tables)
    training = _read(train) if train else None
    cases = plan_cases(rows, training, [Holdout.of(text) for text in holdout or ()])
    scores: list[MethodScore] = []
    for case in cases:
        count = len(case.wanted)
        name = case.wanted[0].device
        rows_there = "1 row" if count == 1 else f"{count:,} rows"
        if case.passed_over:
            say(f"note: {name} has {count + case.passed_over:,} rows: {count:,} of them are drawn")
            rows_there = f"{count:,} drawn rows"
        if too_many := [str(each) for each in counts if each >= count]:
            say(f"note: {name} has {rows_there}: left out: {', '.join(too_many)} shots")
        if not case.training:
            say(f"note: no row to learn {case.wanted[0].device} from but its shots: see --train")
    with Steps("predicting") as steps:
        for number, case in enumerate(cases):
            device = case.wanted[0].device

            def tell(done: int, total: int, number: int = number, device: str = device) -> None:
                steps.at(number, len(cases), f"{device}, draw {done} of {total}")

            steps.at(number, len(cases), device)
            scores += evaluate(case, known_prior, counts, seeds, tell, SAMPLERS[draw])
        steps.at(len(cases), len(cases))
    if not scores:
        raise InvalidInputError.of(
            "--shots", shots, f"fewer than a device has rows, {_most_rows(cases)} at most here"
        )
    if as_json:
        emit(_document(scores, known_prior.version, tables, train, holdout, counts, seeds, draw))
    else:
        _show(scores, draw)


def _counts_of(text: str) -> list[int]:
    """``0,10`` as ascending numbers; InvalidInputError if it is no such list."""
    words = names_of("--shots", text)
    if not all(
        word.isdecimal() and len(word) <= len(str(_MOST_SHOTS)) and int(word) <= _MOST_SHOTS
        for word in words
    ):
        allowed = f"whole numbers from 0 to {_MOST_SHOTS}, with commas between them"
        raise InvalidInputError.of("--shots", text, allowed)
    return sorted({int(word) for word in words})


def _read(tables: Sequence[Path]) -> list[TableRow]:
    from modelless.profiler.measure.table import Duplicates, read_table

    return [row for path in tables for row in read_table(path, duplicates=Duplicates.KEEP)]


def _most_rows(cases: Sequence[HoldoutCase]) -> int:
    return max(len(case.wanted) for case in cases)


def _document(
    scores: Sequence[MethodScore],
    prior_version: str,
    tables: Sequence[Path],
    train: Sequence[Path] | None,
    holdout: Sequence[str] | None,
    shots: Sequence[int],
    seeds: int,
    draw: str,
) -> dict[str, Any]:
    return {
        "tables": [str(path) for path in tables],
        "train": [str(path) for path in train or ()],
        "holdout": list(holdout or ()),
        "shots": list(shots),
        "seeds": seeds,
        "draw": draw,
        "prior": prior_version,
        "results": [score.document() for score in scores],
    }


def _show(scores: Sequence[MethodScore], draw: str) -> None:
    for source, device, shots in dict.fromkeys(
        (one.source, one.device, one.shots) for one in scores
    ):
        key = (source, device, shots)
        mine = [one for one in scores if (one.source, one.device, one.shots) == key]
        show_table(
            ["method", "MAPE", "median error", "within 10 %", "rank", "in the 90 % band"],
            [
                [
                    one.method,
                    f"{one.mape_percent:.1f} % ({one.mape_low_percent:.1f} to "
                    f"{one.mape_high_percent:.1f})",
                    f"{one.median_error_percent:.1f} %",
                    f"{one.within_10_percent:.0f} %",
                    "-" if one.rank_correlation is None else f"{one.rank_correlation:.3f}",
                    "-"
                    if one.band_coverage_percent is None
                    else f"{one.band_coverage_percent:.0f} %",
                ]
                for one in mine
            ],
            title=f"{device} ({source}), {shots} {draw} measurements given, "
            f"{mine[0].points} points predicted",
        )
    say("Errors are relative to what was measured; MAPE is their mean, over all draws.")
