"""How another selection policy would have done, estimated from receipts with propensities.

The other policy is asked about each query as the receipt has it: with the same limits and the same
candidates, estimates and waits. Where its choice is the one that was made, the outcome tells of it,
and counts the more the less probable the choice was: inverse propensity scores, self-normalised.
The doubly robust estimate takes what the estimates in the receipt promise of the other policy's
choice, and corrects it by how far outcomes were from that (Dudik, Langford and Li, ICML 2011).

Both tell how each query would have done if the other policy had chosen for it alone, and the system
had been as it was. A policy that serves all queries also changes what waits for whom; of that,
receipts alone tell nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import numpy as np

from modelless.common.errors import InvalidInputError
from modelless.policies.seams import SelectionPolicy
from modelless.policies.views import Bind, Candidates, Defer, FloatArray, QueryView
from modelless.variants.estimates import Estimates
from modelless.variants.vocabulary import Placement

FIGURES: Final = ("value", "attainment", "accuracy", "cost_usd")
"""Per query: the accuracy, 0 to 1, if it is in time and accurate enough, else 0; whether it is;
the accuracy of an answer, per cent; the price of the device time."""

_BLOCKS: Final = 20
_Z90, _Z99 = 1.2816, 2.3263
_KEYS: Final = ("scope", "latency_ms", "outcome", "arrived_at", "candidates")

_Sums = FloatArray
"""Shape (5,): value, attained, accuracy if answered, answered, cost; of a query or a mean."""


class Decision(NamedTuple):
    """A query, what was chosen for it at first, and what came of it.

    Attributes:
        variant_id, device_class, explored, propensity: see ``FirstChoice``.
        outcome: what came of it; see ``_Sums``.
        weight: number of queries that the receipt stands for.
    """

    query: QueryView
    candidates: Candidates
    variant_id: str
    device_class: str
    explored: bool
    propensity: float
    gateway: str
    outcome: _Sums
    weight: float


def read_decisions(receipts: Sequence[Mapping[str, Any]]) -> list[Decision]:
    """The decisions of receipts with propensities, in order of time.

    Raises:
        InvalidInputError: these are no receipts, or none has a propensity.
    """
    for key in _KEYS:
        if receipts and key not in receipts[0]:
            raise InvalidInputError.of("receipts", f"rows without {key!r}", "receipts of modelless")
    told = [each for each in receipts if each.get("first_choice") and each["candidates"]]
    told = [each for each in told if each["outcome"] != "cancelled" and each.get("weight") != 0.0]
    if not any(each["first_choice"]["explored"] for each in told):
        raise InvalidInputError.of(
            "receipts", f"{len(receipts)}, of which none is of a query whose placement was drawn",
            "receipts of a time with exploration",
            "Set policies.explore, e.g. to 0.02, in the settings of 'modelless up'.",
        )  # fmt: skip
    accuracies = {row["variant"]: row["accuracy"] for each in told for row in each["candidates"]}
    return sorted((_decision(each, accuracies) for each in told), key=lambda d: d.query.arrival_s)


def _decision(receipt: Mapping[str, Any], accuracies: Mapping[str, float]) -> Decision:
    first, rows = receipt["first_choice"], receipt["candidates"]
    arrival_s = datetime.fromisoformat(receipt["arrived_at"]).timestamp()
    now_s = arrival_s + first["after_ms"] / 1e3

    def column(name: str, scale: float = 1.0) -> FloatArray:
        values = [row[name] for row in rows]
        return np.array([math.inf if each is None else each * scale for each in values])

    p50_s, p99_s = column("p50_ms", 1e-3), column("p99_ms", 1e-3)
    with np.errstate(invalid="ignore"):  # p90 is not in a receipt
        p90_s = np.nan_to_num(p50_s + (p99_s - p50_s) * (_Z90 / _Z99), nan=math.inf)
    unknown = np.full(len(rows), math.inf)
    query = QueryView(
        query_id=int(receipt["query_id"]),
        scope=receipt["scope"],
        arrival_s=arrival_s,
        deadline_s=arrival_s + _or_inf(receipt["latency_ms"]) / 1e3,
        min_accuracy_percent=receipt["min_accuracy"],
        max_cost_usd=_or_inf(receipt["max_cost_usd"]),
        priority=receipt["priority"],
        items=receipt["items"],
        tenant=receipt["tenant"],
        serve_late=receipt["when_late"] == "serve",
        has_default_deadline=receipt["is_default_latency"],
        size=receipt["item_size"] or 0,
    )
    candidates = Candidates(
        tuple(Placement(row["variant"], row["device_class"]) for row in rows),
        column("accuracy"),
        column("cost_usd"),
        Estimates(p50_s, p90_s, p99_s, unknown, unknown),
        now_s + column("wait_ms", 1e-3),
        now_s,
    )
    outcome = np.zeros(5)
    if receipt["outcome"].startswith("served"):
        accuracy = accuracies.get(receipt["variant"], 0.0)
        good = receipt["outcome"] == "served" and accuracy >= query.min_accuracy_percent
        outcome[:] = good * accuracy / 100.0, good, accuracy, 1.0, receipt["cost_usd"]
    variant_id, device_class = first["variant"] or "", first["device_class"] or ""
    explored, propensity = first["explored"], first["propensity"]
    return Decision(
        query, candidates, variant_id, device_class, explored, propensity,
        receipt.get("gateway", ""), outcome, float(receipt.get("weight") or 1.0),
    )  # fmt: skip


def _or_inf(value: float | None) -> float:
    return math.inf if value is None else value


class Other(NamedTuple):
    """What another policy would have chosen for each of n decisions.

    Attributes:
        weight: number of queries that the decision stands for, shape (n,).
        binds, defers: whether it binds or defers the query, shape (n,); it refuses the others.
        match: 1 / propensity if that was chosen, else 0, shape (n,).
        promised: what the estimates promise of its choice, where it binds; shape (n, 5).
        missed: the outcome less what the estimates promised of what was chosen, shape (n, 5).
        outcome: shape (n, 5).
    """

    weight: FloatArray
    binds: FloatArray
    defers: FloatArray
    match: FloatArray
    promised: FloatArray
    missed: FloatArray
    outcome: FloatArray

    @property
    def matches(self) -> int:
        """Decisions that tell of a choice of the other policy."""
        return int(np.count_nonzero(self.match))


def ask_other(build: Callable[[], SelectionPolicy], decisions: Sequence[Decision]) -> Other:
    """Ask another policy about each decision, in order; one instance for each gateway.

    Where it defers a query, what the policy in charge did of its own accord counts as the same
    choice: no receipt tells what the other would have done later.

    Raises:
        InvalidInputError: the policy bound a query to a row that is not there.
    """
    policies: dict[str, SelectionPolicy] = {}
    rng = np.random.default_rng(0)
    rows = []
    for each in decisions:
        policy = policies.get(each.gateway) or policies.setdefault(each.gateway, build())
        choice = policy.on_arrival(each.query, each.candidates, rng)
        promised = missed = np.zeros(5)
        is_same = not each.explored and isinstance(choice, Defer)
        if isinstance(choice, Bind):
            placements = each.candidates.placements
            if not 0 <= choice.row < len(placements):
                raise InvalidInputError.of("policy", f"row {choice.row}", "a row of the candidates")
            variant_id, device_class = placements[choice.row]
            promised = _promise(each, int(choice.row))
            is_same = each.variant_id == variant_id
            is_same &= each.device_class in ("", device_class)
            if is_same:
                missed = each.outcome - promised
        match = is_same / each.propensity
        kind = isinstance(choice, Bind), isinstance(choice, Defer)
        rows.append((each.weight, *kind, match, promised, missed, each.outcome))
    return Other(*(np.array(column, dtype=np.float64) for column in zip(*rows, strict=True)))


def _promise(decision: Decision, row: int) -> _Sums:
    """What the estimates promise of a candidate, with normally distributed latencies."""
    query, candidates = decision.query, decision.candidates
    p50_s, p99_s = candidates.estimates.p50_s[row], candidates.estimates.p99_s[row]
    accuracy, in_time = candidates.accuracy_percent[row], 0.0
    if math.isfinite(p99_s + candidates.free_at_s[row]):
        left_s = query.deadline_s - candidates.free_at_s[row] - p50_s
        spread_s = max((p99_s - p50_s) / _Z99, 1e-6)
        in_time = 0.5 * math.erfc(-left_s / spread_s / math.sqrt(2.0))
    answered = 1.0 if query.serve_late else in_time
    good = in_time * (accuracy >= query.min_accuracy_percent)
    cost_usd = answered * candidates.cost_usd[row] if answered else 0.0
    return np.array((good * accuracy / 100.0, good, accuracy * answered, answered, cost_usd))


class Estimate(NamedTuple):
    """A figure and its standard error; ``figures`` are as ``FIGURES``, shape (4,)."""

    figures: FloatArray
    errors: FloatArray


def estimate(other: Other, *, doubly_robust: bool) -> Estimate:
    """How the other policy would have done, one decision at a time.

    The standard error is the jackknife's over blocks of time, so what nearby queries have in common
    counts (Kuensch, Annals of Statistics 1989). An event that is not among n matches may still
    happen, as often as once in n: a query that is not in time, or an answer that is refused and
    costs nothing.

    Args:
        doubly_robust: else it is the self-normalised inverse propensity score.
    """
    count = len(other.weight)
    block = np.arange(count) * _BLOCKS // count
    parts = [
        _figures(Other(*(column[block != each] for column in other)), doubly_robust)
        for each in np.unique(block)
    ]
    errors = np.sqrt((len(parts) - 1) * np.var(parts, axis=0)) if len(parts) > 1 else math.inf
    scores, whole = other.weight * other.match, _figures(other, doubly_robust)
    if not scores.any():
        return Estimate(whole, np.full(len(FIGURES), math.inf))
    most = scores.sum() ** 2 / (scores**2).sum()
    unseen = np.array((1.0, 1.0, 0.0, whole[3])) / most
    return Estimate(whole, np.hypot(errors, unseen))


def observe(decisions: Sequence[Decision]) -> FloatArray:
    """How the policy in charge did, exploration included; shape (4,)."""
    weights = [each.weight for each in decisions]
    return _ratios(np.average([each.outcome for each in decisions], axis=0, weights=weights))


def _figures(other: Other, doubly_robust: bool) -> FloatArray:
    total = np.zeros(5)
    for kind, is_modelled in ((other.binds, doubly_robust), (other.defers, False)):
        of_kind = other.weight * kind
        scores = of_kind * other.match
        values = other.missed if is_modelled else other.outcome
        if scores.sum() > 0.0:
            total += of_kind.sum() * (scores @ values) / scores.sum()
        if is_modelled:
            total += of_kind @ other.promised
    return _ratios(total / other.weight.sum())


def _ratios(sums: _Sums) -> FloatArray:
    value, attained, accuracy, answered, cost_usd = sums
    return np.array((value, attained, accuracy / answered if answered else math.nan, cost_usd))
