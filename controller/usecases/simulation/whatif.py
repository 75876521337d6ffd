"""How another selection policy would have done, from receipts and from the simulator."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.special import stdtrit

from modelless.common.errors import InvalidInputError
from modelless.common.parquet import import_pyarrow
from modelless.controller.config import PolicySpecification
from modelless.controller.dispatch.receipts import Receipt
from modelless.controller.history.off_policy import (
    FIGURES,
    Estimate,
    ask_other,
    estimate,
    observe,
    read_decisions,
)
from modelless.controller.history.receipts import receipt_document
from modelless.controller.sim.run import simulate
from modelless.controller.sim.worlds.world import WorldFile
from modelless.controller.usecases.decisions import list_receipts
from modelless.controller.usecases.home import AnyPath, Home, home_folder
from modelless.controller.usecases.progress import Progress, Step, ignore
from modelless.controller.usecases.simulation.simulating import World, read_world
from modelless.policies.discovery import build_policy
from modelless.policies.seams import SelectionPolicy
from modelless.policies.views import FloatArray

_MOST_RECEIPTS: Final = 1_000_000
_LEVEL: Final = 0.95
_FREEDOM: Final = 19.0  # of the jackknife over 20 blocks
_BOUNDS: Final = dict(zip(FIGURES, ((0, 1), (0, 1), (0, 100), (0, math.inf)), strict=True))


@dataclass(frozen=True, slots=True)
class Figure:
    """An estimate; ``low`` to ``high`` holds the truth with a probability of 95 %.

    None is unknown, as where nothing would have been answered; of ``high`` it also is no bound.
    """

    value: float | None
    low: float | None
    high: float | None


Ratios = Mapping[tuple[str, str], float]
"""What batches really take over what they take in the simulator, by variant and device class."""

Figures = Mapping[str, Figure]
"""By ``value``, ``attainment``, ``accuracy`` and ``cost_usd``: see ``off_policy.FIGURES``."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """How another policy would have done.

    Attributes:
        policy: the other policy.
        queries, explored: decisions in the receipts, and those whose placement was drawn.
        matches: decisions that are those of the other policy; the estimates stand on these.
        defers: share of the queries that the other policy would have deferred.
        observed: how the policy in charge did.
        propensity, doubly_robust: had it chosen for each query alone; see ``off_policy``.
        in_full: had it chosen for all queries; None without a world.
    """

    policy: PolicySpecification
    queries: int
    explored: int
    matches: int
    defers: float
    observed: Mapping[str, float]
    propensity: Figures
    doubly_robust: Figures
    in_full: Figures | None

    def document(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def whatif(
    *policies: PolicySpecification,
    receipts: AnyPath | Sequence[Mapping[str, Any]] | None = None,
    world: World | None = None,
    runs: int = 5,
    since: datetime | None = None,
    home: Home = None,
    on_progress: Progress = ignore,
) -> list[WhatIf]:
    """Estimate from receipts how other selection policies would have done, each by itself.

    The receipts are of a time with exploration (``policies.explore`` in the settings). They tell
    how each query would have done had the other policy chosen for it alone. A world adds how all
    would have done: the simulator, in runs of both policies, tells what decisions do to each other.
    Its latencies are corrected by those of the receipts first.

    Args:
        policies: selection policies, by name or with their settings: ``{"policy": ..., ...}``.
        receipts: of ``modelless receipts``, or the Parquet file that it writes; default: those of
            this machine.
        world: the system that the receipts are of, with the policies in charge: a world file or its
            content; ``modelless replay --as-world`` writes one of a recording.
        runs: of each policy in the world.
        since: of this machine's, only those from then on.
        home: of these, and of the store for a world's tasks.
        on_progress: receives the progress.

    Raises:
        InvalidInputError: no receipt has a propensity, or the world has no exploration.
        NotFoundError: no such policy.

    Examples:
        >>> (found,) = modelless.whatif("infaas", receipts="day.parquet")  # doctest: +SKIP
        >>> found.doubly_robust["attainment"]  # doctest: +SKIP
        Figure(value=0.94, low=0.91, high=0.97)
    """
    builders = [partial(build_policy, SelectionPolicy, each) for each in policies]
    for build in builders:
        build()
    file = None if world is None else read_world(world)
    if file is not None and not file.world.policies.explore:
        raise InvalidInputError.of(
            "world: policies.explore", 0, "the share with which the receipts were made"
        )
    if runs < 2:
        raise InvalidInputError.of("runs", runs, "2 or more, for an interval")
    if receipts is None:
        receipts = list_receipts(since=since, most=_MOST_RECEIPTS, home=home)
    elif isinstance(receipts, str | Path):
        receipts = _read_parquet(Path(receipts))
    decisions = read_decisions(receipts)
    others = [ask_other(build, decisions) for build in builders]
    alone = [estimate(other, doubly_robust=True) for other in others]
    in_full: list[Figures | None] = [None] * len(others)
    if file is not None:
        simulated = _simulate(
            file, receipts, policies, builders, runs, home_folder(home), on_progress
        )
        in_full = [_in_full(own, *each) for own, each in zip(alone, simulated, strict=True)]
    observed = dict(zip(FIGURES, observe(decisions).tolist(), strict=True))
    explored = sum(each.explored for each in decisions)
    return [
        WhatIf(
            policy=policy,
            queries=len(decisions),
            explored=explored,
            matches=other.matches,
            defers=float(np.average(other.defers, weights=other.weight)),
            observed=observed,
            propensity=_intervals(*estimate(other, doubly_robust=False)),
            doubly_robust=_intervals(*own),
            in_full=full,
        )
        for policy, other, own, full in zip(policies, others, alone, in_full, strict=True)
    ]


def with_policy(file: WorldFile, policy: PolicySpecification) -> WorldFile:
    """The world with another selection policy, and without exploration."""
    changes = {"selection": policy, "explore": 0.0}
    policies = file.world.policies.model_copy(update=changes)
    return WorldFile(file.world.model_copy(update={"policies": policies}), file.folder)


def simulated_receipts(
    file: WorldFile,
    *,
    seed: int | None = None,
    home: Path | None = None,
    ratios: Ratios | None = None,
) -> list[dict[str, Any]]:
    """The receipts of all queries of a simulated run."""
    kept: list[Receipt] = []
    simulate(file, seed=seed, home=home, receipts=kept, true_ratios=ratios)
    return [receipt_document("simulated", each, 0.0, 0.0) for each in kept]


def true_figures(
    file: WorldFile,
    *,
    seed: int | None = None,
    home: Path | None = None,
    ratios: Ratios | None = None,
) -> FloatArray:
    """What comes of a simulated run; see ``off_policy.FIGURES``."""
    total = simulate(file, seed=seed, home=home, true_ratios=ratios).total
    each = max(total.queries, 1)
    return np.array((
        total.value / each, total.good / each, total.accuracy / max(total.answered, 1),
        total.cost_usd / each,
    ))  # fmt: skip


def find_ratios(
    real: Sequence[Mapping[str, Any]], simulated: Sequence[Mapping[str, Any]]
) -> Ratios:
    """How much longer batches took than simulated ones of as many items: the medians' ratio."""
    found, other = _batch_logs(real), _batch_logs(simulated)
    logs: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
    for (variant_id, device_class, items), took in found.items():
        if theirs := other.get((variant_id, device_class, items)):
            log = _median(took) - _median(theirs)
            logs[variant_id, device_class].append((log, min(len(took), len(theirs))))
    return {
        placement: math.exp(sum(log * n for log, n in each) / sum(n for _, n in each))
        for placement, each in logs.items()
    }


