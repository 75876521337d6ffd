"""How much placements slow each other down on one host, from a few pairs that ran together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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


class Slowdowns:
    """Slowdowns by (own device class and bottleneck, neighbour's device class and bottleneck).

    A placement has the bottleneck of the measured representative of its device class whose
    streaming rate is nearest, by ratio. Where some runs of a pair are trusted, only those count.

    Args:
        runs: pair runs of one machine.
        rates: streaming rates; see ``streaming_rates``.
    """

    def __init__(self, runs: Iterable[PairRun], rates: Mapping[Placement, float]) -> None:
        logs: dict[tuple[_Group, _Group], dict[bool, list[float]]] = {}
        examples: dict[str, dict[Placement, Bottleneck]] = {}
        for run in runs:
            own: _Group = (run.placement.device_class, run.kind)
            other = (run.neighbour.device_class, run.neighbour_kind)
            by_trust = logs.setdefault((own, other), {})
            by_trust.setdefault(run.trusted, []).append(math.log(run.slowdown))
            examples.setdefault(run.placement.device_class, {})[run.placement] = run.kind
            examples.setdefault(run.neighbour.device_class, {})[run.neighbour] = run.neighbour_kind
        best = {pair: by_trust[max(by_trust)] for pair, by_trust in logs.items()}
        self._log = {pair: sum(values) / len(values) for pair, values in best.items()}
        by_any: dict[_Group, list[float]] = {}
        for (own, _), log in self._log.items():
            by_any.setdefault(own, []).append(log)
        self._log_by_any = {own: sum(values) / len(values) for own, values in by_any.items()}
        self._sorts = {
            placement: (placement.device_class, kind)
            for placement, rate in rates.items()
            if (kind := _nearest(rate, examples.get(placement.device_class, {}), rates)) is not None
        }

    @property
    def is_known(self) -> bool:
        """Whether there are any runs."""
        return bool(self._log)

    def slowdown(self, placement: Placement, neighbour: Placement) -> float | None:
        """Returns the slowdown of ``placement`` beside ``neighbour``; None if it is unknown."""
        own, other = self._sorts.get(placement), self._sorts.get(neighbour)
        if own is None or other is None:
            return None
        log = self._log.get((own, other))
        return None if log is None else math.exp(log)

    def log_by_any(self, placement: Placement) -> float:
        """Returns the log of a placement's slowdown beside any neighbour; 0 if it is unknown."""
        own = self._sorts.get(placement)
        return 0.0 if own is None else self._log_by_any.get(own, 0.0)


_Group = tuple[str, Bottleneck]


def _nearest(
    rate: float, examples: Mapping[Placement, Bottleneck], rates: Mapping[Placement, float]
) -> Bottleneck | None:
    known = [(rates[example], kind) for example, kind in examples.items() if example in rates]
    if not known:
        return None
    return min(known, key=lambda each: abs(math.log(rate / each[0])))[1]
