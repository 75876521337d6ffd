"""What placements cost each other on one host, from a few pairs that were run together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from modelless.common.errors import InvalidInputError
from modelless.profiler.measure.measurement import Measurement
from modelless.variants.vocabulary import Placement


class Kind(StrEnum):
    """What bounds a placement: the ends of the roofline (Williams et al., CACM 2009)."""

    COMPUTE_BOUND = "compute-bound"
    MEMORY_BOUND = "memory-bound"


@dataclass(frozen=True, slots=True)
class PairRun:
    """One placement, measured alone and then beside a neighbour that ran all the time.

    Attributes:
        placement, kind: what was measured.
        neighbour, neighbour_kind: what ran beside it.
        alone_s, beside_s: median latency of one item, seconds.
        repeats: timed runs behind that of the two medians that has fewer.
        trusted: nothing but the neighbour disturbed.
        measured_at: with a time zone.
        fingerprint: of the machine.
    """

    placement: Placement
    kind: Kind
    neighbour: Placement
    neighbour_kind: Kind
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
        """How many times as long it took; at least 1, for a neighbour helps nobody."""
        return max(1.0, self.beside_s / self.alone_s)


def streaming_rates(points: Mapping[Placement, Sequence[Measurement]]) -> dict[Placement, float]:
    """Bytes that each placement must stream a second at its smallest batch.

    Its memory over its median: weights and activations pass through the processor about once a
    run, so the rate is high for what waits on memory and low for what computes.
    """
    return {
        placement: max(rows[0].memory_bytes, 1) / rows[0].p50_s
        for placement, rows in points.items()
        if rows
    }


Sort = tuple[str, Kind]
"""A device class and a kind."""


@dataclass(frozen=True, slots=True)
class Slowdowns:
    """How much placements slow each other down on one host, as plain data.

    Attributes:
        kinds: of the placements.
        logs: the log of the slowdown, by a placement's device class and kind and its neighbour's.
    """

    kinds: Mapping[Placement, Kind] = field(default_factory=dict)
    logs: Mapping[tuple[Sort, Sort], float] = field(default_factory=dict)

    @property
    def is_known(self) -> bool:
        """Whether any pairs were run, so that ``slowdown`` tells neighbours apart."""
        return bool(self.logs)

    def slowdown(self, placement: Placement, neighbour: Placement) -> float:
        """How many times as long ``placement`` takes while ``neighbour`` runs on the same host.

        From pairs of their kinds that were run together; where there are none, what a neighbour of
        any kind costs; 1 where nothing is known.
        """
        own, other = self._sort(placement), self._sort(neighbour)
        log = self.logs.get((own, other)) if own is not None and other is not None else None
        return math.exp(self.log_by_any(placement) if log is None else log)

    def log_by_any(self, placement: Placement) -> float:
        """The log of its slowdown by one neighbour of unknown kind; 0 where nothing is known."""
        sort = self._sort(placement)
        logs = [log for (own, _), log in self.logs.items() if own == sort]
        return sum(logs) / len(logs) if logs else 0.0

    def _sort(self, placement: Placement) -> Sort | None:
        kind = self.kinds.get(placement)
        return None if kind is None else (placement.device_class, kind)


def fit_slowdowns(runs: Iterable[PairRun], rates: Mapping[Placement, float]) -> Slowdowns:
    """Return the mean slowdowns of these pairs.

    Where some runs of a pair are trusted the others do not count.

    A placement is of the kind of that measured representative of its device class to whose
    streaming rate its own is nearest, by ratio.

    Args:
        runs: of one machine.
        rates: see ``streaming_rates``.
    """
    logs: dict[tuple[Sort, Sort], dict[bool, list[float]]] = {}
    examples: dict[str, dict[Placement, Kind]] = {}
    for run in runs:
        own: Sort = (run.placement.device_class, run.kind)
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
    rate: float, examples: Mapping[Placement, Kind], rates: Mapping[Placement, float]
) -> Kind | None:
    known = [(rates[example], kind) for example, kind in examples.items() if example in rates]
    if not known:
        return None
    return min(known, key=lambda each: abs(math.log(rate / each[0])))[1]