_Logs = dict[tuple[str, str, int], list[tuple[float, float]]]


def _batch_logs(receipts: Sequence[Mapping[str, Any]]) -> _Logs:
    """Logarithms of the times of batches, by variant, device class and items, with weights."""
    logs: _Logs = defaultdict(list)
    for each in receipts:
        if each["outcome"].startswith("served"):
            took_ms = each["observed_latency_ms"] - each["waited_ms"]
            key = each["variant"], each["device_class"], each["batch_items"]
            weight = 1.0 if each.get("weight") is None else each["weight"]
            logs[key].append((math.log(max(took_ms, 1e-3)), weight))
    return logs


def _median(logs: Sequence[tuple[float, float]]) -> float:
    values, weights = np.array(logs).T
    return float(np.quantile(values, 0.5, weights=weights, method="inverted_cdf"))


def _simulate(
    file: WorldFile,
    receipts: Sequence[Mapping[str, Any]],
    policies: Sequence[PolicySpecification],
    builders: Sequence[Callable[[], SelectionPolicy]],
    runs: int,
    home: Path,
    on_progress: Progress,
) -> list[tuple[FloatArray, FloatArray]]:
    """For each policy, its receipts-only estimate and what came of it, a row a run.

    Batches take as long as the receipts have it.
    """
    ratios = find_ratios(receipts, simulated_receipts(file, home=home))
    alone: list[list[FloatArray]] = [[] for _ in policies]
    in_full: list[list[FloatArray]] = [[] for _ in policies]
    for number in range(runs):
        on_progress(Step("simulating, runs", number, runs, file.world.name))
        seed = file.world.seed + 1 + number
        decisions = read_decisions(simulated_receipts(file, seed=seed, home=home, ratios=ratios))
        for place, policy in enumerate(policies):
            other = ask_other(builders[place], decisions)
            alone[place].append(estimate(other, doubly_robust=True).figures)
            changed = with_policy(file, policy)
            in_full[place].append(true_figures(changed, seed=seed, home=home, ratios=ratios))
    return [(np.array(one), np.array(all_)) for one, all_ in zip(alone, in_full, strict=True)]


def _in_full(own: Estimate, alone: FloatArray, in_full: FloatArray) -> Figures:
    """The estimate from the receipts, plus what such an estimate misses in the simulator.

    The interval is for a run that might have been, so the spread of simulated runs is part of it.
    """
    missed, runs = in_full - alone, len(alone)
    spread = missed.var(axis=0, ddof=1) / runs + in_full.var(axis=0, ddof=1)
    total = own.errors**2 + spread
    # Welch and Satterthwaite: how many degrees of freedom the sum has.
    parts = own.errors**4 / _FREEDOM + spread**2 / (runs - 1)
    freedom = np.divide(total**2, parts, out=np.full_like(total, _FREEDOM), where=parts > 0.0)
    return _intervals(own.figures + missed.mean(axis=0), np.sqrt(total), freedom)


def _intervals(
    figures: FloatArray, errors: FloatArray, freedom: FloatArray | float = _FREEDOM
) -> Figures:
    half = stdtrit(freedom, 0.5 + _LEVEL / 2.0) * errors
    found = {}
    for name, value, width in zip(FIGURES, figures.tolist(), half.tolist(), strict=True):
        ends = np.clip((value, value - width, value + width), *_BOUNDS[name])
        found[name] = Figure(*(each if math.isfinite(each) else None for each in ends.tolist()))
    return found


def _read_parquet(file: Path) -> list[dict[str, Any]]:
    _, parquet = import_pyarrow()
    try:
        rows: list[dict[str, Any]] = parquet.read_table(file).to_pylist()
    except (OSError, ValueError) as error:
        allowed = "a file that 'modelless receipts --output' wrote"
        raise InvalidInputError.of("receipts", str(file), allowed, str(error)) from None
    return rows
