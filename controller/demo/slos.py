"""Limits and loads that make sense on this machine, derived from its own profile.

A deadline of 10 ms is generous on one machine and impossible on another. So each comes from where
the variants on the latency-accuracy frontier lie here: just enough for this one, not for the next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from modelless.controller.demo.load import StepSpec
from modelless.controller.demo.profiles import frontier
from modelless.controller.usecases.client import parameters_of
from modelless.profiler.report import tradeoffs
from modelless.profiler.report.profiles import Profile
from modelless.variants.vocabulary import SLO, DeviceClass

LOOSE_MS = 1000.0
OVERHEAD_S = 0.001
"""A gateway's time for a query besides the engine's: parsing, deciding, replying."""

_ARRIVAL_S = 0.0002
"""From a query's arrival until its variant is chosen: this much of its deadline has gone by."""

_MOST_RUNGS = 5
_COST_RUNGS = 3
_COST_SLACK = 1.25
"""How far above the profile's median a cost may lie that a limit must still admit."""
_RUNG_STEP = 1.15
"""The next rung of the ladder of deadlines is at least so much slower than the one before."""
STEPS = (0.3, 0.8, 1.6, 0.5)
"""The offered load by quarter of the burst, as shares of the estimated capacity."""

SERVING_SHARE = 0.8
"""Of the cores; the proxy, Ray's daemons and the demo's client take the rest."""

MOST_PER_S = 800.0
"""No faster than this, however many cores there are: one client must keep up."""


@dataclass(frozen=True, slots=True)
class NamedSlo:
    """Limits with a name for people.

    Attributes:
        name: a few words, unique among those used together.
        is_feasible: False where a refusal is what must come.
    """

    name: str
    slo: SLO
    is_feasible: bool = True

    @property
    def limits(self) -> str:
        """``latency_ms 12, min_accuracy 75``; ``none`` without any."""
        said = parameters_of(self.slo)
        return ", ".join(f"{name} {value:.6g}" for name, value in said.items()) or "none"


def round_up(value: float, digits: int = 2) -> float:
    """The least number of ``digits`` significant digits that is not below ``value``."""
    if not value > 0.0:
        return 0.0
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(value)))
    return math.ceil(value * scale - 1e-9) / scale


def floor_of(percent: float) -> float:
    """A minimum accuracy that ``percent`` just meets: rounded down to a tenth."""
    tenth = round(percent * 10.0) / 10.0
    return tenth if tenth <= percent else math.floor(percent * 10.0 - 1e-6) / 10.0


def deadline_ladder(variants: Sequence[Profile]) -> list[float]:
    """Deadlines, ms ascending, each with room for another member of the frontier.

    Args:
        variants: of one task; at least one.
    """
    spaced: list[Profile] = []
    for member in frontier(variants):
        if not spaced or member.points[0].p99_s >= spaced[-1].points[0].p99_s * _RUNG_STEP:
            spaced.append(member)
    deadlines = []
    for place, member in enumerate(spaced[:-1] or spaced):
        above_s = spaced[place + 1].points[0].p99_s if place + 1 < len(spaced) else math.inf
        # Half-way to the next one, so that a little drift changes nothing.
        # The first one has nothing below it to fall back on, so it gets all the room there is.
        share = 0.5 if place else 0.65
        p99_s = member.points[0].p99_s
        middle_s = p99_s * min((above_s / p99_s) ** share, 1.5)
        deadlines.append(round_up((middle_s + _ARRIVAL_S) * 1e3, 3))
    return spread(sorted(set(deadlines)), _MOST_RUNGS)


def cost_ladder(variants: Sequence[Profile], device_class: DeviceClass, batch: int) -> list[float]:
    """Limits on cost, USD ascending, each with room for another variant.

    Cost goes by the median, deadlines by the p99: where the machine was noisy these are two orders.

    Args:
        variants: of one task; at least one.
        device_class: what they run on, for its price.
    """
    members = tradeoffs.frontier(
        variants, lambda v: (v.points[0].p50_s, v.variant.accuracy.percent)
    )
    limits = {_cost_usd(member, device_class, batch) for member in members}
    return spread(sorted(limits), _COST_RUNGS + 1)


def spread(values: Sequence[float], most: int) -> list[float]:
    """``most`` of the values, evenly chosen, the first and the last among them; all if they fit."""
    if len(values) <= most:
        return list(values)
    step = (len(values) - 1) / (most - 1)
    return [values[round(step * place)] for place in range(most)]


def photo_slos(variants: Sequence[Profile], device_class: DeviceClass) -> tuple[NamedSlo, ...]:
    """The limits under which every photo is asked about: loose, tight, accurate, cheap, impossible.

    Args:
        variants: of one task, with their profile; at least one.
        device_class: what they run on, for its price.
    """
    members = frontier(variants)
    fastest, best, second = members[0], members[-1], members[-2:][0]
    best_floor = floor_of(best.variant.accuracy.percent)
    second_floor = floor_of(second.variant.accuracy.percent)
    loose_ms = max(LOOSE_MS, round_up(20e3 * best.points[0].p99_s))
    tight_ms = round_up(1.3e3 * (second.points[0].p99_s + OVERHEAD_S))
    instant_ms = min(0.1, round_up(100.0 * fastest.points[0].p50_s, 1))
    too_soon_ms = 300.0 * best.points[0].p50_s
    costs_usd = cost_ladder(variants, device_class, 1)
    chosen = [
        NamedSlo("no limits", SLO()),
        NamedSlo("loose", SLO(latency_ms=loose_ms)),
        *(
            NamedSlo(f"within {deadline_ms:g} ms", SLO(latency_ms=deadline_ms))
            for deadline_ms in deadline_ladder(variants)
        ),
        NamedSlo("accurate", SLO(latency_ms=loose_ms, min_accuracy=best_floor)),
        NamedSlo("accurate and tight", SLO(latency_ms=tight_ms, min_accuracy=second_floor)),
        *(
            NamedSlo(name, SLO(max_cost_usd=cost_usd))
            for name, cost_usd in zip(("cheapest", "cheap", "not dear"), costs_usd, strict=False)
        ),
        NamedSlo("impossibly accurate", SLO(min_accuracy=99.0), is_feasible=False),
        NamedSlo("impossibly quick", SLO(latency_ms=instant_ms), is_feasible=False),
    ]
    if min(member.points[0].p50_s for member in variants) * 1e3 < too_soon_ms:
        limits = SLO(latency_ms=round_up(too_soon_ms, 3), min_accuracy=best_floor)
        chosen.append(NamedSlo("impossible together", limits, is_feasible=False))
    return tuple(chosen)


