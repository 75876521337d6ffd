"""Measuring how accurate a variant is: run it on a validation set, judge, say how sure that is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError
from modelless.variants.metrics.metric import Metric, Score, score
from modelless.variants.metrics.outputs import ClassOutput
from modelless.variants.runtimes.runtime import Tensors
from modelless.variants.validation.validation_set import Item, ValidationSet
from modelless.variants.vocabulary import Accuracy, Provenance, Task

SEED: Final = 0
"""Of the order in which items are taken. One for all, so that runs are of the same items."""

BATCH: Final = 32
FEWEST_ITEMS: Final = 100
"""Before that no interval is narrow enough to stop: a few items may agree by luck."""

_LOOK_GROWTH: Final = 1.2
"""Looked at each time the items have grown by this factor: resampling after every batch would cost
more than running the variant."""

_SHAPES_AT: Final = (0.5, 0.0, 0.25, 0.75, 1.0)
"""Quantiles of the items' elements whose shapes are noted: what profiles are measured at."""

_MOST_TEXTS: Final = 32
_MOST_CHARACTERS: Final = 4096
"""Of the items' texts are noted so many, and so much of each: what profiles are measured with."""

OnProgress = Callable[[int, int, Score | None], None]
"""Told how many items are done, how many there are at most, and the score when it was looked at."""


class Session(Protocol):
    """The part of a loaded variant that measuring needs."""

    def infer(self, inputs: Tensors) -> dict[str, NDArray[Any]]:
        """Run one batch of the task's signature."""
        ...


@dataclass(frozen=True, slots=True)
class MeasuredAccuracy:
    """A measured accuracy, and the evidence for it.

    Attributes:
        accuracy: with provenance ``measured``.
        score: the same, with the metric's own unit beside it.
        evidence: a row an item, in the order that ``SEED`` gives; see ``Metric.evidence``.
        set_sha256: of the validation set.
        set_items: how many items it has.
        item_shapes: sizes of the items, by input: the median's first, then those of some other
            quantiles and of the largest.
        skipped: items of the order that were left out, as ``skip`` said.
        item_texts: some of the items' texts by input, of those that are texts.
    """

    accuracy: Accuracy
    score: Score
    evidence: NDArray[Any]
    set_sha256: str
    set_items: int
    item_shapes: tuple[Mapping[str, tuple[int, ...]], ...] = ()
    skipped: int = 0
    item_texts: Mapping[str, Sequence[str]] = field(default_factory=dict)


def measure_accuracy(
    session: Session,
    validation_set: ValidationSet,
    metric: Metric,
    *,
    sample: int | None = None,
    skip: int = 0,
    precision_percent: float | None = None,
    on_progress: OnProgress | None = None,
) -> MeasuredAccuracy:
    """Run ``session`` on the items in random order and judge its answers.

    With ``precision_percent`` it stops as soon as the 95 % interval reaches no further than that to
    either side, on the average. A rule that looks at the width, not at the value, leaves the
    interval asymptotically right (Chow and Robbins, Annals of Mathematical Statistics 36, 1965).

    Args:
        session: a loaded variant.
        validation_set: labelled as the metric needs.
        metric: what judges.
        sample: use so many items at most; all of them by default.
        skip: leave out so many items, the first of the order: those used before.
        precision_percent: half-width that suffices, in points.
        on_progress: told after every batch.

    Raises:
        InvalidInputError: an option out of range; an item that is broken, or that the variant does
            not take; an answer that cannot be judged.
        EnvironmentUnfitError: the variant failed while running.
    """
    if sample is not None and sample < 1:
        raise InvalidInputError.of("sample", sample, "1 or more items")
    if precision_percent is not None and not 0.0 < precision_percent < 50.0:
        raise InvalidInputError.of("precision", precision_percent, "more than 0, less than 50")
    order = random_order(len(validation_set))[skip:][:sample]
    rows: list[NDArray[Any]] = []
    done, look_at, found = 0, FEWEST_ITEMS, None
    shapes: Counter[tuple[tuple[str, tuple[int, ...]], ...]] = Counter()
    texts: dict[str, list[str]] = {}
    for part in validation_set.batches(BATCH, order):
        rows.append(metric.evidence(session.infer(part.inputs), part.expected))
        done += len(part.expected)
        shape = ((name, array.shape[1:]) for name, array in part.inputs.items())
        shapes[tuple(sorted(shape))] += len(part.expected)
        for name, array in part.inputs.items():
            if array.dtype.kind == "O" and len(known := texts.setdefault(name, [])) < _MOST_TEXTS:
                found_here = array.ravel()[: _MOST_TEXTS - len(known)]
                known += [text[:_MOST_CHARACTERS] for text in found_here]
        if precision_percent is not None and done >= look_at:
            look_at = int(done * _LOOK_GROWTH)
            found = score(metric, np.concatenate(rows))
        if on_progress is not None:
            on_progress(done, len(order), found)
        if (
            found is not None
            and precision_percent
            and found.half_width_percent <= precision_percent
        ):
            break
    evidence = np.concatenate(rows)
    if found is None or found.count != done:
        found = score(metric, evidence)
    return MeasuredAccuracy(
        Accuracy(
            found.percent,
            metric.name,
            Provenance.MEASURED,
            source_of(validation_set),
            found.low_percent,
            found.high_percent,
            found.count,
        ),
        found,
        evidence,
        validation_set.sha256,
        len(validation_set),
        _typical_shapes(shapes),
        skip,
        texts,
    )


def _typical_shapes(
    counts: Counter[tuple[tuple[str, tuple[int, ...]], ...]],
) -> tuple[Mapping[str, tuple[int, ...]], ...]:
    """The shapes at some quantiles of their elements, each once; the median's first."""
    ascending = sorted(counts, key=lambda shape: sum(math.prod(sizes) for _, sizes in shape))
    ends = np.cumsum([counts[shape] for shape in ascending])
    places = [int(np.searchsorted(ends, share * ends[-1])) for share in _SHAPES_AT]
    return tuple(dict(ascending[place]) for place in dict.fromkeys(places))


def random_order(count: int) -> list[int]:
    """The order in which the items of a set of ``count`` are taken: always the same."""
    return [int(index) for index in np.random.default_rng(SEED).permutation(count)]


def source_of(validation_set: ValidationSet) -> str:
    """How an accuracy that was measured on the set names it."""
    return f"{validation_set.name} (sha256 {validation_set.sha256[:12]})"


class AnsweredBy(ValidationSet):
    """A validation set of which another variant's first answers count as right.

    What top-1 finds on it is how often two variants agree. The reference is asked once an item.

    Args:
        items: labelled or not.
        reference: whose answers count.
        task: whose classes they are.
        name: of the reference.
    """

    def __init__(self, items: ValidationSet, reference: Session, task: Task, name: str) -> None:
        self._items = items
        self._reference = reference
        self._output = ClassOutput(task, "agreement")
        self.name = f"answers of {name} to {items.name}"
        self._answers: dict[int, int] = {}

    @property
    def sha256(self) -> str:
        """Of the items."""
        return self._items.sha256

    def __len__(self) -> int:
        """The number of items."""
        return len(self._items)

    def item(self, index: int) -> Item:
        """See ``ValidationSet.item``."""
        item = self._items.item(index)
        if index not in self._answers:
            inputs = {name: array[None] for name, array in item.inputs.items()}
            self._answers[index] = int(self._output.first(self._reference.infer(inputs))[0])
        return Item(item.inputs, self._answers[index])
