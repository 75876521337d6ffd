"""Validating: how accurate variants are on a validation set."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from modelless.common.errors import (
    EnvironmentUnfitError,
    IntegrityError,
    InvalidInputError,
    ModellessError,
)
from modelless.common.intervals import FINEST_PERCENT, recommended_sample_size
from modelless.controller.control.feedback import COMPARABLE, VariantFeedback
from modelless.controller.dispatch.trials import SHADOW
from modelless.controller.history.feedback import read_feedback
from modelless.controller.usecases.home import (
    Home,
    accuracy_fields,
    find_variants,
    group_names,
    home_folder,
    open_home,
)
from modelless.controller.usecases.progress import Note, Progress, Step, ignore
from modelless.profiler.devices.host import read_facts
from modelless.variants.decoding import is_steps
from modelless.variants.making.calibration import from_npz
from modelless.variants.making.origins import find_origin
from modelless.variants.metrics import AGREEMENT, Metric, Score, find_metric
from modelless.variants.metrics.outputs import is_scores
from modelless.variants.metrics.paired import PairedDifference, compare_paired
from modelless.variants.registry.catalog import Catalog
from modelless.variants.registry.outcomes import details_of, note_measured
from modelless.variants.registry.registry import Registry
from modelless.variants.runtimes.engines import find_runtime
from modelless.variants.runtimes.runtime import LoadedVariant
from modelless.variants.validation import ValidationSet, open_validation_set
from modelless.variants.validation.expected import Expects
from modelless.variants.validation.inputs import held_out
from modelless.variants.validation.measuring import (
    AnsweredBy,
    MeasuredAccuracy,
    OnProgress,
    measure_accuracy,
)
from modelless.variants.vocabulary import Accuracy, Provenance, Task, Variant

COARSE_PERCENT: Final = 5.0
"""Half-width of an interval, in points, beyond which it hardly tells variants apart."""


@dataclass(frozen=True, slots=True)
class Validated:
    """The accuracy of one variant.

    Attributes:
        elapsed_s: seconds that loading and running took.
        not_stored: why this is not the variant's accuracy now; empty if it is.
        against_best: the paired difference to the best variant; None for the best itself.
    """

    variant: Variant
    found: MeasuredAccuracy
    elapsed_s: float
    not_stored: str
    against_best: PairedDifference | None = None

    def document(self) -> dict[str, Any]:
        against = self.against_best
        return {
            "variant": self.variant.id,
            **accuracy_fields(self.found.accuracy),
            "items": self.found.score.count,
            "figure": self.found.score.figure,
            "elapsed_s": round(self.elapsed_s, 3),
            "stored": not self.not_stored,
            "against_best": against and {
                "percent": against.percent, "low": against.low_percent,
                "high": against.high_percent, "p_value": against.p_value, "items": against.count,
            },
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Validation:
    """The accuracies of variants on one validation set.

    Attributes:
        results: the best first.
        remarks: what a reader of the results must know.
    """

    task: str
    metric: str
    set_name: str
    set_sha256: str
    set_items: int
    results: Sequence[Validated]
    failed: Mapping[str, str]
    remarks: Sequence[str]

    def document(self) -> dict[str, Any]:
        """All of it but the remarks as plain data."""
        return {
            "task": self.task,
            "metric": self.metric,
            "validation_set": {
                "name": self.set_name, "sha256": self.set_sha256, "items": self.set_items
            },
            "variants": [result.document() for result in self.results],
            "failed": dict(self.failed),
        }  # fmt: skip


def validate(
    scope: str,
    data: str | Path,
    *,
    every_version: bool = False,
    metric: str | None = None,
    sample: int | None = None,
    precision_percent: float | None = None,
    reference: str | None = None,
    home: Home = None,
    on_progress: Progress = ignore,
) -> Validation:
    """Measure how accurate variants are on a validation set, and store their accuracies.

    Every variant runs on the same items. What was measured before an interruption is kept.

    Args:
        scope: ``task``, ``task/model`` or ``task/model/variant``.
        data: folder of pictures, saved dataset, ``.npz`` or ``.csv``.
        every_version: of the variants, and those that were retired; not only the current ones.
        metric: name; default: the task's own.
        sample: use so many random items at most.
        precision_percent: stop once the 95 % interval reaches at most so many points to either
            side.
        reference: for the metric ``agreement``, the variant whose answers are the labels.
        home: see ``home_folder``.
        on_progress: receives the progress.

    Raises:
        NotFoundError: an unknown scope.
        InvalidInputError: the validation set, the metric or an option does not fit.
        ModellessError: what is wrong with a variant, if it is wrong with all of them.

    Examples:
        >>> validation = modelless.validate("imagenet", "photos")  # doctest: +SKIP
        >>> validation.results[0].found.accuracy.percent  # doctest: +SKIP
        77.6
    """
    with open_home(home) as registry, ExitStack() as loaded:
        catalog = registry.catalog(with_retired=every_version)
        variants = find_variants(catalog, [scope], every_version=every_version)
        task = catalog.tasks[variants[0].task]
        judge = find_metric(metric or task.accuracy_metric, task)
        items = _open_items(registry, catalog, task, Path(data), judge, reference, loaded)
        count, left_out = _count_unused(registry, variants, items)
        results, failed = _measure(
            registry, task, variants, items, judge,
            count if sample is None else min(sample, count), precision_percent, on_progress,
        )  # fmt: skip
    found = {each.variant.id: each for each in results}
    told = (
        {name: remark_on_steps(judge, task) for name in found},
        {name: remark_on_precision(v.found, judge, precision_percent) for name, v in found.items()},
        {name: remark_on_guessing(v.found.accuracy, task) for name, v in found.items()},
        {name: v.not_stored and f"not stored, as {v.not_stored}" for name, v in found.items()},
    )
    remarks = [f"{why}: {names}" for each in told for why, names in group_names(each).items()]
    if left_out:
        remarks.append(f"{len(items) - count} of {len(items)} items are left out: {left_out}")
    if other := _on_other_sets(catalog, task, found):
        remarks.append(
            f"measured on another validation set, so not to be compared with these: {other}; "
            f"modelless validate --task {task.name} renews all of them on one set"
        )
    return Validation(
        task.name, judge.name, items.name, items.sha256, len(items), results, failed, remarks
    )


FEWEST_ITEMS: Final = 100
"""With feedback, before that is taken for the accuracy of a variant."""


def take_feedback(
    scope: str, *, every_version: bool = False, home: Home = None
) -> dict[Variant, Accuracy]:
    """Store the accuracies that feedback has measured in service; return those that it replaces.

    Of a demoted variant only the items count that came since it fell.

    Args:
        scope: ``task``, ``task/model`` or ``task/model/variant``.
        every_version: of the variants, and those that were retired; not only the current ones.

    Raises:
        NotFoundError: an unknown scope.
        InvalidInputError: feedback does not measure the task's metric, or is on too few items.
    """
    with open_home(home) as registry:
        catalog = registry.catalog(with_retired=every_version)
        variants = find_variants(catalog, [scope], every_version=every_version)
        metric = catalog.tasks[variants[0].task].accuracy_metric
        if metric not in COMPARABLE:
            raise InvalidInputError.of(
                "--feedback: the task's metric", metric, ", ".join(COMPARABLE),
                "Feedback says which items are right, and nothing else. Use --data.",
            )  # fmt: skip
        measured = _accuracies_by_feedback(home_folder(home), metric)
        found = [variant for variant in variants if variant.id in measured]
        if not found:
            raise InvalidInputError.of(
                f"--feedback: variants of {scope!r} with feedback on {FEWEST_ITEMS} items",
                "none", "one or more", "Send feedback on more answers, or use --data.",
            )  # fmt: skip
        for variant in found:
            accuracy = measured[variant.id]
            registry.revise_accuracy(variant.id, accuracy, f"measured by {accuracy.source}")
    return {replace(each, accuracy=measured[each.id]): each.accuracy for each in found}


def _accuracies_by_feedback(home: Path, metric: str) -> dict[str, Accuracy]:
    found = {}
    for variant_id, document in read_feedback(home).items():
        told = VariantFeedback.kept(document).status(variant_id)
        if SHADOW not in told["tenants"]:  # which says less than labels
            told = told["since"] or told
        if told["items"] >= FEWEST_ITEMS:
            source = f"feedback on {told['items']:g} items of {variant_id}"
            bounds = told["low"], told["high"], round(told["items"])
            found[variant_id] = Accuracy(
                told["accuracy"], metric, Provenance.MEASURED, source, *bounds
            )
    return found


def _on_other_sets(catalog: Catalog, task: Task, found: Mapping[str, Validated]) -> str:
    """The variants of the task whose accuracy is of another set than the one just used."""
    now = {each.found.accuracy.set_name for each in found.values() if not each.not_stored}
    others = [
        variant.id
        for variant in catalog.variants
        if variant.task == task.name
        and variant.id not in found
        and variant.accuracy.provenance is Provenance.MEASURED
        and now
        and variant.accuracy.set_name not in now
    ]
    return ", ".join(others)


@contextmanager
def loaded_to_measure(variant: Variant, artifact: Path) -> Iterator[LoadedVariant]:
    """A variant loaded with all cores of the machine: only its answers count, not their time.

    Raises:
        IntegrityError: the file is damaged or not allowed.
        EnvironmentUnfitError: the engine is not installed, or cannot run it.
    """
    loaded = find_runtime(variant.engine).load(variant, artifact, threads=read_facts().cores)
    try:
        yield loaded
    finally:
        loaded.unload()


def measure_variant(
    variant: Variant,
    artifact: Path,
    items: ValidationSet,
    metric: Metric,
    on_progress: OnProgress | None = None,
    *,
    sample: int | None = None,
    skip: int = 0,
    precision_percent: float | None = None,
) -> MeasuredAccuracy:
    """The accuracy of a variant, registered or not.

    Raises:
        ModellessError: as ``loaded_to_measure`` and ``measure_accuracy`` do.
    """
    with loaded_to_measure(variant, artifact) as loaded:
        return measure_accuracy(
            loaded, items, metric, sample=sample, skip=skip, precision_percent=precision_percent,
            on_progress=on_progress,
        )  # fmt: skip


def measure_file(
    variant: Variant, data: bytes, task: Task, validation: Path, on_progress: Progress
) -> tuple[MeasuredAccuracy, Metric]:
    """The accuracy of a file that is not registered yet, on all of a validation set, and the
    task's metric, which judges. ``variant`` is what the file becomes; its accuracy is ignored.
    """
    metric = find_metric(task.accuracy_metric, task)
    items = open_validation_set(validation, task, metric.expects)
    with TemporaryDirectory(prefix="modelless-") as folder:
        artifact = Path(folder) / "model.onnx"
        artifact.write_bytes(data)
        show = _report_items(on_progress, variant)
        return measure_variant(variant, artifact, items, metric, show), metric


def keep_measured(
    registry: Registry, variant: Variant, found: MeasuredAccuracy, metric: Metric, task_metric: str
) -> str:
    """Store a measured accuracy; returns why it does not become the variant's own, or nothing.

    Accuracies of a task are compared, so they are all in the task's metric. Fewer items of the same
    set do not replace more of them. The history keeps every measurement.
    """
    now, before = found.accuracy, registry.variant(variant.id).accuracy
    refusal = ""
    if metric.name != task_metric:
        refusal = f"the task's metric is {task_metric}"
    elif (
        before.provenance is Provenance.MEASURED
        and (before.set_name, before.metric) == (now.set_name, now.metric)
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
    """A remark that there were too few items, and how many are enough; empty if there were enough.

    ``wanted_percent`` is the half-width asked for; with None only coarse intervals get a remark.
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
    """A remark that a classifier is no better than a guess, or nothing; labels may be reordered."""
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


