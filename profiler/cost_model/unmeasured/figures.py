"""Predicted figures of points that were not measured, for a cost model that needs all of them.

``machine_predictor`` predicts latency. Its quantiles cover both the variation between runs (the
tails of what was measured) and the uncertainty of the prediction, so a placement that was never
measured looks as slow as it may well be. Memory and load time follow the artifact's size and the
batch, as they do where they were measured on the same device class and engine, and err on the large
side. A device class without a profile takes these from the other classes of its kind that run the
engine, if its rates were measured, or else from other machines that run it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from modelless.profiler.cost_model.unmeasured.item_effects import ridge_weights
from modelless.profiler.cost_model.unmeasured.machine_predictor import MachinePredictor
from modelless.profiler.cost_model.unmeasured.prior import Prior
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.table import PlacementFacts, TableRow
from modelless.variants.vocabulary import Placement

LEAST_MEASURED = 5
"""The points of the same device class and engine that a prediction needs; of the same kind and
engine, where the rates of the class were measured; of the engine on any other machine."""

_RIDGE = 1.0


@dataclass(frozen=True, slots=True)
class PredictedFigures:
    """The figures predicted for a placement at a batch size; units as in ``Measurement``."""

    placement: Placement
    batch: int
    p50_s: float
    p90_s: float
    p99_s: float
    memory_bytes: float
    load_s: float


def predict_unmeasured(
    prior: Prior,
    placements: Mapping[Placement, PlacementFacts],
    measured: Sequence[Measurement],
    batches: Sequence[int],
    knowledge: Sequence[TableRow] = (),
    elsewhere: Sequence[Measurement] = (),
) -> list[PredictedFigures]:
    """Returns predicted figures of the points that were not measured.

    Of a measured placement it predicts only batch sizes below and above the measured ones; between
    them interpolation is more exact.

    Args:
        prior: the covariance and the roofline.
        placements: what is known of each placement to predict.
        measured: measurements on this machine.
        batches: batch sizes to predict, besides those that were measured.
        knowledge: measured rows of other devices.
        elsewhere: measurements on other machines, for memory and load time.
    """
    known = [row for row in measured if row.placement in placements]
    sizes = {facts.variant.id: float(facts.variant.artifact_bytes) for facts in placements.values()}
    elsewhere = [row for row in elsewhere if row.variant_id in sizes]
    similar = _similar_measurements(known, placements, elsewhere)
    first: dict[Placement, Measurement] = {}
    last: dict[Placement, Measurement] = {}
    for row in sorted(known, key=lambda row: row.batch):
        first.setdefault(row.placement, row)
        last[row.placement] = row
    every_batch = sorted({*batches, *(row.batch for row in known)})
    wanted = [
        (placement, batch)
        for placement, facts in placements.items()
        if _group(facts) in similar
        for batch in every_batch
        if placement not in first or not first[placement].batch <= batch <= last[placement].batch
    ]
    if not wanted:
        return []
    model = MachinePredictor(prior, placements, every_batch, knowledge)
    expected = model.fit(known).predict(model.rows(wanted))
    rules = {group: FigureRules(rows, sizes) for group, rows in similar.items()}
    found = []
    for (placement, batch), p50_s, p90_log, p99_log in zip(
        wanted,
        expected.median_s.tolist(),
        expected.p90_log.tolist(),
        expected.p99_log.tolist(),
        strict=True,
    ):
        facts = placements[placement]
        size, rule = float(facts.variant.artifact_bytes), rules[_group(facts)]
        figures = PredictedFigures(
            placement,
            batch,
            p50_s,
            p50_s * math.exp(math.hypot(p90_log, rule.p90_log)),
            p50_s * math.exp(math.hypot(p99_log, rule.p99_log)),
            max(size, rule.memory.at(size, batch)),
            rule.load.at(size, 1),
        )
        larger = first.get(placement)
        if larger is not None and batch < larger.batch:
            figures = _limit(figures, larger)
        found.append(figures)
    return found


def _limit(row: PredictedFigures, larger: Measurement) -> PredictedFigures:
    """Returns the figures, none above the measurement at a larger batch size."""
    names = ("p50_s", "p90_s", "p99_s", "memory_bytes")
    return replace(row, **{name: min(getattr(row, name), getattr(larger, name)) for name in names})


def _similar_measurements(
    known: Sequence[Measurement],
    placements: Mapping[Placement, PlacementFacts],
    elsewhere: Sequence[Measurement],
) -> dict[tuple[str, str], list[Measurement]]:
    """Returns the measurements to predict each device class and engine from, where they suffice."""
    own: dict[tuple[str, str], list[Measurement]] = {}
    of_kind: dict[tuple[str, str], list[Measurement]] = {}
    for row in known:
        facts = placements[row.placement]
        own.setdefault(_group(facts), []).append(row)
        of_kind.setdefault((facts.device.kind, facts.engine), []).append(row)
    found = {}
    for facts in placements.values():
        group = _group(facts)
        rows = own.get(group, [])
        if len(rows) < LEAST_MEASURED and facts.rates is not None:
            rows = of_kind.get((facts.device.kind, facts.engine), [])
        if len(rows) < LEAST_MEASURED:
            engine = facts.variant.engine.value
            rows = [row for row in elsewhere if row.engine.startswith(engine)]
        if len(rows) >= LEAST_MEASURED:
            found[group] = rows
    return found


def _group(facts: PlacementFacts) -> tuple[str, str]:
    """Returns device class and engine, on which memory, load time and tails depend most."""
    return facts.device.name, facts.engine


class FigureRules:
    """Tails, memory and load time by the measurements of one device class and engine.

    Args:
        measured: the measurements.
        sizes: bytes of each variant's artifact, by id.

    Attributes:
        p90_log, p99_log: median log ratios of p90 and p99 to p50.
        memory, load: rules for bytes and for seconds.
    """

    def __init__(self, measured: Sequence[Measurement], sizes: Mapping[str, float]) -> None:
        self.p90_log = float(np.median([math.log(row.p90_s / row.p50_s) for row in measured]))
        self.p99_log = float(np.median([math.log(row.p99_s / row.p50_s) for row in measured]))
        self.memory = _SizeRule(measured, sizes, lambda row: float(row.memory_bytes))
        self.load = _SizeRule(measured, sizes, lambda row: row.load_s)


class _SizeRule:
    """A figure's 90th percentile, log-linear in the artifact's size and the batch size."""

    def __init__(
        self,
        measured: Sequence[Measurement],
        sizes: Mapping[str, float],
        figure: Callable[[Measurement], float],
    ) -> None:
        inputs = np.log([[sizes[row.variant_id], row.batch] for row in measured])
        outputs = np.log([max(figure(row), 1e-6) for row in measured])
        self._centre, self._level = inputs.mean(axis=0), float(outputs.mean())
        inputs, outputs = inputs - self._centre, outputs - self._level
        self._slope = ridge_weights(inputs, outputs, _RIDGE)
        self._above = max(0.0, float(np.quantile(outputs - inputs @ self._slope, 0.9)))

    def at(self, size_bytes: float, batch: int) -> float:
        """Returns the figure that nine in ten would not exceed."""
        place = np.array([math.log(size_bytes), math.log(batch)]) - self._centre
        return float(np.exp(self._level + place @ self._slope + self._above))