def cost_slos(
    variants: Sequence[Profile], device_class: DeviceClass, batch: int
) -> tuple[NamedSlo, ...]:
    """Limits on cost, for variants that are all far quicker than any deadline; none first.

    Args:
        device_class: what they run on, for its price.
    """
    limits = cost_ladder(variants, device_class, batch)[:_COST_RUNGS][::-1]
    capped = [
        NamedSlo(name, SLO(max_cost_usd=usd))
        for name, usd in zip(("not dear", "cheap", "cheapest"), limits, strict=False)
    ]
    return (NamedSlo("no limits", SLO()), *capped)


def _cost_usd(member: Profile, device_class: DeviceClass, batch: int) -> float:
    """A limit that ``member`` meets with a little to spare, as cost goes by the median."""
    point = [p for p in member.points if p.batch <= batch or p is member.points[0]][-1]
    busy_s = point.p50_s * batch / point.batch
    return round_up(device_class.cost_usd(busy_s) * _COST_SLACK, 3)


def best_within(variants: Sequence[Profile], slo: SLO, price_usd_per_s: float) -> Profile | None:
    """The choice of an idle system: the most accurate variant within all limits, or None."""

    def is_feasible(member: Profile) -> bool:
        point, percent = member.points[0], member.variant.accuracy.percent
        return (
            (slo.latency_ms is None or point.p99_s * 1e3 <= slo.latency_ms)
            and (slo.min_accuracy is None or percent >= slo.min_accuracy)
            and (slo.max_cost_usd is None or point.p50_s * price_usd_per_s <= slo.max_cost_usd)
        )

    return max(
        filter(is_feasible, variants),
        key=lambda member: (member.variant.accuracy.percent, -member.points[0].p99_s),
        default=None,
    )


@dataclass(frozen=True, slots=True)
class MixPart:
    """One kind of queries in the mix.

    Attributes:
        weight: its share of all queries, 0 to 1.
    """

    named: NamedSlo
    task: str
    weight: float


def burst_mix(
    photos: Sequence[Profile], device_class: DeviceClass, clothes_task: str
) -> list[MixPart]:
    """The burst's queries: for people who wait, for care, for haste and for thrift; and clothes.

    Args:
        device_class: what they run on, for its price.
        clothes_task: asked about under the tightest deadline of the photos.
    """
    members = frontier(photos)
    best, middle, second = members[-1], members[len(members) // 2], members[-2:][0]
    cap_usd = round_up(device_class.cost_usd(1.2 * middle.points[0].p50_s), 3)
    floor = floor_of(second.variant.accuracy.percent)
    quick = SLO(_deadline_ms(best, 2.5))
    task = best.variant.task
    parts = (
        ("interactive", task, 0.35, SLO(_deadline_ms(best, 3.5))),
        ("accurate", task, 0.15, SLO(_deadline_ms(best, 4.0), min_accuracy=floor)),
        ("quick", task, 0.15, quick),
        ("thrifty", task, 0.15, SLO(_deadline_ms(best, 3.5), max_cost_usd=cap_usd)),
        ("clothes", clothes_task, 0.20, quick),
    )
    return [MixPart(NamedSlo(name, slo), task, weight) for name, task, weight, slo in parts]


def _deadline_ms(best: Profile, times: float) -> float:
    """So many times what the most accurate variant takes, a p99 that noise drew out left aside."""
    slow_s = min(best.points[0].p99_s, 1.5 * best.points[0].p50_s) + OVERHEAD_S
    return round_up(times * slow_s * 1e3)


def estimate_service_s(
    mix: Sequence[MixPart], by_task: Mapping[str, Sequence[Profile]], device_class: DeviceClass
) -> float:
    """A query's device time and overhead, on average, if each gets what an idle system gives it.

    Args:
        mix: what is asked for; the weights add up to 1.
    """
    mean_s = 0.0
    for part in mix:
        variants = by_task[part.task]
        fastest = frontier(variants)[0]
        chosen = best_within(variants, part.named.slo, device_class.cost_usd(1.0)) or fastest
        mean_s += part.weight * (chosen.points[0].mean_s + OVERHEAD_S)
    return mean_s


def capacity_per_s(gateways: int, mean_service_s: float) -> float:
    """Queries a second that the gateways, one a core, serve without stepping down."""
    return SERVING_SHARE * gateways / mean_service_s


def plan_steps(per_s: float, seconds: float) -> list[StepSpec]:
    """The offered load: ``STEPS`` of a capacity, each for an equal part of ``seconds``."""
    scale = min(1.0, MOST_PER_S / (per_s * max(STEPS)))
    return [StepSpec(seconds=seconds / len(STEPS), per_s=per_s * share * scale) for share in STEPS]