def remark_on_steps(metric: Metric, task: Task) -> str:
    """A remark that scores of steps are compared as they are, though they may spell texts."""
    if metric.expects is not Expects.SEQUENCE or not any(map(is_steps, task.outputs)):
        return ""
    return (
        "each step's best class is compared as it is: if the network was trained by CTC, say so in "
        "the task file ('decoding'), or its accuracy is wrong"
    )


def _open_items(
    registry: Registry,
    catalog: Catalog,
    task: Task,
    data: Path,
    metric: Metric,
    reference: str | None,
    loaded: ExitStack,
) -> ValidationSet:
    """The validation set; for the metric ``agreement`` the labels are a reference's answers."""
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
    artifact = registry.artifacts.fetch(variant.artifact_sha256)
    session = loaded.enter_context(loaded_to_measure(variant, artifact))
    items = open_validation_set(data, task, Expects.NOTHING)
    return AnsweredBy(items, session, task, variant.id)


def _count_unused(
    registry: Registry, variants: Sequence[Variant], items: ValidationSet
) -> tuple[int, str]:
    """The number of items, in the order of measuring, that no variant was calibrated on; and why
    it is not all of them.

    ``make`` takes the last ones of its validation set. They are found only if this is that set.
    """
    origins = [find_origin(registry.store, variant.id) for variant in variants]
    files = {origin.calibration_file_sha256 for origin in origins if origin is not None}
    if not files:
        return len(items), ""
    try:
        feeds, count = held_out(items)
    except InvalidInputError:  # too few to have been parted
        return len(items), ""
    is_lost = False
    for each in files:
        try:
            if from_npz(registry.artifacts.read(each)).sha256 == feeds.sha256:
                return count, "variants were calibrated on them"
        except IntegrityError:
            is_lost = True
    if is_lost:
        return count, "variants may have been calibrated on them; the file that tells is lost"
    return len(items), ""


