"""Finding a policy: by name, by ``module:attr``, or by an entry point; its settings from YAML.

A specification is a name, or a mapping whose ``policy`` is the name and whose other keys are the
settings, which are the keyword arguments of the policy's ``__init__``. They are checked by name and
by their annotation: scalars strictly, and what cannot be read is left alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

from modelless.common.errors import (
    FOREIGN_ERRORS,
    InvalidInputError,
    ModellessError,
    did_you_mean,
)
from modelless.common.plugins import Plugins
from modelless.policies.policy_settings import misfits, settings_of, takes_any, told
from modelless.policies.seams import (
    BatchingPolicy,
    Clairvoyant,
    EvictionPolicy,
    Forecaster,
    PlacementPolicy,
    ScalingPolicy,
    SelectionPolicy,
)

GROUP = "modelless.policies"

_HOME = "modelless.policies"
BUILT_IN: Mapping[type, Mapping[str, str]] = {
    SelectionPolicy: {
        "best-value": f"{_HOME}.selection.best_value.best_value:BestValue",
        "cheapest-feasible": f"{_HOME}.selection.cheapest_feasible:CheapestFeasible",
        "clipper": f"{_HOME}.selection.clipper:Clipper",
        "clockwork": f"{_HOME}.selection.clockwork:Clockwork",
        "infaas": f"{_HOME}.selection.infaas:Infaas",
        "least-laxity": f"{_HOME}.selection.least_laxity:LeastLaxity",
        "model-switching": f"{_HOME}.selection.model_switching:ModelSwitching",
        "most-accurate-feasible": f"{_HOME}.selection.most_accurate_feasible:MostAccurateFeasible",
        "multi-factor": f"{_HOME}.selection.multi_factor:MultiFactor",
        "planned-shares": f"{_HOME}.selection.planned_shares:PlannedShares",
        "predicted-latency": f"{_HOME}.selection.predicted_latency:PredictedLatency",
        "random": f"{_HOME}.selection.uniform_random:UniformRandom",
        "round-robin": f"{_HOME}.selection.round_robin:RoundRobin",
        "route-balance": f"{_HOME}.selection.route_balance:RouteBalance",
        "slack-fit": f"{_HOME}.selection.slack_fit:SlackFit",
        "static": f"{_HOME}.selection.static:Static",
    },
    BatchingPolicy: {
        "aimd": f"{_HOME}.batching.additive_increase:AdditiveIncrease",
        "earliest-deadline-first": (
            f"{_HOME}.batching.earliest_deadline_first:EarliestDeadlineFirst"
        ),
        "nexus": f"{_HOME}.batching.nexus:Nexus",
        "proteus-batching": f"{_HOME}.batching.proteus:ProteusBatching",
    },
    ScalingPolicy: {
        "expected-value": f"{_HOME}.scaling.expected_value.expected_value:ExpectedValue",
        "fixed": f"{_HOME}.scaling.fixed:Fixed",
        "infaas-autoscaler": f"{_HOME}.scaling.infaas:InfaasScaling",
        "infadapter": f"{_HOME}.scaling.infadapter:InfAdapter",
        "on-demand": f"{_HOME}.scaling.on_demand:OnDemand",
        "one-variant": f"{_HOME}.scaling.one_variant:OneVariant",
        "ongoing-requests": f"{_HOME}.scaling.ongoing_requests:OngoingRequests",
        "predictive": f"{_HOME}.scaling.predictive:Predictive",
        "proteus": f"{_HOME}.scaling.proteus:Proteus",
        "unserved-demand": f"{_HOME}.scaling.unserved_demand:UnservedDemand",
        "workload-variant": f"{_HOME}.scaling.workload_variant:WorkloadVariantAutoscaler",
    },
    PlacementPolicy: {
        "least-utilised": f"{_HOME}.placement.least_utilised:LeastUtilised",
        "most-free-memory": f"{_HOME}.placement.most_free_memory:MostFreeMemory",
        "room-to-load": f"{_HOME}.placement.room_to_load:RoomToLoad",
    },
    EvictionPolicy: {
        "belady": f"{_HOME}.eviction.belady:Belady",
        "demand-driven": f"{_HOME}.eviction.demand_driven:DemandDriven",
        "gdsf": f"{_HOME}.eviction.greedy_dual:GreedyDualSizeFrequency",
        "lemonade": f"{_HOME}.eviction.lemonade:Lemonade",
        "lfu": f"{_HOME}.eviction.least_frequently_used:LeastFrequentlyUsed",
        "lru": f"{_HOME}.eviction.least_recently_used:LeastRecentlyUsed",
        "miss-cost": f"{_HOME}.eviction.miss_cost:MissCost",
        "modelmesh": f"{_HOME}.eviction.modelmesh:ModelMesh",
    },
    Forecaster: {
        "ewma": f"{_HOME}.forecast.ewma:Ewma",
        "holt-winters": f"{_HOME}.forecast.holt_winters:HoltWinters",
        "lag-quantile": f"{_HOME}.forecast.lag_quantile:LagQuantile",
        "last-value": f"{_HOME}.forecast.last_value:LastValue",
        "recurring": f"{_HOME}.forecast.recurring:Recurring",
    },
}

POLICIES: Mapping[type, Plugins] = {
    seam: Plugins(seam.__name__, names, group=GROUP, takes_paths=True)
    for seam, names in BUILT_IN.items()
}
"""The policies of each seam. All seams share the group of entry points."""

_DEFAULT_BATCHING = "earliest-deadline-first"

Seam = TypeVar("Seam")


def find_policy(seam: type[Seam], name: str) -> type[Seam]:
    """The policy class called ``name`` that fits ``seam``.

    Raises:
        NotFoundError: nothing of that name; says what there is.
        InvalidInputError: it is there, but is no policy of this seam.
    """
    others = (each for each in POLICIES.values() if name in each.built_in)
    known = POLICIES[seam] if name in POLICIES[seam].built_in else next(others, POLICIES[seam])
    found: type[Seam] = known.find_class(name, seam)
    return found


def build_policy(
    seam: type[Seam], specification: str | Mapping[str, Any], *, clairvoyant: bool = False
) -> Seam:
    """The policy a specification describes, with its settings; see the module's docstring.

    A policy that takes a ``batching`` policy gets the one its settings describe; if it cannot do
    without and they describe none, ``earliest-deadline-first``.

    Args:
        seam: what it is for.
        specification: its name and settings.
        clairvoyant: policies that must be told the future are built, too.

    Raises:
        NotFoundError: no such policy.
        InvalidInputError: a setting it does not have, or a value it does not take; or a policy that
            must be told the future.
    """
    if isinstance(specification, str):
        specification = {"policy": specification}
    if not isinstance(specification, Mapping):
        raise InvalidInputError.of(
            "policy", specification, "a name, or a mapping of 'policy' and its settings"
        )
    settings = dict(specification)
    name = settings.pop("policy", None)
    if not isinstance(name, str):
        raise InvalidInputError.of(
            "policy", name, "the name of a policy", f"There are: {', '.join(POLICIES[seam])}."
        )
    policy = find_policy(seam, name)
    if issubclass(policy, Clairvoyant) and not clairvoyant:
        raise InvalidInputError.of(
            "policy",
            name,
            "a policy that does without knowing the future",
            "Only 'modelless simulate' can reveal all arrivals to it.",
        )
    known = settings_of(policy)
    for key in settings:
        if key not in known and not takes_any(policy):
            allowed = f"the settings {told(policy)}"
            raise InvalidInputError.of(
                f"{name}.{key}", settings[key], allowed, did_you_mean(str(key), known)
            )
    if "batching" in known:
        if "batching" in settings:
            settings["batching"] = build_policy(
                BatchingPolicy,  # type: ignore[type-abstract]
                settings["batching"],
                clairvoyant=clairvoyant,
            )
        elif known["batching"].default is inspect.Parameter.empty:
            settings["batching"] = build_policy(BatchingPolicy, _DEFAULT_BATCHING)  # type: ignore[type-abstract]
    if inspect.isabstract(policy):
        missing = ", ".join(sorted(getattr(policy, "__abstractmethods__", ())))
        raise InvalidInputError(f"{name}: {policy.__qualname__} is abstract: define {missing}")
    for key, parameter in known.items():
        if parameter.default is inspect.Parameter.empty and key not in settings:
            raise InvalidInputError(
                f"{name}.{key}: got nothing; it must be given. Its settings: {told(policy)}"
            )
    return _built(policy, name, settings)


def _built(policy: type[Seam], name: str, settings: Mapping[str, Any]) -> Seam:
    """Of settings that it has; whatever is wrong with their values, the policy is named with it."""
    problem = misfits(policy, settings)
    if problem:
        problem = f"{problem}. Its settings: {told(policy)}"
        raise InvalidInputError(_behind(name, settings, problem))
    try:
        return policy(**settings)
    except InvalidInputError as error:
        raise InvalidInputError(_behind(name, settings, str(error))) from error
    except ModellessError:
        raise
    except (TypeError, ValueError) as error:
        said = f"its settings do not fit: {error}. Its settings: {told(policy)}"
        raise InvalidInputError(f"{name}: {said}") from error
    except FOREIGN_ERRORS as error:  # whatever somebody else's class raises is told
        said = f"{type(error).__name__}: {error}"
        raise InvalidInputError(f"{name}: it cannot be built: {said}") from error


def _behind(name: str, settings: Mapping[str, Any], message: str) -> str:
    """A message behind the policy's name: ``name.setting: ...`` if it is of a setting."""
    of_setting = message.startswith(tuple(f"{key}{end}" for key in settings for end in ":."))
    return f"{name}{'.' if of_setting else ': '}{message}"
