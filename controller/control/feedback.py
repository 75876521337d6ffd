"""Accuracy in service: what feedback says of each variant, and which variants it demotes.

A variant is demoted when feedback shows that its accuracy has fallen below the interval that is
stated for it, by more than a tolerance. From then on it counts for the lower bound of what was
measured since it fell. It returns when feedback shows it above the same bound. It also returns for
another try when no feedback came for a time, as nothing may be sent there any more.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from modelless.common.intervals import wilson_percent
from modelless.controller.control.messages import Entry, EntryKind
from modelless.controller.dispatch.trials import SHADOW, FeedbackCounts
from modelless.variants.vocabulary import Variant

# Has a share of right items fallen below a bound m, at a time that nobody knows? Asked as often as
# wanted.
#
# For a share q < m, an item multiplies a wealth by q/m if it is right, and by (1 - q)/(1 - m) if it
# is wrong. While the share is at least m, the wealth is a supermartingale: Wald's likelihood ratio.
# (A score s between the two counts as s right and 1 - s wrong: by the inequality of the weighted
# means the factor is then even less, so that holds for scores, too.) The stake of 1 is spent on all
# shares q of ``_FALLS`` and, over time, on all moments at which the share may have fallen: after n
# items, the root of h/(h + n) is left. The stake and all wealths together are a supermartingale
# that begins at 1, so by Ville's inequality they *ever* reach 1/alpha with probability at most
# alpha. That is the method of mixtures (Robbins, Annals of Mathematical Statistics 1970) over the
# moment of the change, as in Shiryaev's and Roberts' statistic (Shin, Ramdas and Rinaldo,
# "E-detectors", New England Journal of Statistics in Data Science 2024).

_FALLS: Final = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4)  # of the bound
_EARLY: Final = 100.0  # h: how many items are early
_MOST: Final = 1e12  # of a wealth: enough for any decision, and its powers are finite
_CLOSEST: Final = 0.005  # of a bound to 0 and 1


@dataclass(slots=True)
class FallTest:
    """The evidence that the share of good items has fallen below a bound, at whatever time.

    Attributes:
        bound: above 0 and below 1.
        items: so far.
        wealths: one for each of ``_FALLS``.
    """

    bound: float
    items: float = 0.0
    wealths: list[float] = field(default_factory=lambda: [0.0] * len(_FALLS))

    def add(self, good: float, bad: float) -> None:
        """Add items that came in together."""
        left, self.items = self._left, self.items + good + bad
        fresh = (left - self._left) / len(_FALLS)
        for place, fall in enumerate(_FALLS):
            factor = math.exp(min(self.log_factor(fall, good, bad), 60.0))
            self.wealths[place] = min((self.wealths[place] + fresh) * factor, _MOST)

    def log_factor(self, fall: float, good: float, bad: float) -> float:
        """Return the logarithm of how much more probable items are after a fall than before."""
        of_bad = (1.0 - self.bound * (1.0 - fall)) / (1.0 - self.bound)
        return good * math.log(1.0 - fall) + bad * math.log(of_bad)

    @property
    def evidence(self) -> float:
        """It ever reaches 1/alpha with probability at most alpha if the share did not fall."""
        return sum(self.wealths) + self._left

    @property
    def _left(self) -> float:
        return math.sqrt(_EARLY / (_EARLY + self.items))


COMPARABLE: Final = ("top-1", "exact-match")
"""The metrics that are the share of items whose first answer is right, as in feedback."""


def stated_low_percent(variants: Iterable[Variant]) -> dict[str, float]:
    """Return the lower ends of the stated accuracies that feedback can be compared with, by id."""
    accuracies = {variant.id: variant.accuracy for variant in variants}
    return {
        name: each.percent if each.low_percent is None else each.low_percent
        for name, each in accuracies.items()
        if each.metric in COMPARABLE
    }


class FeedbackRules(NamedTuple):
    """When feedback demotes a variant, and when a demoted one returns.

    Attributes:
        demotes: whether it does at all.
        alpha: most probability with which a variant within the tolerance is ever demoted, and with
            which one beyond it returns, each counted from the change before.
        tolerance_percent: points below the stated interval at which the bound is.
        retry_s: without feedback for so long, a demoted variant gets another try; twice as long
            after each try that fails, up to a day.
    """

    demotes: bool = True
    alpha: float = 0.05
    tolerance_percent: float = 2.0
    retry_s: float = 3600.0


DEFAULT_RULES: Final = FeedbackRules()
_LONGEST_RETRY_S: Final = 86_400.0
_STEP_PERCENT: Final = 1.0  # by which a demoted variant's accuracy moves before anybody is told


@dataclass(slots=True)
class VariantFeedback:
    """What feedback says of one version of a variant.

    Attributes:
        tenants: right and wrong items by tenant.
        stated_low_percent: the lower end of the interval that its accuracy is held against; None if
            feedback cannot be compared with it.
        since: right and wrong items since it probably fell: since ``height`` was 0.
        height: Page's cumulative sum (Biometrika 1954) of the smallest fall's log factors.
        demoted_percent: the accuracy that it counts for; None if that is the stated one.
        demotions: since feedback last showed it at its bound.
        last_s: when feedback last came, seconds since the epoch.
        test: of what could change next: that it fell below the bound, or if it is demoted, that
            the share of wrong items fell below that of the bound.
    """

    tenants: dict[str, list[float]] = field(default_factory=dict)
    stated_low_percent: float | None = None
    since: list[float] = field(default_factory=lambda: [0.0, 0.0])
    height: float = 0.0
    demoted_percent: float | None = None
    demotions: int = 0
    last_s: float = 0.0
    test: FallTest = field(default_factory=lambda: FallTest(0.5))

    @classmethod
    def kept(cls, document: Mapping[str, Any]) -> VariantFeedback:
        """Return it from what ``asdict`` gave."""
        test = dict(document["test"])
        test = {**test, "wealths": list(test["wealths"])}
        tenants = {name: list(counts) for name, counts in document["tenants"].items()}
        parts = {"tenants": tenants, "since": list(document["since"]), "test": FallTest(**test)}
        return cls(**{**document, **parts})

    def status(self, variant_id: str) -> dict[str, Any]:
        """Return it in a few figures, as plain data."""
        labels = [counts for name, counts in self.tenants.items() if name != SHADOW] or [[0, 0]]
        right, wrong = map(sum, zip(*labels, strict=True))
        return {
            "variant": variant_id,
            **_figures(right, wrong),
            "tenants": {name: _figures(*counts) for name, counts in sorted(self.tenants.items())},
            "stated_low": self.stated_low_percent,
            "demoted_to": self.demoted_percent,
            "since": _figures(*self.since) if self.demoted_percent is not None else None,
        }


def _figures(right: float, wrong: float) -> dict[str, float]:
    low, high = wilson_percent(right, right + wrong)
    percent = 100.0 * right / max(right + wrong, 1e-9)
    return {
        "items": round(right + wrong, 3),
        "accuracy": round(percent, 2),
        "low": round(low, 2),
        "high": round(high, 2),
    }


class FeedbackAccuracies:
    """What feedback says of all variants, and which ones are demoted for it."""

    def __init__(self, rules: FeedbackRules = DEFAULT_RULES) -> None:
        self._rules = rules
        self._variants: dict[str, VariantFeedback] = {}
        self._stated_low_percent: Mapping[str, float] = {}

    @property
    def demoted(self) -> dict[str, float]:
        """The accuracies that demoted variants count for, per cent, by id."""
        return {
            name: each.demoted_percent
            for name, each in self._variants.items()
            if each.demoted_percent is not None and self._rules.demotes
        }

    def documents(self) -> dict[str, dict[str, Any]]:
        """Return all that is known, as plain JSON, for ``follow`` of a later process."""
        return {name: asdict(each) for name, each in self._variants.items()}

    def status(self) -> list[dict[str, Any]]:
        return [each.status(name) for name, each in sorted(self._variants.items())]

    def follow(
        self, stated_low_percent: Mapping[str, float], kept: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Hold feedback against these accuracies; a variant whose own has changed begins anew.

        Args:
            stated_low_percent: lower ends of the stated intervals, by id, where feedback can be
                compared.
            kept: what an earlier process knew.
        """
        for variant_id, document in kept.items():
            self._variants.setdefault(variant_id, VariantFeedback.kept(document))
        self._stated_low_percent = stated_low_percent
        for variant_id, each in self._variants.items():
            low_percent = stated_low_percent.get(variant_id)
            if low_percent != each.stated_low_percent:
                self._hold_against(each, low_percent)

    def add(self, counts: Iterable[FeedbackCounts], epoch_s: float) -> None:
        """Add what a gateway counted; at this time, seconds since the epoch."""
        for variant_id, tenant, right, wrong in counts:
            each = self._variants.get(variant_id)
            if each is None:
                each = self._variants[variant_id] = VariantFeedback()
                self._hold_against(each, self._stated_low_percent.get(variant_id))
            told = each.tenants.setdefault(tenant, [0.0, 0.0])
            told[0] += right
            told[1] += wrong
            each.last_s = epoch_s
            if each.demoted_percent is None:
                each.height += each.test.log_factor(_FALLS[0], right, wrong)
                each.test.add(right, wrong)
            else:
                each.test.add(wrong, right)
            if each.height > 0.0:
                each.since = [each.since[0] + right, each.since[1] + wrong]
            else:
                each.height, each.since = 0.0, [0.0, 0.0]

    def judge(self, on_trial: Collection[str], epoch_s: float) -> list[Entry]:
        """Demote and restore variants; return what became of them, for the history.

        Args:
            on_trial: versions whose trial has a verdict of its own.
            epoch_s: the time, seconds since the epoch.
        """
        entries = []
        needed = 1.0 / self._rules.alpha
        for variant_id, each in self._variants.items():
            low = each.stated_low_percent
            if low is None or variant_id in on_trial or not self._rules.demotes:
                continue
            if each.demoted_percent is None:
                if each.test.evidence >= needed:
                    entries.append(self._demote(variant_id, each, low))
            elif each.test.evidence >= needed:
                why = f"feedback shows it above {self._bound_percent(low):.1f} % again"
                each.demotions = 0
                entries.append(self._restore(variant_id, each, low, why))
            elif epoch_s - each.last_s >= (wait_s := self._retry_s(each.demotions)):
                why = f"for another try: no feedback came for {wait_s / 60.0:.0f} minutes"
                entries.append(self._restore(variant_id, each, low, why))
            else:
                percent = self._counts_for(each, low)
                if abs(percent - each.demoted_percent) >= _STEP_PERCENT:
                    each.demoted_percent = percent
        return entries

    def _demote(self, variant_id: str, each: VariantFeedback, low_percent: float) -> Entry:
        each.demotions += 1
        each.demoted_percent = self._counts_for(each, low_percent)
        each.test = FallTest(1.0 - each.test.bound)
        figures = _figures(*each.since)
        reason = (
            f"of the last {figures['items']:g} items with feedback {figures['accuracy']:.1f} % "
            f"were right; stated are {low_percent:.1f} % at least: it counts for "
            f"{each.demoted_percent:.1f} %"
        )
        details = {**figures, "stated_low": low_percent, "counts_for": each.demoted_percent}
        return Entry(EntryKind.ACCURACY_DEMOTED, variant_id, reason, details)

    def _restore(
        self, variant_id: str, each: VariantFeedback, low_percent: float, reason: str
    ) -> Entry:
        details = {**_figures(*each.since), "stated_low": low_percent}
        self._hold_against(each, low_percent)
        return Entry(EntryKind.ACCURACY_RESTORED, variant_id, reason, details)

    def _hold_against(self, each: VariantFeedback, low_percent: float | None) -> None:
        """Begin to hold feedback against this accuracy; the items so far count no more for that."""
        each.stated_low_percent = low_percent
        each.demoted_percent, each.since, each.height = None, [0.0, 0.0], 0.0
        if low_percent is not None:
            each.test = FallTest(self._bound_percent(low_percent) / 100.0)

    def _bound_percent(self, low_percent: float) -> float:
        bound = (low_percent - self._rules.tolerance_percent) / 100.0
        return 100.0 * min(max(bound, _CLOSEST), 1.0 - _CLOSEST)

    def _counts_for(self, each: VariantFeedback, low_percent: float) -> float:
        right, wrong = each.since
        measured = wilson_percent(right, right + wrong)[0]
        return round(min(measured, self._bound_percent(low_percent)), 2)

    def _retry_s(self, demotions: int) -> float:
        return min(self._rules.retry_s * 2.0 ** min(demotions - 1, 20), _LONGEST_RETRY_S)
