"""The verdict on a trial: roll back, promote, or go on. See ``weigh`` for the test.

Three guards, each on two rates of bad events, the tried version's and the standing one's:

* errors: of the queries that ran on the version, those that failed;
* accuracy: of the items that it answered and feedback came for, those it got wrong;
* latency: of all queries of the arm, those that were refused, or took longer than nine of ten did
  in the standing arm at the beginning (``slow_step``).

Any guard that shows the version worse beyond its tolerance rolls it back, each at a third of alpha,
so that all together err with probability alpha. All guards must show it not worse beyond theirs to
promote it, each at alpha: then all have to err at once, and nothing has to be divided.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from modelless.controller.dispatch.trials import ArmCounts, TrialCounts, step_s
from modelless.variants.registry.versions import Trial

# Is one rate of bad events larger than another by more than a tolerance? Asked as often as wanted.
#
# Two streams of independent yes-or-no events come in side by side, at whatever pace each; ``n`` of
# them so far, ``x`` bad, with unknown rates p and q. For fixed (p, q), the probability of what was
# seen under a mixture over all rates, over its probability under (p, q),
#
#     M(p, q) = B(x + a, n - x + a) / B(a, a) / (p^x (1 - p)^(n - x)), times the same of the other,
#
# is a martingale with mean 1: the mixture sequential probability ratio test (Robbins, Annals of
# Mathematical Statistics 1970; for A/B tests: Johari et al., KDD 2017; as confidence sequences:
# Howard et al., Annals of Statistics 2021). So by Ville's inequality it *ever* reaches 1/alpha with
# probability at most alpha. Against a hypothesis that allows many (p, q) the least M among these is
# taken, which is smaller still than that of the true one: an e-value at every moment, and no price
# for looking at every one of them. B is the beta function and a = 1/2 (Jeffreys; the
# Krichevsky-Trofimov estimator). Nothing is approximated.

_PRIOR: Final = 0.5
_STEPS: Final = 45  # of bisection: fewer than would round a rate to 0 or 1


class Stream(NamedTuple):
    """Events so far: how many, and how many of them were bad; one may be bad in part.

    An event that is bad by a share s counts as s bad and 1 - s good ones: its factor in M is then
    less on average, by the inequality of the weighted means.
    """

    total: int
    bad: float

    @property
    def rate(self) -> float:
        return self.bad / self.total if self.total else 0.0


class Evidence(NamedTuple):
    """Natural logarithms of two e-values; 1/alpha is reached with probability alpha at most.

    Attributes:
        log_worse: against "at most ``tolerance`` worse": large if the version is worse.
        log_fine: against "at least ``tolerance`` worse": large if it is not.
    """

    log_worse: float
    log_fine: float


def weigh(tried: Stream, standing: Stream, tolerance: float) -> Evidence:
    """Return the evidence of two streams on the difference of their rates, tried less standing.

    Args:
        standing: of the one it is compared with.
        tolerance: above 0 and below 1.
    """
    mixture = _log_mixture(tried) + _log_mixture(standing)
    best = sum(_log_likelihood(each, each.rate, 1.0 - each.rate) for each in (tried, standing))
    at_border = _most_likely_at(tried, standing, tolerance)
    is_beyond = tried.rate - standing.rate > tolerance
    return Evidence(
        log_worse=mixture - (at_border if is_beyond else best),
        log_fine=mixture - (best if is_beyond else at_border),
    )


def _log_mixture(stream: Stream) -> float:
    good = stream.total - stream.bad
    return _log_beta(stream.bad + _PRIOR, good + _PRIOR) - _log_beta(_PRIOR, _PRIOR)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _log_likelihood(stream: Stream, rate: float, rest: float) -> float:
    """``rest`` is 1 - ``rate``, which rounds to 0 before it is."""
    good = stream.total - stream.bad
    bad_part = stream.bad * math.log(rate) if stream.bad else 0.0
    return bad_part + (good * math.log(rest) if good else 0.0)


def _most_likely_at(tried: Stream, standing: Stream, difference: float) -> float:
    """The largest log likelihood among rates that differ by just that much.

    It is concave along this line, so the root of its slope is bisected.
    """
    most = 1.0 - difference
    low, high = 0.0, most  # of the standing one's rate
    for _ in range(_STEPS):
        rate = (low + high) / 2.0
        slope = _slope(tried, rate + difference, most - rate) + _slope(standing, rate, 1.0 - rate)
        low, high = (rate, high) if slope > 0.0 else (low, rate)
    rate = (low + high) / 2.0
    return _log_likelihood(tried, rate + difference, most - rate) + _log_likelihood(
        standing, rate, 1.0 - rate
    )


def _slope(stream: Stream, rate: float, rest: float) -> float:
    return stream.bad / rate - (stream.total - stream.bad) / rest


SLOW_QUANTILE: Final = 0.9
SLOW_FROM: Final = 200
"""Queries of the standing arm from which it is taken what counts as slow."""


class Decision(StrEnum):
    """The decision on a trial."""

    GO_ON = "go-on"
    PROMOTE = "promote"
    ROLL_BACK = "roll-back"


@dataclass(slots=True)
class ArmTotals:
    """One arm's counts since the trial began; see ``ArmCounts``.

    Attributes:
        timed, slow: queries since it is known what is slow, and the slow ones of them.
    """

    queries: int = 0
    answered: int = 0
    failed: int = 0
    labelled: int = 0
    wrong: float = 0.0
    timed: int = 0
    slow: int = 0

    def add(self, counts: ArmCounts, slow_step: int | None) -> None:
        self.queries += counts.queries
        self.answered += counts.answered
        self.failed += counts.failed
        self.labelled += counts.labelled
        self.wrong += counts.wrong
        if slow_step is not None:
            in_time = sum(n for step, n in counts.latencies.items() if step <= slow_step)
            self.timed += counts.queries
            self.slow += counts.queries - in_time


@dataclass(slots=True)
class TrialEvidence:
    """All that is known of a trial: plain data, so that it can be kept and taken up again.

    Attributes:
        slow_step: above this step of latency a query is slow; None while it is not known.
        first: the standing arm's first latencies, by step, from which that is taken.
    """

    tried: ArmTotals = field(default_factory=ArmTotals)
    standing: ArmTotals = field(default_factory=ArmTotals)
    slow_step: int | None = None
    first: dict[int, int] = field(default_factory=dict)

    def add(self, counts: TrialCounts) -> None:
        """Add what a gateway counted.

        Slowness is learned from queries that are not judged by it, or the test would not hold.
        """
        self.tried.add(counts.tried, self.slow_step)
        self.standing.add(counts.standing, self.slow_step)
        if self.slow_step is None:
            for step, count in counts.standing.latencies.items():
                self.first[step] = self.first.get(step, 0) + count
            if sum(self.first.values()) >= SLOW_FROM:
                self.slow_step = _quantile_step(self.first)
                self.first = {}

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "first": {str(step): n for step, n in self.first.items()}}

    @classmethod
    def kept(cls, document: Mapping[str, Any] | None) -> TrialEvidence:
        """Return the evidence from what ``document`` gave; none yet where nothing was kept."""
        if document is None:
            return cls()
        return cls(
            ArmTotals(**document["tried"]),
            ArmTotals(**document["standing"]),
            document["slow_step"],
            {int(step): count for step, count in document["first"].items()},
        )


class Guard(NamedTuple):
    """One guard's figures.

    Attributes:
        name: ``errors``, ``accuracy`` or ``latency``.
        tried, standing: events, and the bad ones of them.
        tolerance: how much larger the tried one's rate may be.
    """

    name: str
    tried: Stream
    standing: Stream
    tolerance: float
    log_worse: float
    log_fine: float
    needed_worse: float
    needed_fine: float

    @property
    def is_worse(self) -> bool:
        """Whether the tried version is shown to be worse beyond the tolerance."""
        return self.log_worse >= self.needed_worse

    @property
    def is_fine(self) -> bool:
        """Whether it is shown not to be."""
        return self.log_fine >= self.needed_fine

    def document(self) -> dict[str, Any]:
        """As plain JSON; the last two are 100 where the evidence is as strong as needed."""
        return {
            "guard": self.name,
            "tried": {"count": self.tried.total, "bad": self.tried.bad},
            "standing": {"count": self.standing.total, "bad": self.standing.bad},
            "tolerance_percent": round(100.0 * self.tolerance, 6),
            "worse_percent": round(100.0 * max(self.log_worse / self.needed_worse, 0.0), 1),
            "fine_percent": round(100.0 * max(self.log_fine / self.needed_fine, 0.0), 1),
        }

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.tried.bad:.10g} of {self.tried.total} bad "
            f"({100.0 * self.tried.rate:.2f} %), against {self.standing.bad:.10g} of "
            f"{self.standing.total} ({100.0 * self.standing.rate:.2f} %)"
        )


class Verdict(NamedTuple):
    """The decision on a trial and its reason; ``guards`` are the figures behind it."""

    decision: Decision
    reason: str
    guards: tuple[Guard, ...]


def judge(trial: Trial, evidence: TrialEvidence, now_s: float) -> Verdict:
    """Decide on a trial.

    Args:
        now_s: seconds since the epoch, as ``trial.began_s``.
    """
    rules = trial.rules
    guards = tuple(_guards(trial, evidence))
    worse = [each for each in guards if each.is_worse]
    if worse:
        told = "; ".join(str(each) for each in worse)
        beyond = f"worse beyond the tolerance of {100 * worse[0].tolerance:g} points"
        return Verdict(Decision.ROLL_BACK, f"{beyond}: {told}", guards)
    tried = evidence.tried
    enough = tried.answered >= rules.min_queries and tried.labelled >= rules.min_labels
    open_guards = [
        each
        for each in guards
        if not each.is_fine
        and not (each.name == "accuracy" and _is_unasked(evidence, rules.min_labels))
    ]
    if enough and not open_guards:
        told = "; ".join(str(each) for each in guards if each.tried.total)
        return Verdict(Decision.PROMOTE, f"not worse beyond the tolerances: {told}", guards)
    if tried.answered >= rules.max_queries or now_s - trial.began_s >= rules.max_s:
        missing = ", ".join(each.name for each in open_guards) or "queries or labels"
        return Verdict(
            Decision.ROLL_BACK,
            f"undecided after {tried.answered} queries and {now_s - trial.began_s:.0f} s "
            f"(open: {missing}): the current version stays",
            guards,
        )
    waiting = ", ".join(each.name for each in open_guards) or "more queries or labels"
    return Verdict(Decision.GO_ON, f"not decided yet: {waiting}", guards)


def _guards(trial: Trial, evidence: TrialEvidence) -> Iterable[Guard]:
    rules = trial.rules
    one, other = evidence.tried, evidence.standing
    judged = (
        (
            "errors",
            rules.error_tolerance,
            Stream(one.answered + one.failed, one.failed),
            Stream(other.answered + other.failed, other.failed),
        ),
        (
            "accuracy",
            rules.accuracy_tolerance,
            Stream(one.labelled, one.wrong),
            Stream(other.labelled, other.wrong),
        ),
        (
            "latency",
            rules.latency_tolerance,
            Stream(one.timed, one.slow),
            Stream(other.timed, other.slow),
        ),
    )
    for name, tolerance, tried, standing in judged:
        found = weigh(tried, standing, tolerance)
        yield Guard(
            name,
            tried,
            standing,
            tolerance,
            found.log_worse,
            found.log_fine,
            needed_worse=math.log(len(judged) / rules.alpha),
            needed_fine=math.log(1.0 / rules.alpha),
        )


def _is_unasked(evidence: TrialEvidence, min_labels: int) -> bool:
    """Whether no feedback came, and none is required."""
    return min_labels == 0 and evidence.tried.labelled == evidence.standing.labelled == 0


def _quantile_step(counts: Mapping[int, int]) -> int:
    left = SLOW_QUANTILE * sum(counts.values())
    for step in sorted(counts):
        left -= counts[step]
        if left <= 1e-9:
            return step
    return max(counts)


def slow_above_s(evidence: TrialEvidence) -> float | None:
    """From which latency on a query counts as slow, seconds; None while it is not known."""
    return None if evidence.slow_step is None else step_s(evidence.slow_step)


def status_of(
    trial: Trial, evidence: TrialEvidence, now_s: float, verdict: Verdict | None = None
) -> dict[str, Any]:
    """Return the status of a trial, as plain JSON.

    Args:
        now_s: seconds since the epoch, as ``trial.began_s``.
        verdict: what was decided on it; judged anew where there is none.
    """
    verdict = verdict or judge(trial, evidence, now_s)
    return {
        "variant": trial.variant_id,
        "against": trial.against_id,
        "decision": verdict.decision.value,
        "reason": verdict.reason,
        "age_s": round(now_s - trial.began_s, 1),
        **figures_of(trial, evidence, verdict),
    }


def figures_of(trial: Trial, evidence: TrialEvidence, verdict: Verdict) -> dict[str, Any]:
    """The figures behind a verdict, as plain JSON: also what the history keeps of it."""
    slow_s = slow_above_s(evidence)
    return {
        "share": trial.share,
        "queries": {"tried": evidence.tried.queries, "standing": evidence.standing.queries},
        "slow_above_ms": None if slow_s is None else round(slow_s * 1e3, 3),
        "guards": [guard.document() for guard in verdict.guards],
    }
