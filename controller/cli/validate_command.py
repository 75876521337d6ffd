"""``modelless validate``: measures how accurate variants are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modelless.common.errors import (
    EnvironmentUnfitError,
    IntegrityError,
    InvalidInputError,
    ModellessError,
)
from modelless.controller.cli.screen import (
    Json,
    Steps,
    accuracy_fields,
    accuracy_text,
    emit,
    grouped,
    home_of,
    say,
    show_table,
)
from modelless.variants.vocabulary import Task, Variant

if TYPE_CHECKING:
    from modelless.controller.cli.measuring import Effort
    from modelless.variants.metrics import Metric
    from modelless.variants.metrics.paired import PairedDifference
    from modelless.variants.registry.catalog import Catalog
    from modelless.variants.registry.registry import Registry
    from modelless.variants.validation import ValidationSet
    from modelless.variants.validation.measuring import MeasuredAccuracy

EPILOG = (
    "Examples: modelless validate imagenet --data photos --precision 1; "
    "modelless validate fashion-mnist/cnn-s --data test.npz --metric macro-f1; "
    "modelless validate fashion-mnist --data test.npz --metric agreement "
    "--reference fashion-mnist/cnn-xl/fp32-28"
)


def validate(
    ctx: typer.Context,
    scope: Annotated[
        str, typer.Argument(metavar="SCOPE", help="task, task/model or task/model/variant")
    ],
    data: Annotated[
        Path,
        typer.Option(
            "--data", metavar="PATH", help="Folder of pictures, saved dataset, .npz or .csv."
        ),
    ],
    metric_name: Annotated[
        str | None, typer.Option("--metric", metavar="NAME", help="Default: the task's own.")
    ] = None,
    sample: Annotated[
        int | None, typer.Option("--sample", metavar="N", help="Use N random items at most.")
    ] = None,
    precision: Annotated[
        float | None,
        typer.Option(
            "--precision",
            metavar="POINTS",
            help="Stop once the 95 % interval reaches at most POINTS to either side.",
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option("--reference", metavar="VARIANT", help="Whose answers count, for agreement."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure how accurate variants are on a validation set.

    Every variant runs on the same items; its accuracy is stored with a 95 % interval. What was
    measured before an interruption is kept. Exit code 1 if a variant could not be measured.
    """
    from modelless.controller.cli.measuring import Effort, remark_on_guessing, remark_on_precision
    from modelless.controller.cli.profile_command import in_scopes
    from modelless.variants.metrics import find_metric
    from modelless.variants.registry.registry import open_registry

    with closing(open_registry(home_of(ctx))) as registry, ExitStack() as loaded:
        catalog = registry.catalog()
        variants = in_scopes(catalog, [scope])
        task = catalog.tasks[variants[0].task]
        metric = find_metric(metric_name or task.accuracy_metric, task)
        items = _items(registry, catalog, task, data, metric, reference, loaded)
        effort = Effort(sample, precision)
        results, failed = _measure(registry, task, variants, items, metric, effort)
    document = {
        "task": task.name,
        "metric": metric.name,
        "validation_set": {"name": items.name, "sha256": items.sha256, "items": len(items)},
        "variants": [result.fields() for result in results],
        "failed": failed,
    }
    if as_json:
        emit(document)
    else:
        _show(results, items)
    for reason, names in grouped(
        {
            result.variant.id: remark_on_precision(result.found, metric, precision)
            for result in results
        }
    ).items():
        say(f"note: {reason}: {names}")
    for reason, names in grouped(
        {each.variant.id: remark_on_guessing(each.found.accuracy, task) for each in results}
    ).items():
        say(f"note: {reason}: {names}")
    for reason, names in grouped({each.variant.id: each.not_stored for each in results}).items():
        say(f"note: not stored, as {reason}: {names}")
    for name, reason in failed.items():
        say(f"failed: {name}: {reason}")
    if failed:
        raise typer.Exit(1)


