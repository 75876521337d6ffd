"""Policies: pure decisions of selection, batching, scaling, placement and eviction, and forecasts.

A policy derives from a seam, reads views, and returns decisions with a ``Reason``. The names below
are imported when they are first used. ``testing`` is the conformance kit, which needs pytest.

Examples:
    >>> from modelless.policies import Bind, Reason, Reject, SelectionPolicy
"""

if not __name__.startswith("modelless."):
    raise ImportError(
        f"'{__name__}' is a folder of modelless: import 'modelless.{__name__}' instead"
    )

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modelless.policies import testing
    from modelless.policies.reasons import CustomReason, Reason
    from modelless.policies.seams import (
        BatchingPolicy,
        Clairvoyant,
        EvictionPolicy,
        Forecaster,
        PlacementPolicy,
        ScalingPolicy,
        SelectionPolicy,
    )
    from modelless.policies.views import (
        Bind,
        Candidates,
        Choice,
        ClusterView,
        Defer,
        Demand,
        Instance,
        Pool,
        QueryView,
        QueueView,
        Reject,
        ResidentView,
        Run,
        Targets,
        VariantFacts,
        Wait,
        WorkerState,
        WorkerView,
    )

_SEAMS = (
    *("BatchingPolicy", "Clairvoyant", "EvictionPolicy", "Forecaster", "PlacementPolicy"),
    *("ScalingPolicy", "SelectionPolicy"),
)

__all__ = [
    "BatchingPolicy",
    "Bind",
    "Candidates",
    "Choice",
    "Clairvoyant",
    "ClusterView",
    "CustomReason",
    "Defer",
    "Demand",
    "EvictionPolicy",
    "Forecaster",
    "Instance",
    "PlacementPolicy",
    "Pool",
    "QueryView",
    "QueueView",
    "Reason",
    "Reject",
    "ResidentView",
    "Run",
    "ScalingPolicy",
    "SelectionPolicy",
    "Targets",
    "VariantFacts",
    "Wait",
    "WorkerState",
    "WorkerView",
    "testing",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "testing":
        return import_module(f"{__name__}.testing")
    home = "reasons" if name.endswith("Reason") else "seams" if name in _SEAMS else "views"
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
