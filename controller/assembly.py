"""Builds the dispatcher and the control machine, alike for serving and for replaying."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from modelless.controller.config import Settings
from modelless.controller.control.feedback import FeedbackRules
from modelless.controller.control.machine import DEFAULT_TIMES, Control, ControlTimes
from modelless.controller.control.messages import PoliciesChanged
from modelless.controller.control.planner import Planner
from modelless.controller.control.pool_moves import PlanLimits
from modelless.controller.control.pools import GATEWAYS
from modelless.controller.control.preload import Preloading
from modelless.controller.dispatch.dispatcher import Dispatcher
from modelless.controller.dispatch.exploration import Exploration
from modelless.controller.dispatch.limits import DispatchLimits
from modelless.controller.dispatch.messages import SelectionChanged
from modelless.controller.dispatch.ready_instances import ReadyInstances
from modelless.policies.advisory import Advisory, build_advisory
from modelless.policies.discovery import build_policy
from modelless.policies.seams import (
    EvictionPolicy,
    Forecaster,
    PlacementPolicy,
    ScalingPolicy,
    SelectionPolicy,
)
from modelless.policies.views import Pool
from modelless.variants.estimates import CostModel
from modelless.variants.vocabulary import DeviceClass, Variant

FIRST_START_S = 6.0
"""Time to start a worker before it was measured: Ray's part is 4 s on an idle machine."""


def build_dispatcher(
    settings: Settings,
    variants: Mapping[str, Variant],
    device_classes: Mapping[str, DeviceClass],
    cost_model: CostModel,
) -> Dispatcher:
    """A gateway's dispatcher.

    Raises:
        NotFoundError: no such policy.
        InvalidInputError: its settings do not fit.
    """
    limits = settings.limits
    selection, exploration, _, advisory = build_selection(settings)
    return Dispatcher(
        ReadyInstances(variants, device_classes, cost_model, limits.max_batch),
        selection,
        np.random.default_rng(settings.seed),
        DispatchLimits(max_queued=limits.max_queued, max_batch=limits.max_batch),
        exploration=exploration,
        advisory=advisory,
    )


def build_selection(settings: Settings) -> SelectionChanged:
    """A gateway's selection policy and exploration. Raises as ``build_dispatcher`` does."""
    share = settings.policies.explore
    return SelectionChanged(
        build_policy(SelectionPolicy, settings.policies.selection),
        Exploration(share, np.random.default_rng((settings.seed, 1))) if share else None,
        advisory=build_advisory(SelectionPolicy, settings.policies.advisory.selection),
    )


def build_changed(before: Settings, after: Settings) -> PoliciesChanged:
    """The planner's policies that differ between two settings. Raises as ``build_dispatcher``."""
    seams: dict[str, type[Any]] = {
        "scaling": ScalingPolicy,
        "placement": PlacementPolicy,
        "eviction": EvictionPolicy,
        "forecast": Forecaster,
    }
    wanted = {name: getattr(after.policies, name) for name in seams}
    beside = after.policies.advisory.scaling
    advisory: Advisory[ScalingPolicy] | None = None
    if beside != before.policies.advisory.scaling:
        advisory = build_advisory(ScalingPolicy, beside) or Advisory(None)  # type: ignore[type-abstract]
    return PoliciesChanged(advisory=advisory, **{
        name: build_policy(seams[name], specification)
        for name, specification in wanted.items()
        if specification != getattr(before.policies, name)
    })  # fmt: skip


def check_policies(settings: Settings) -> None:
    """Build every policy once, for nothing: a settings file is refused before anything starts.

    Raises as ``build_dispatcher`` does.
    """
    build_selection(settings)
    build_planner(settings, PlanLimits({}, {}))


def build_planner(settings: Settings, limits: PlanLimits, preload: Sequence[str] = ()) -> Planner:
    """The control loop's planner. Raises as ``build_dispatcher`` does."""
    policies = settings.policies
    return Planner(
        Preloading(build_policy(ScalingPolicy, policies.scaling), preload),  # type: ignore[type-abstract]
        build_policy(PlacementPolicy, policies.placement),  # type: ignore[type-abstract]
        build_policy(EvictionPolicy, policies.eviction),  # type: ignore[type-abstract]
        build_policy(Forecaster, policies.forecast),  # type: ignore[type-abstract]
        limits,
        build_advisory(ScalingPolicy, policies.advisory.scaling),  # type: ignore[type-abstract]
    )


def build_control(
    settings: Settings,
    device_classes: Iterable[str],
    preload: Sequence[str],
    began_s: float,
    times: ControlTimes = DEFAULT_TIMES,
) -> Control:
    """The control machine. Raises as ``build_dispatcher`` does.

    Args:
        device_classes: the names of those that there are.
    """
    return Control(
        build_planner(settings, limits_of(settings, device_classes), preload),
        pools_of(settings),
        {pool.device_class: pool.workers for pool in settings.pools},
        began_s,
        times,
        feedback=feedback_rules(settings),
    )


def feedback_rules(settings: Settings) -> FeedbackRules:
    """When feedback demotes a variant."""
    told = settings.feedback
    return FeedbackRules(told.demote, told.alpha, told.tolerance_points, told.retry_s)


def pools_of(settings: Settings) -> tuple[Pool, ...]:
    """The pools as policies see them: those of the settings, and the gateways' own devices."""
    pools = [
        Pool(
            pool.device_class,
            _sizes(pool.device_class, pool.sizes),
            pool.min_workers,
            pool.max_workers,
            pool.max_cores,
            FIRST_START_S,
        )
        for pool in settings.pools
    ]
    own = settings.gateways
    if own.device_class is not None:
        pools.append(Pool(GATEWAYS, _sizes(own.device_class, own.sizes), 0, 0))
    return tuple(pools)


def limits_of(settings: Settings, device_classes: Iterable[str]) -> PlanLimits:
    """The planner's bounds: no worker can be started of a class that has no pool."""
    limits = PlanLimits.of(pools_of(settings))
    none = dict.fromkeys(device_classes, 0)
    return replace(limits, max_workers={**none, **limits.max_workers})


def _sizes(first: str, others: tuple[str, ...]) -> tuple[str, ...]:
    return (first, *(size for size in others if size != first))
