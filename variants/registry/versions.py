"""Versions of a variant in service: the current one, those before it, and one on trial.

Which version is current is a pointer of its own, apart from what is registered: artifacts and
versions never change, the pointer does. A variant that was never promoted has no pointer, and its
first version is current: what is registered later serves when somebody promotes it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from modelless.common.errors import InvalidInputError

EARLIER_KEPT: Final = 16
"""Predecessors of a version that are remembered, for ``rollback``."""


@dataclass(frozen=True, slots=True)
class TrialRules:
    """When a trial ends, and how.

    Attributes:
        alpha: most probability with which a version within all tolerances is rolled back, however
            often one looks; and likewise of promoting one beyond any of them.
        error_tolerance, accuracy_tolerance, latency_tolerance: how much larger than the current
            version's may be, as shares: of its queries those that fail; of its labelled items those
            that are wrong; of the queries of its share those that are slow (see ``Evidence``).
        min_queries: answered by the version on trial before it is promoted.
        min_labels: items with feedback that it must have before it is promoted. With 0, accuracy
            counts only where there is feedback.
        max_queries: answered by the version on trial; undecided by then, it is rolled back.
        max_s: seconds; likewise.
    """

    alpha: float = 0.05
    error_tolerance: float = 0.01
    accuracy_tolerance: float = 0.02
    latency_tolerance: float = 0.05
    min_queries: int = 100
    min_labels: int = 0
    max_queries: int = 1_000_000
    max_s: float = 86_400.0

    def __post_init__(self) -> None:
        shares = ("alpha", "error_tolerance", "accuracy_tolerance", "latency_tolerance")
        for name in shares:
            value = getattr(self, name)
            if not 0.0 < value < 1.0:
                raise InvalidInputError.of(name, value, "a share above 0 and below 1")
        if self.alpha > 0.5:
            raise InvalidInputError.of(
                "alpha", self.alpha, "up to 0.5: beyond it a coin would be right more often"
            )
        for name in ("min_queries", "min_labels"):
            if getattr(self, name) < 0:
                raise InvalidInputError.of(name, getattr(self, name), "0 or more")
        if self.max_queries <= max(self.min_queries, self.min_labels):
            raise InvalidInputError.of(
                "max_queries", self.max_queries, "more than min_queries and min_labels"
            )
        if not self.max_s > 0.0:
            raise InvalidInputError.of("max_s", self.max_s, "above 0 (seconds)")


@dataclass(frozen=True, slots=True)
class Trial:
    """A version that is tried on a share of the queries: a canary.

    Attributes:
        name: of the variant, ``task/model/variant``.
        version: on trial.
        against: the current version, with which it is compared.
        share: of the queries that either could serve, above 0 and below 1.
        number: of the change that began it: no two trials of a store have the same.
        began_s: when, seconds since the epoch.
        rules: when it ends.
    """

    name: str
    version: int
    against: int
    share: float
    number: int
    began_s: float
    rules: TrialRules = field(default_factory=TrialRules)

    def __post_init__(self) -> None:
        if not 0.0 < self.share < 1.0:
            raise InvalidInputError.of("share", self.share, "above 0 and below 1, such as 5%")

    @property
    def task(self) -> str:
        """The task of the variant."""
        return self.name.partition("/")[0]

    @property
    def variant_id(self) -> str:
        """Of the version on trial."""
        return f"{self.name}@{self.version}"

    @property
    def against_id(self) -> str:
        """Of the version it is compared with."""
        return f"{self.name}@{self.against}"


@dataclass(frozen=True, slots=True)
class Line:
    """The versions of one variant that may serve.

    Attributes:
        name: ``task/model/variant``.
        current: what serves, or will as soon as it is loaded.
        earlier: what was current before, oldest first; the last is what ``rollback`` returns to.
        trial: of another version, if there is one.
        retired: whether the variant is out of service: no new query gets it.
    """

    name: str
    current: int
    earlier: tuple[int, ...] = ()
    trial: Trial | None = None
    retired: bool = False

    @property
    def current_id(self) -> str:
        """Of the current version."""
        return f"{self.name}@{self.current}"

    @property
    def in_service(self) -> tuple[str, ...]:
        """The ids that are wanted: the current version and the one on trial."""
        if self.retired:
            return ()
        return (self.current_id, self.trial.variant_id) if self.trial else (self.current_id,)

    def serving(self, held: Collection[str]) -> tuple[str, ...]:
        """The versions that a worker serves, of those that it holds ready.

        Its current one, or until that is loaded the latest before it; and the one on trial. What
        was rolled back is in no line, and serves nothing from then on.

        Args:
            held: variant ids.
        """
        standing = next(
            (
                version_id
                for version in (self.current, *reversed(self.earlier))
                if (version_id := f"{self.name}@{version}") in held
            ),
            None,
        )
        on_trial = self.trial.variant_id if self.trial else None
        return tuple(each for each in (standing, on_trial) if each is not None and each in held)


def name_of(variant_id: str) -> str:
    """``task/model/variant`` of an id, whose version is left away."""
    return variant_id.partition("@")[0]
