"""``modelless validate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from modelless.controller.cli.screen import (
    Json,
    accuracy_text,
    emit,
    say,
    show_progress,
    show_table,
)

if TYPE_CHECKING:
    from modelless.variants.metrics.paired import PairedDifference


def validate(
    ctx: typer.Context,
    scope: Annotated[str, Argument(metavar="SCOPE", help="task, task/model or task/model/variant")],
    data: Annotated[
        Path, Option(metavar="PATH", help="Folder of pictures, saved dataset, .npz or .csv.")
    ],
    metric_name: Annotated[
        str | None, Option("--metric", metavar="NAME", help="Default: the task's own.")
    ] = None,
    sample: Annotated[int | None, Option(metavar="N", help="Use N random items at most.")] = None,
    precision: Annotated[
        float | None,
        Option(
            metavar="POINTS",
            help="Stop once the 95 % interval reaches at most POINTS to either side.",
        ),
    ] = None,
    reference: Annotated[
        str | None, Option(metavar="VARIANT", help="Its answers are the labels, for agreement.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure how accurate variants are on a validation set.

    Every variant runs on the same items; its accuracy is stored with a 95 % interval. What was
    measured before an interruption is kept. Exit code 1 if a variant could not be measured.

    Examples: modelless validate imagenet --data photos --precision 1; modelless validate
    fashion-mnist/cnn-s --data test.npz --metric macro-f1; modelless validate fashion-mnist --data
    test.npz --metric agreement --reference fashion-mnist/cnn-xl/fp32-28
    """
    from modelless.controller.usecases.validating import validate as measure

    with show_progress() as progress:
        found = measure(
            scope, data, metric=metric_name, sample=sample, precision_percent=precision,
            reference=reference, home=ctx.obj, on_progress=progress,
        )  # fmt: skip
    if as_json:
        emit(found.document())
    else:
        show_table(
            ["variant", "accuracy", "items", "against the best", "p", "seconds", ""],
            [
                (
                    result.variant.id,
                    accuracy_text(result.found.accuracy),
                    str(result.found.score.count),
                    _difference(result.against_best),
                    f"{result.against_best.p_value:.2g}" if result.against_best else "",
                    f"{result.elapsed_s:.1f}",
                    result.found.score.figure,
                )
                for result in found.results
            ],
            title=f"{found.set_name}, {found.set_items} items, sha256 {found.set_sha256[:12]}",
            caption="95 % intervals; p: how probable a difference as large is by chance, item by "
            "item",
            right=[2, 3, 4, 5],
            whole=0,
        )
    for remark in found.remarks:
        say(f"note: {remark}")
    for name, reason in found.failed.items():
        say(f"failed: {name}: {reason}")
    if found.failed:
        raise typer.Exit(1)


def _difference(against: PairedDifference | None) -> str:
    if against is None:
        return ""
    return f"{against.percent:+.2f} ({against.low_percent:+.2f} to {against.high_percent:+.2f})"
