"""Measuring the accuracy of variants one by one, with progress, and keeping what was found."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from modelless.common.intervals import FINEST_PERCENT, recommended_sample_size
from modelless.controller.cli.screen import Steps
from modelless.profiler.devices.host import read_facts
from modelless.variants.metrics import Metric, Score, find_metric
from modelless.variants.metrics.outputs import is_scores
from modelless.variants.registry.outcomes import details_of, note_measured
from modelless.variants.registry.registry import Registry
from modelless.variants.runtimes.base import LoadedVariant
from modelless.variants.runtimes.engines import find_runtime
from modelless.variants.validation import ValidationSet, open_validation_set
from modelless.variants.validation.measuring import MeasuredAccuracy, measure_accuracy
from modelless.variants.vocabulary import Accuracy, Provenance, Task, Variant

COARSE_PERCENT: Final = 5.0
"""Half-width of an interval, in points, past which variants are hardly told apart."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How many items to run: see ``measure_accuracy``."""

    sample: int | None = None
    precision_percent: float | None = None


def load_to_measure(variant: Variant, artifact: Path) -> LoadedVariant:
    """Load a variant with all the cores there are: only its answers count, not their time.

    Raises:
        IntegrityError: the file is damaged or not allowed.
        EnvironmentUnfitError: the engine is not installed, or cannot run it.
    """
    runtime = find_runtime(variant.engine)
    return runtime.load(variant, artifact, threads=read_facts().cores)


def measure_variant(
    variant: Variant,
    artifact: Path,
    items: ValidationSet,
    metric: Metric,
    effort: Effort,
    steps: Steps,
    done_before: int = 0,
    total: int | None = None,
) -> tuple[MeasuredAccuracy, float]:
    """Load a variant, measure it, and unload it; returns the seconds that took, too.

    Args:
        variant: registered or not.
        artifact: its file.
        items, metric, effort: see ``measure_accuracy``.
        steps: shows the progress.
        done_before: items of the variants before it.
        total: items of all variants; those of this one by default.

    Raises:
        ModellessError: as ``load_to_measure`` and ``measure_accuracy`` do.
    """

    def show(done: int, most: int, score: Score | None) -> None:
        now = f"{variant.model}/{variant.name}"
        if score is not None:
            now += f": {score.percent:.1f} +- {score.half_width_percent:.2f} %"
        steps.at(done_before + done, total or most, now)

    started_s = time.perf_counter()
    loaded = load_to_measure(variant, artifact)
    try:
        found = measure_accuracy(
            loaded,
            items,
            metric,
            sample=effort.sample,
            precision_percent=effort.precision_percent,
            on_progress=show,
        )
    finally:
        loaded.unload()
    return found, time.perf_counter() - started_s


def measure_file(
    variant: Variant, data: bytes, task: Task, validation: Path
) -> tuple[MeasuredAccuracy, Metric]:
    """Measure what is not registered yet, in its task's own metric, on all of a validation set.

    Args:
        variant: what it will be; its accuracy is of no interest.
        data: its file.
        task: which it performs.
        validation: where the validation set lies.

    Raises:
        ModellessError: as ``open_validation_set``, ``find_metric`` and ``measure_variant`` do.
    """
    metric = find_metric(task.accuracy_metric, task)
    items = open_validation_set(validation, task, metric.expects)
    with TemporaryDirectory(prefix="modelless-") as folder, Steps("validating") as steps:
        artifact = Path(folder) / "model.onnx"
        artifact.write_bytes(data)
        return measure_variant(variant, artifact, items, metric, Effort(), steps)[0], metric


def keep_measured(
    registry: Registry, variant: Variant, found: MeasuredAccuracy, metric: Metric, task_metric: str
) -> str:
    """Keep what was measured; says why not, where it does not become the variant's accuracy.

    Accuracies of a task are compared, so they are all in the task's metric. Fewer items of the same
    set do not replace more of them. Whatever was measured stands in the history.

    Raises:
        StoreError: the store cannot be written.
    """
    now, before = found.accuracy, registry.variant(variant.id).accuracy
    refusal = ""
    if metric.name != task_metric:
        refusal = f"the task's metric is {task_metric}"
    elif (
        before.provenance is Provenance.MEASURED
        and (before.source, before.metric) == (now.source, now.metric)
        and (before.sample_count or 0) > (now.sample_count or 0)
    ):
        refusal = f"{before.sample_count} items of the same set were measured before"
    if refusal:
        note_measured(registry.store, variant.id, found, metric, refusal)
    else:
        reason = f"measured on {now.source}"
        registry.revise_accuracy(variant.id, now, reason, details_of(found, metric))
    return refusal


def remark_on_precision(
    found: MeasuredAccuracy, metric: Metric, wanted_percent: float | None
) -> str:
    """That there were too few items, and how many are enough; empty where there were not.

    Args:
        found: what was measured.
        metric: what judged.
        wanted_percent: half-width that was asked for; None to speak only of what is very coarse.
    """
    score = found.score
    wanted_percent = COARSE_PERCENT if wanted_percent is None else wanted_percent
    if score.half_width_percent <= wanted_percent:
        return ""
    few = f"{score.count} items leave +-{score.half_width_percent:.1f} points"
    if not metric.is_proportion or wanted_percent < FINEST_PERCENT:
        return few
    count = recommended_sample_size(wanted_percent, score.percent)
    return f"{few}; +-{wanted_percent:g} take about {count}"


def remark_on_guessing(accuracy: Accuracy, task: Task) -> str:
    """That a classifier is no better than a guess, as with labels of another order; else empty.

    Args:
        accuracy: measured.
        task: of the variant; its first output of scores tells how many classes there are.
    """
    scores = next((spec for spec in task.outputs if is_scores(spec)), None)
    if scores is None or accuracy.metric != "top-1" or accuracy.low_percent is None:
        return ""
    classes = scores.shape[1]
    if classes < 2 or accuracy.low_percent > 100.0 / classes:
        return ""
    return (
        f"{accuracy.percent:.1f} % is no better than guessing one of {classes} classes: are the "
        "labels indices from 0 on, in the order of the model's outputs?"
    )
