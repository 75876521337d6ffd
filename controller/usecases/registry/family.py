"""A family of variants of one model: each is made, compared with it, measured and registered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from sqlalchemy.orm import Session

from modelless.common.errors import InvalidInputError, ModellessError, StoreError
from modelless.common.files import held
from modelless.controller.usecases.progress import Note, Progress, Step
from modelless.controller.usecases.registry.validating import (
    keep_measured,
    loaded_to_measure,
    measure_variant,
    remark_on_guessing,
    remark_on_steps,
)
from modelless.variants.conversion.converted import Source
from modelless.variants.making.bounded_memory import Answers
from modelless.variants.making.builder import Builder, MadeVariant, RefusedVariant
from modelless.variants.making.calibration import CalibrationData, to_npz
from modelless.variants.making.fidelity import NOTHING_ALIKE_DB, Fidelity, compare
from modelless.variants.making.origins import Origin, find_origin
from modelless.variants.making.recipe import Recipe
from modelless.variants.making.session import Session as Graph
from modelless.variants.metrics import Metric, Score
from modelless.variants.registry.outcomes import details_of, first_measured
from modelless.variants.registry.registry import Registry
from modelless.variants.validation import ValidationSet
from modelless.variants.validation.measuring import MeasuredAccuracy, measure_accuracy, source_of
from modelless.variants.vocabulary import (
    Accuracy,
    Engine,
    Model,
    Precision,
    Provenance,
    Task,
    Variant,
)

FOLDER: Final = "making"
"""Of a home: notes of what was made, and locks."""

_MANY: Final = 3  # variants; of fewer the best is hardly better by luck


@dataclass(frozen=True, slots=True)
class FamilyOrder:
    """The variants to make.

    Attributes:
        task, model: of the variants; need not be registered yet.
        engines: each variant is registered for all of these that take it.
        calibration: real inputs; ranges are measured on them, and answers compared.
        items: accuracy is measured on the first ``sample`` of them, in their random order.
    """

    task: Task
    model: Model
    source: Source
    precision: Precision
    resolution_px: int | None
    recipe: Recipe
    engines: Sequence[Engine]
    calibration: CalibrationData
    items: ValidationSet
    sample: int
    metric: Metric
    available: int = 0


@dataclass(frozen=True, slots=True)
class Member:
    """A variant of the family.

    Attributes:
        was_there: it was complete before, so nothing was done.
    """

    variant: Variant
    origin: Origin
    was_there: bool


@dataclass(slots=True)
class Family:
    """The variants that were made.

    Attributes:
        left_out: the reasons why variants were not made, by their names.
    """

    members: list[Member] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


def name_on(engine: Engine, chain: str) -> str:
    """The name of a recipe's variant under an engine: ``int8``, ``int8-openvino``."""
    return chain if engine is Engine.ONNXRUNTIME_CPU else f"{chain}-{engine.value}"


def make_family(
    registry: Registry, home: Path, order: FamilyOrder, on_progress: Progress
) -> Family:
    """Make, measure and register all variants; an interrupted run goes on where it stopped.

    A variant is registered with its accuracy, the items behind it and its origin in one
    transaction, so it is there as a whole or not at all.

    Raises:
        EnvironmentUnfitError: another process makes variants of the same model in this home.
        InvalidInputError: the source does not take the calibration data.
        StoreError: the store or the artifacts cannot be written; what is registered stays whole.
        ModellessError: what is wrong with a variant, if it is wrong with all of them.
    """
    what = f"{order.task.name}/{order.model.name}"
    lock = home / FOLDER / f"{order.task.name}--{order.model.name}.lock"
    with held(lock, f"making variants of {what}"):
        try:
            return _Making(registry, home, order, on_progress).run()
        except KeyboardInterrupt:
            on_progress(Note("what was made so far is kept; the same command goes on from here"))
            raise


