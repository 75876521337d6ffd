"""Builds the dispatcher and the planner from settings, alike for serving and for replaying."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from modelless.controller.config import Settings
from modelless.controller.control.planner import Planner
from modelless.controller.control.pool_moves import PlanLimits
from modelless.controller.control.preload import Preloading
from modelless.controller.dispatch.dispatcher import Dispatcher
from modelless.controller.dispatch.instances import ReadyInstances
from modelless.controller.dispatch.limits import DispatchLimits
from modelless.policies.discovery import build_policy
from modelless.policies.seams import (
    EvictionPolicy,
    Forecaster,
    PlacementPolicy,
    ScalingPolicy,
    SelectionPolicy,
)
from modelless.variants.estimates import CostModel
from modelless.variants.vocabulary import DeviceClass, Variant


def build_dispatcher(
    settings: Settings,
    variants: Mapping[str, Variant],
    device_classes: Mapping[str, DeviceClass],
    cost_model: CostModel,
) -> Dispatcher:
    """A gateway's dispatcher.

    Args:
        settings: policies, bounds and seed.
        variants, device_classes, cost_model: as for ``ReadyInstances``.

    Raises:
        NotFoundError: no such policy.
        InvalidInputError: its settings do not fit.
    """
    limits = settings.limits
    return Dispatcher(
        ReadyInstances(variants, device_classes, cost_model, limits.max_batch),
        build_policy(SelectionPolicy, settings.policies.selection),
        np.random.default_rng(settings.seed),
        DispatchLimits(max_queued=limits.max_queued, max_batch=limits.max_batch),
    )


def check_policies(settings: Settings) -> None:
    """Build every policy once, for nothing: a settings file is refused before anything starts.

    Raises as ``build_dispatcher`` does.
    """
    build_policy(SelectionPolicy, settings.policies.selection)
    build_planner(settings, PlanLimits({}, {}))


def build_planner(settings: Settings, limits: PlanLimits, preload: Sequence[str] = ()) -> Planner:
    """The control loop's planner. Raises as ``build_dispatcher`` does.

    Args:
        settings: policies.
        limits: of its pools.
        preload: scopes to load before anybody asks.
    """
    policies = settings.policies
    return Planner(
        Preloading(build_policy(ScalingPolicy, policies.scaling), preload),  # type: ignore[type-abstract]
        build_policy(PlacementPolicy, policies.placement),  # type: ignore[type-abstract]
        build_policy(EvictionPolicy, policies.eviction),  # type: ignore[type-abstract]
        build_policy(Forecaster, policies.forecast),  # type: ignore[type-abstract]
        limits,
    )
