"""How much placements slow each other down on one host, from a few pairs that ran together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from modelless.common.errors import InvalidInputError
from modelless.profiler.measure.measurement import Measurement
from modelless.variants.vocabulary import Placement


class Bottleneck(StrEnum):
    """The resource that limits a placement: the ends of the roofline (Williams et al., 2009)."""

    COMPUTE_BOUND = "compute-bound"
    MEMORY_BOUND = "memory-bound"


@dataclass(frozen=True, slots=True)
class PairRun:
    """One placement, measured alone and then beside a neighbour that ran all the time.

    Attributes:
        placement, kind: the measured placement and its bottleneck.
        neighbour, neighbour_kind: the placement beside it and its bottleneck.
        alone_s, beside_s: median latency of one item, seconds.
        repeats: timed runs of the median that has fewer.
        trusted: whether nothing but the neighbour disturbed the measurement.
        measured_at: time with a time zone.
        fingerprint: fingerprint of the machine.
    """

    placement: Placement
    kind: Bottleneck
    neighbour: Placement
    neighbour_kind: Bottleneck
    alone_s: float
    beside_s: float
    repeats: int
    trusted: bool
    measured_at: datetime
    fingerprint: str

    def __post_init__(self) -> None:
        for name in ("alone_s", "beside_s"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise InvalidInputError.of(
                    f"pair run of {self.placement}: {name}",
                    getattr(self, name),
                    "a finite number, more than 0",
                )

    @property
    def slowdown(self) -> float:
        """The latency beside the neighbour over the latency alone, at least 1."""
        return max(1.0, self.beside_s / self.alone_s)


def streaming_rates(points: Mapping[Placement, Sequence[Measurement]]) -> dict[Placement, float]:
    """Returns the bytes a second that each placement streams at its smallest batch size.

    The rate is its memory over its median latency: weights and activations pass through the
    processor about once a run, so the rate is high for placements bound by memory and low for those
    bound by compute.

    Args:
        points: measurements by placement, by ascending batch size.
    """
    return {
        placement: max(rows[0].memory_bytes, 1) / rows[0].p50_s
        for placement, rows in points.items()
        if rows
    }


Group = tuple[str, Bottleneck]
"""A device class and a bottleneck."""


@dataclass(frozen=True, slots=True)
class Slowdowns:
    """How much placements slow each other down on one host, as plain data.

    Attributes:
        kinds: the bottleneck of each placement.
        logs: the log of the slowdown, by the groups of a placement and its neighbour.
    """

    kinds: Mapping[Placement, Bottleneck] = field(default_factory=dict)
    logs: Mapping[tuple[Group, Group], float] = field(default_factory=dict)

    @property
    def is_known(self) -> bool:
        """Whether any pairs were run."""
        return bool(self.logs)

    def slowdown(self, placement: Placement, neighbour: Placement) -> float:
        """Returns the slowdown of ``placement`` while ``neighbour`` runs on the same host.

        It is that of pairs of the same groups that ran together; without any, the mean beside any
        neighbour; 1 where nothing is known.
        """
        own, other = self._group(placement), self._group(neighbour)
        log = self.logs.get((own, other)) if own is not None and other is not None else None
        return math.exp(self.log_by_any(placement) if log is None else log)

    def log_by_any(self, placement: Placement) -> float:
        """Returns the log of a placement's slowdown beside any neighbour; 0 if it is unknown."""
        group = self._group(placement)
        logs = [log for (own, _), log in self.logs.items() if own == group]
        return sum(logs) / len(logs) if logs else 0.0

    def _group(self, placement: Placement) -> Group | None:
        kind = self.kinds.get(placement)
        return None if kind is None else (placement.device_class, kind)


def fit_slowdowns(runs: Iterable[PairRun], rates: Mapping[Placement, float]) -> Slowdowns:
    """Return the mean slowdowns of these pairs.

    Where some runs of a pair are trusted, only those count.

    A placement has the bottleneck of the measured representative of its device class whose
    streaming rate is nearest, by ratio.

    Args:
        runs: of one machine.
        rates: see ``streaming_rates``.
    """
    logs: dict[tuple[Group, Group], dict[bool, list[float]]] = {}
    examples: dict[str, dict[Placement, Bottleneck]] = {}
    for run in runs:
        own: Group = (run.placement.device_class, run.kind)
        other = (run.neighbour.device_class, run.neighbour_kind)
        by_trust = logs.setdefault((own, other), {})
        by_trust.setdefault(run.trusted, []).append(math.log(run.slowdown))
        examples.setdefault(run.placement.device_class, {})[run.placement] = run.kind
        examples.setdefault(run.neighbour.device_class, {})[run.neighbour] = run.neighbour_kind
    best = {pair: by_trust[max(by_trust)] for pair, by_trust in logs.items()}
    kinds = {
        placement: kind
        for placement, rate in rates.items()
        if (kind := _nearest(rate, examples.get(placement.device_class, {}), rates)) is not None
    }
    return Slowdowns(kinds, {pair: sum(values) / len(values) for pair, values in best.items()})


def _nearest(
    rate: float, examples: Mapping[Placement, Bottleneck], rates: Mapping[Placement, float]
) -> Bottleneck | None:
    known = [(rates[example], kind) for example, kind in examples.items() if example in rates]
    if not known:
        return None
    return min(known, key=lambda each: abs(math.log(rate / each[0])))[1]
