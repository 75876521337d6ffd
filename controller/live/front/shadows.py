"""Shadows: a small share of the answered queries is run again, by a more accurate variant.

Where no labels come, the classes of that reference variant stand in for them. It errs, too. So an
item on which the two differ counts in part as right: enough that a variant as accurate as stated
scores its stated accuracy at least, however the errors of the two coincide.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from modelless.policies.views import QueryView
from modelless.variants.registry.versions import name_of
from modelless.variants.vocabulary import OFFLINE, Accuracy, Variant

MOST_OPEN: Final = 8
MOST_BYTES: Final = 1 << 20
"""Of a shadow's inputs, which are kept until it is answered."""
_PATIENCE_S: Final = 30.0


@dataclass
class Shadows:
    """The shadows of one gateway.

    Attributes:
        share: of the answered queries, 0 to 1.
        classes: by the id of each open shadow, the variant it judges, the variant that is the
            reference, and the classes that the first one answered.
    """

    share: float
    rng: random.Random
    classes: dict[int, tuple[Variant, Variant, Sequence[int]]] = field(default_factory=dict)

    def is_drawn(self, input_bytes: int) -> bool:
        """Return whether an answered query gets a shadow, if there is a reference for it."""
        return (
            self.share > 0.0
            and len(self.classes) < MOST_OPEN
            and input_bytes <= MOST_BYTES
            and self.rng.random() < self.share
        )


def find_reference(
    variant: Variant, others: Iterable[Variant], is_ready: Callable[[Variant], bool]
) -> Variant | None:
    """Return the most accurate variant of a task that is ready, if that is another one."""
    rivals = [
        each
        for each in others
        if each.task == variant.task
        and each.accuracy.metric == variant.accuracy.metric
        and each.accuracy.percent > variant.accuracy.percent
        and is_ready(each)
    ]
    return max(rivals, key=lambda each: each.accuracy.percent, default=None)


def shadow_of(query: QueryView, query_id: int, reference: Variant, now_s: float) -> QueryView:
    """Return the query that asks the reference the same, offline and for nobody."""
    return QueryView(
        query_id=query_id,
        scope=name_of(reference.id),
        arrival_s=now_s,
        deadline_s=now_s + _PATIENCE_S,
        priority=OFFLINE,
        items=query.items,
        batch_key=query.batch_key,
        size=query.size,
    )


def score(
    answered: Sequence[int], wanted: Sequence[int], stated: Accuracy, reference: Accuracy
) -> tuple[float, ...]:
    """Return how right each item is, 0 to 1, by the classes of the reference.

    With accuracies a and r, the two agree on at least a - (1 - r) of the items. A score s of the
    others makes that a in the mean if s = (1 - r) / ((1 - a) + (1 - r)).
    """
    low = reference.percent if reference.low_percent is None else reference.low_percent
    missed = max(100.0 - low, 1e-6)
    part = missed / (max(100.0 - stated.percent, 0.0) + missed)
    return tuple(1.0 if one == other else part for one, other in zip(answered, wanted, strict=True))
