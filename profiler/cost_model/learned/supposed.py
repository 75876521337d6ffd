"""Figures of points that were not measured, for a cost model that needs some at every point.

Latency is predicted by ``placements``. Its quantiles hold both what runs differ by (the tails of
what was measured) and how unsure the prediction is, so a placement that nobody measured looks as
slow as it may well be. Memory and load time follow the artifact's size and the batch, as they do
where they were measured on the same device class and engine, and err on the large side. A device
class without a profile that was itself measured (``own_speed``) takes these from the others of its
kind that run the engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from modelless.profiler.cost_model.learned.placements import PlacementModel
from modelless.profiler.cost_model.learned.prior import Prior
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.table import Subject
from modelless.variants.estimates import FloatArray
from modelless.variants.vocabulary import Placement

LEAST_MEASURED = 5
"""Points of the same device class and engine: with fewer nothing is supposed. Points of the same
kind and engine, where the class itself was rated."""

_RIDGE = 1.0


@dataclass(frozen=True, slots=True)
class Supposed:
    """What is expected of a placement at a batch that was not measured; units as measured."""

    placement: Placement
    batch: int
    p50_s: float
    p90_s: float
    p99_s: float
    memory_bytes: float
    load_s: float


def suppose(
    prior: Prior,
    subjects: Mapping[Placement, Subject],
    measured: Sequence[Measurement],
    batches: Sequence[int],
) -> list[Supposed]:
    """What is to be expected where nothing was measured.

    Of a placement that was measured, only batches below and above those measured: in between its
    own measurements say more.

    Args:
        prior: see ``PlacementModel``.
        subjects: the placements in question.
        measured: on this machine.
        batches: in question.
    """
    known = [row for row in measured if row.placement in subjects]
    alike = _alike(known, subjects)
    first: dict[Placement, Measurement] = {}
    last: dict[Placement, Measurement] = {}
    for row in sorted(known, key=lambda row: row.batch):
        first.setdefault(row.placement, row)
        last[row.placement] = row
    wanted = [
        (placement, batch)
        for placement, subject in subjects.items()
        if _group(subject) in alike
        for batch in batches
        if placement not in first or not first[placement].batch <= batch <= last[placement].batch
    ]
    if not wanted:
        return []
    every_batch = sorted({*batches, *(row.batch for row in known)})
    model = PlacementModel(prior, subjects, every_batch)
    expected = model.fit(known).expect(model.rows(wanted))
    rules = {group: _Rules(rows, subjects) for group, rows in alike.items()}
    found = []
    for (placement, batch), p50_s, p90_log, p99_log in zip(
        wanted,
        expected.median_s.tolist(),
        expected.p90_log.tolist(),
        expected.p99_log.tolist(),
        strict=True,
    ):
        subject = subjects[placement]
        size, rule = float(subject.variant.artifact_bytes), rules[_group(subject)]
        figures = Supposed(
            placement,
            batch,
            p50_s,
            p50_s * math.exp(math.hypot(p90_log, rule.p90_log)),
            p50_s * math.exp(math.hypot(p99_log, rule.p99_log)),
            max(size, rule.memory.at(size, batch)),
            rule.load.at(size, 1),
        )
        more = first.get(placement)
        if more is not None and batch < more.batch:
            figures = _at_most(figures, more)
        found.append(figures)
    return found


def _at_most(row: Supposed, more: Measurement) -> Supposed:
    """Fewer items take no longer and no more than what was measured of more."""
    names = ("p50_s", "p90_s", "p99_s", "memory_bytes")
    return replace(row, **{name: min(getattr(row, name), getattr(more, name)) for name in names})


def _alike(
    known: Sequence[Measurement], subjects: Mapping[Placement, Subject]
) -> dict[tuple[str, str], list[Measurement]]:
    """What tells of each device class and engine of which something may be supposed."""
    own: dict[tuple[str, str], list[Measurement]] = {}
    of_kind: dict[tuple[str, str], list[Measurement]] = {}
    for row in known:
        subject = subjects[row.placement]
        own.setdefault(_group(subject), []).append(row)
        of_kind.setdefault((subject.device.kind, subject.engine), []).append(row)
    found = {}
    for subject in subjects.values():
        group = _group(subject)
        rows = own.get(group, [])
        if len(rows) < LEAST_MEASURED and subject.rates is not None:
            rows = of_kind.get((subject.device.kind, subject.engine), [])
        if len(rows) >= LEAST_MEASURED:
            found[group] = rows
    return found


def _group(subject: Subject) -> tuple[str, str]:
    """Device class and engine: what memory, load time and tails differ by most."""
    return subject.device.name, subject.engine


class _Rules:
    """What measurements of one device class and engine tell beside the median latency.

    Attributes:
        p90_log, p99_log: median log ratios of p90 and p99 to p50.
        memory, load: bytes and seconds.
    """

    def __init__(
        self, measured: Sequence[Measurement], subjects: Mapping[Placement, Subject]
    ) -> None:
        self.p90_log = float(np.median([math.log(row.p90_s / row.p50_s) for row in measured]))
        self.p99_log = float(np.median([math.log(row.p99_s / row.p50_s) for row in measured]))
        self.memory = _SizeRule(measured, subjects, lambda row: float(row.memory_bytes))
        self.load = _SizeRule(measured, subjects, lambda row: row.load_s)


class _SizeRule:
    """A figure's log as a linear function of the logs of artifact size and batch; its p90."""

    def __init__(
        self,
        measured: Sequence[Measurement],
        subjects: Mapping[Placement, Subject],
        figure: Callable[[Measurement], float],
    ) -> None:
        sizes = [float(subjects[row.placement].variant.artifact_bytes) for row in measured]
        inputs = np.array(
            [
                [math.log(size), math.log(row.batch)]
                for size, row in zip(sizes, measured, strict=True)
            ]
        )
        outputs = np.log([max(figure(row), 1e-6) for row in measured])
        self._centre, self._level = inputs.mean(axis=0), float(outputs.mean())
        inputs, outputs = inputs - self._centre, outputs - self._level
        gram = inputs.T @ inputs + _RIDGE * np.eye(2)
        self._slope: FloatArray = np.linalg.solve(gram, inputs.T @ outputs)
        self._above = max(0.0, float(np.quantile(outputs - inputs @ self._slope, 0.9)))

    def at(self, size_bytes: float, batch: int) -> float:
        """The figure that nine in ten would not exceed."""
        place = np.array([math.log(size_bytes), math.log(batch)]) - self._centre
        return float(np.exp(self._level + place @ self._slope + self._above))