def _measure(
    registry: Registry,
    task: Task,
    variants: Sequence[Variant],
    items: ValidationSet,
    metric: Metric,
    sample: int,
    precision_percent: float | None,
    on_progress: Progress,
) -> tuple[list[Validated], Mapping[str, str]]:
    """Measure variant by variant and store each at once; the best first, and the errors by id."""
    total = len(variants) * sample
    results: list[Validated] = []
    failed: dict[str, str] = {}
    error: ModellessError | None = None
    try:
        for number, variant in enumerate(variants):
            show = _report_items(on_progress, variant, number * sample, total)
            try:
                artifact = registry.artifacts.fetch(variant.artifact_sha256)
                started_s = time.perf_counter()
                found = measure_variant(
                    variant, artifact, items, metric, show, sample=sample,
                    precision_percent=precision_percent,
                )  # fmt: skip
            except (IntegrityError, EnvironmentUnfitError) as damage:
                error = damage
                failed[variant.id] = str(damage)
                continue
            elapsed_s = time.perf_counter() - started_s
            refusal = keep_measured(registry, variant, found, metric, task.accuracy_metric)
            results.append(Validated(variant, found, elapsed_s, refusal))
        on_progress(Step("validating", total, total))
    except KeyboardInterrupt:
        kept = f"{len(results)} of {len(variants)} variants were measured; that is kept"
        on_progress(Note(kept))
        raise
    if error is not None and not results:
        raise error
    return _rank(results, metric), failed


def _rank(results: Sequence[Validated], metric: Metric) -> list[Validated]:
    """The results, best first; the others compared with the best item by item."""
    ranked = sorted(results, key=lambda result: -result.found.score.percent)
    for place, result in enumerate(ranked[1:], 1):
        best, mine = ranked[0].found.evidence, result.found.evidence
        count = min(len(best), len(mine))
        difference = compare_paired(metric, mine[:count], best[:count])
        ranked[place] = replace(result, against_best=difference)
    return ranked


def _report_items(
    on_progress: Progress, variant: Variant, done_before: int = 0, total: int | None = None
) -> OnProgress:
    """A callback that reports the items of one variant as steps of all variants' items."""

    def show(done: int, most: int, score: Score | None) -> None:
        now = f"{variant.model}/{variant.name}"
        if score is not None:
            now += f": {score.percent:.1f} +- {score.half_width_percent:.2f} %"
        on_progress(Step("validating", done_before + done, total or most, now))

    return show