@dataclass(slots=True)
class _Result:
    variant: Variant
    found: MeasuredAccuracy
    elapsed_s: float
    not_stored: str
    against_best: PairedDifference | None = None

    def fields(self) -> dict[str, Any]:
        against = self.against_best
        return {
            "variant": self.variant.id,
            **accuracy_fields(self.found.accuracy),
            "items": self.found.score.count,
            "figure": self.found.score.figure,
            "elapsed_s": round(self.elapsed_s, 3),
            "stored": not self.not_stored,
            "against_best": against
            and {
                "percent": against.percent,
                "low": against.low_percent,
                "high": against.high_percent,
                "p_value": against.p_value,
                "items": against.count,
            },
        }


def _items(
    registry: Registry,
    catalog: Catalog,
    task: Task,
    data: Path,
    metric: Metric,
    reference: str | None,
    loaded: ExitStack,
) -> ValidationSet:
    """The validation set; with a reference's answers for labels where agreement is asked for."""
    from modelless.controller.cli.measuring import load_to_measure
    from modelless.variants.metrics import AGREEMENT
    from modelless.variants.validation import open_validation_set
    from modelless.variants.validation.expected import Expects
    from modelless.variants.validation.measuring import AnsweredBy

    if (metric.name == AGREEMENT) != (reference is not None):
        raise InvalidInputError.of(
            "--reference", reference, f"a variant with --metric {AGREEMENT}, and none without"
        )
    if reference is None:
        return open_validation_set(data, task, metric.expects)
    scope = catalog.resolve(reference)
    if len(scope.variants) != 1 or scope.task != task:
        raise InvalidInputError.of("--reference", reference, f"one variant of task {task.name!r}")
    (variant,) = scope.variants
    session = load_to_measure(variant, registry.artifacts.fetch(variant.artifact_sha256))
    loaded.callback(session.unload)
    items = open_validation_set(data, task, Expects.NOTHING)
    return AnsweredBy(items, session, task, variant.id)


def _measure(
    registry: Registry,
    task: Task,
    variants: Sequence[Variant],
    items: ValidationSet,
    metric: Metric,
    effort: Effort,
) -> tuple[list[_Result], Mapping[str, str]]:
    """Measure and keep variant by variant, best first; and what is wrong with the others.

    Raises:
        ModellessError: what is wrong with a variant, if it is so with all of them.
    """
    from modelless.controller.cli.measuring import keep_measured, measure_variant

    each = min(len(items), effort.sample or len(items))
    results: list[_Result] = []
    failed: dict[str, str] = {}
    error: ModellessError | None = None
    with Steps("validating") as steps:
        try:
            for number, variant in enumerate(variants):
                try:
                    artifact = registry.artifacts.fetch(variant.artifact_sha256)
                    found, elapsed_s = measure_variant(
                        variant, artifact, items, metric, effort, steps,
                        number * each, len(variants) * each,
                    )  # fmt: skip
                except (IntegrityError, EnvironmentUnfitError) as damage:
                    error = damage
                    failed[variant.id] = str(damage)
                    continue
                refusal = keep_measured(registry, variant, found, metric, task.accuracy_metric)
                results.append(_Result(variant, found, elapsed_s, refusal))
            steps.at(len(variants) * each, len(variants) * each)
        except KeyboardInterrupt:
            steps.note(f"{len(results)} of {len(variants)} variants were measured; that is kept")
            raise
    if error is not None and not results:
        raise error
    return _ranked(results, metric), failed


def _ranked(results: list[_Result], metric: Metric) -> list[_Result]:
    """The best first, the others held against it item by item."""
    from modelless.variants.metrics.paired import compare_paired

    ranked = sorted(results, key=lambda result: -result.found.score.percent)
    for result in ranked[1:]:
        best, mine = ranked[0].found.evidence, result.found.evidence
        count = min(len(best), len(mine))
        result.against_best = compare_paired(metric, mine[:count], best[:count])
    return ranked


def _show(results: Sequence[_Result], items: ValidationSet) -> None:
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
            for result in results
        ],
        title=f"{items.name}, {len(items)} items, sha256 {items.sha256[:12]}",
        caption="95 % intervals; p: how probable a difference as large is by chance, item by item",
        right=[2, 3, 4, 5],
        whole=0,
    )


def _difference(against: PairedDifference | None) -> str:
    if against is None:
        return ""
    return f"{against.percent:+.2f} ({against.low_percent:+.2f} to {against.high_percent:+.2f})"