class _Making:
    """Makes the variants of an order, one after the other."""

    def __init__(
        self, registry: Registry, home: Path, order: FamilyOrder, on_progress: Progress
    ) -> None:
        self._registry, self._order, self._on_progress = registry, order, on_progress
        self._builder = Builder(home / FOLDER, registry.artifacts)
        self._done = 0  # variants of the recipe

    def run(self) -> Family:
        order, source = self._order, self._order.source.onnx_bytes
        self._wanted = Answers(Graph(source), order.calibration)
        self._registry.artifacts.put(source)
        self._data_sha256 = self._registry.artifacts.put(to_npz(order.calibration))
        family = Family()
        error: ModellessError | None = None
        first_with: dict[str, str] = {}  # a variant's name by its file's hash
        building = self._builder.build(
            order.recipe, source, order.calibration, self._show_building, order.task
        )
        for done, made in enumerate(building):
            self._done = done
            if isinstance(made, RefusedVariant):
                family.left_out[made.name] = made.reason
                continue
            same = first_with.setdefault(made.artifact_sha256, made.name)
            if same != made.name:
                family.left_out[made.name] = f"it is the very same file as {same}"
                continue
            for engine in order.engines:
                planned = self._planned(made, engine)
                try:
                    family.members.append(self._member(planned, made))
                except StoreError:
                    raise
                except ModellessError as problem:
                    error = problem
                    family.left_out[planned.name] = str(problem)
        self._done = len(order.recipe.chains)
        self._show("")
        if not family.members:
            raise error or InvalidInputError(
                "nothing could be made: "
                + "; ".join(f"{name}: {why}" for name, why in family.left_out.items())
            )
        self._measure_best_anew(family)
        best = max((each.variant.accuracy for each in family.members), key=lambda a: a.percent)
        if remark := remark_on_guessing(best, order.task):
            self._on_progress(Note(f"note: the best of them: {remark}"))
        if remark := remark_on_steps(order.metric, order.task):
            self._on_progress(Note(f"note: {remark}"))
        return family

    def _measure_best_anew(self, family: Family) -> None:
        """Measure the best of many on as many other items: on its own ones it was lucky, too.

        Nothing is done where there are not as many others, or too few variants to choose among.
        """
        order, registry = self._order, self._registry
        place = max(
            range(len(family.members)), key=lambda i: family.members[i].variant.accuracy.percent
        )
        member = family.members[place]
        if len(family.members) < _MANY or member.was_there:
            return
        if order.available - order.sample < order.sample:
            return
        variant, before, count = member.variant, member.variant.accuracy, len(family.members)
        self._show(f"{variant.name}: it is the best, so it is measured on other items")
        artifact = registry.artifacts.fetch(variant.artifact_sha256)
        found = measure_variant(
            variant, artifact, order.items, order.metric, sample=order.sample, skip=order.sample
        )
        reason = f"measured on other items, as it was the best of {count}"
        details = details_of(found, order.metric)
        variant = registry.revise_accuracy(variant.id, found.accuracy, reason, details)
        family.members[place] = replace(member, variant=variant)
        self._on_progress(
            Note(
                f"note: {variant.id} was the best of {count} on {order.sample} items, with "
                f"{before.percent:.1f} %; on {order.sample} others it has "
                f"{variant.accuracy.percent:.1f} %, which is kept"
            )
        )

    def _show_building(self, words: str, done: int, total: int) -> None:
        self._on_progress(Step("making", done, total, words))

    def _show(self, words: str) -> None:
        self._show_building(words, self._done, len(self._order.recipe.chains))

    def _planned(self, made: MadeVariant, engine: Engine) -> Variant:
        order = self._order
        unknown = Provenance.DERIVED, "not measured yet"
        return Variant(
            task=order.task.name,
            model=order.model.name,
            name=name_on(engine, made.name),
            version=1,
            precision=made.precision or order.precision,
            resolution_px=made.resolution_px or order.resolution_px,
            engine=engine,
            artifact_sha256=made.artifact_sha256,
            artifact_bytes=made.path.stat().st_size,
            accuracy=Accuracy(0.0, order.task.accuracy_metric, *unknown),
        )

    def _member(self, planned: Variant, made: MadeVariant) -> Member:
        known = self._registered(planned)
        if known is not None:
            origin = find_origin(self._registry.store, known.id)
            if origin is not None and self._is_complete(known, origin, made):
                return Member(known, origin, was_there=True)
        fidelity, found = self._examine(planned, made)
        order = self._order
        origin = Origin(
            source=order.source.name,
            framework=order.source.framework,
            tools=order.source.tools,
            chain=made.name,
            lineage=made.lineage,
            calibration_file_sha256=self._data_sha256,
            notes=made.notes,
            fidelity=fidelity,
        )
        variant = self._register(planned, made, found, origin, known)
        return Member(variant, origin, was_there=False)

    def _registered(self, planned: Variant) -> Variant | None:
        """The variant of these very bytes and engine, if it is registered."""
        every = self._registry.variants(
            planned.task, planned.model, planned.name, latest_only=False
        )
        key = (planned.artifact_sha256, planned.engine)
        return next((v for v in every if (v.artifact_sha256, v.engine) == key), None)

    def _is_complete(self, known: Variant, origin: Origin, made: MadeVariant) -> bool:
        """Whether it was made in this way, and measured on no fewer of these items."""
        accuracy = known.accuracy
        return (
            origin.lineage == made.lineage
            and accuracy.provenance is Provenance.MEASURED
            and (accuracy.metric, accuracy.source)
            == (self._order.metric.name, source_of(self._order.items))
            and (accuracy.sample_count or 0) >= self._order.sample
        )

    def _examine(self, planned: Variant, made: MadeVariant) -> tuple[Fidelity, MeasuredAccuracy]:
        """Compare an engine's outputs with the source's, and measure its accuracy."""
        order = self._order

        def show(items_done: int, most: int, score: Score | None) -> None:
            del score
            self._show(f"{planned.name}: accuracy, {items_done}/{most} items")

        self._show(f"{planned.name}: loading on {planned.engine.value}")
        with loaded_to_measure(planned, made.path) as loaded:
            fidelity = made.fidelity
            if fidelity is None or planned.engine is not Engine.ONNXRUNTIME_CPU:
                answers = (loaded.infer(dict(feed)) for feed in self._wanted.calls.feeds)
                fidelity = compare(self._wanted, answers, order.task)
            if fidelity.sqnr_db is not None and fidelity.sqnr_db <= NOTHING_ALIKE_DB:
                raise InvalidInputError(
                    f"{planned.name}: on {planned.engine.value} its answers have nothing in common "
                    "with the source's"
                )
            found = measure_accuracy(
                loaded, order.items, order.metric, sample=order.sample, on_progress=show
            )
        return fidelity, found

    def _register(
        self,
        planned: Variant,
        made: MadeVariant,
        found: MeasuredAccuracy,
        origin: Origin,
        known: Variant | None,
    ) -> Variant:
        order, registry = self._order, self._registry
        if known is not None:
            keep_measured(registry, known, found, order.metric, order.task.accuracy_metric)
            with registry.store.transaction() as session:
                session.add(origin.row(known.id))
            return registry.variant(known.id)

        def note(session: Session, variant: Variant) -> None:
            session.add(origin.row(variant.id))
            session.add(first_measured(variant, found, order.metric, "measured when it was made"))

        return registry.register_variant(
            task=order.task,
            model=order.model,
            name=planned.name,
            precision=planned.precision,
            engine=planned.engine,
            accuracy=found.accuracy,
            artifact=made.path.read_bytes(),
            resolution_px=planned.resolution_px,
            also=note,
        )
