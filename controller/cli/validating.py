"""``modelless validate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from modelless.common.errors import InvalidInputError
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
    scope: Annotated[
        str | None, Argument(metavar="SCOPE", help="task, task/model or task/model/variant")
    ] = None,
    data: Annotated[
        Path | None, Option(metavar="PATH", help="Folder of pictures, saved dataset, .npz or .csv.")
    ] = None,
    feedback: Annotated[
        bool, Option("--feedback", help="Instead of --data: take what feedback has measured.")
    ] = False,
    task: Annotated[
        str | None,
        Option("--task", "-t", help="Instead of SCOPE: every version of every variant of a task."),
    ] = None,
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

    Every variant runs on the same items; its accuracy is stored with a 95 % interval, and with the
    set that it was measured on. Accuracies of different sets are not compared: --task renews all of
    a task on one. What was measured before an interruption is kept. --feedback stores what clients'
    feedback has measured in service. Exit code 1 if a variant could not be measured.

    Examples: modelless validate imagenet --data photos --precision 1; modelless validate
    fashion-mnist/cnn-s --data test.npz --metric macro-f1; modelless validate fashion-mnist --data
    test.npz --metric agreement --reference fashion-mnist/cnn-xl/fp32-28; modelless validate
    imagenet --feedback
    """
    if (scope is None) == (task is None):
        raise InvalidInputError.of("SCOPE and --task", (scope, task), "one of the two")
    if (data is None) != feedback:
        raise InvalidInputError.of("--data and --feedback", (data, feedback), "one of the two")
    from modelless.controller.usecases.registry.validating import take_feedback
    from modelless.controller.usecases.registry.validating import validate as measure

    if data is None:
        options = {"--metric": metric_name, "--sample": sample, "--precision": precision}
        given = [name for name, value in {**options, "--reference": reference}.items() if value]
        if given:
            raise InvalidInputError.of("--feedback with", ", ".join(given), "--task and --json")
        taken = take_feedback(scope or str(task), every_version=task is not None, home=ctx.obj)
        if as_json:
            from modelless.controller.usecases.home import variant_fields

            emit({"variants": [variant_fields(variant) for variant in taken]})
            return
        show_table(
            ["variant", "accuracy", "before"],
            [
                (variant.id, accuracy_text(variant.accuracy), accuracy_text(before))
                for variant, before in taken.items()
            ],
            whole=0,
        )
        say("a running modelless uses these from its next start on")
        return
    with show_progress() as progress:
        found = measure(
            scope or str(task), data, every_version=task is not None, metric=metric_name,
            sample=sample, precision_percent=precision, reference=reference, home=ctx.obj,
            on_progress=progress,
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
