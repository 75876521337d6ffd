"""Everything that a report shows, as one value: the pictures' data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from modelless.profiler.cost_model.measured_model import MeasuredCostModel
from modelless.profiler.report.batch_curves import BatchFigure, batch_figure
from modelless.profiler.report.prediction_errors import (
    PredictionFigure,
    PredictWithout,
    leave_one_batch_out,
    prediction_figure,
)
from modelless.profiler.report.profiles import Device, Profile
from modelless.profiler.report.tradeoffs import (
    FrontierFigure,
    ThroughputFigure,
    frontier_figure,
    throughput_figure,
)
from modelless.variants.registry.dominance import IsMoreAccurate, intervals_part

SCHEMA: Final = "modelless-profile-report/1"


@dataclass(frozen=True, slots=True)
class TaskFigures:
    """A task's pictures: two for each device, and the frontiers over all of them."""

    task: str
    throughput: tuple[ThroughputFigure, ...]
    latency: tuple[BatchFigure, ...]
    frontier: FrontierFigure


@dataclass(frozen=True, slots=True)
class Report:
    """The profiles and predictions, as the data of pictures.

    Attributes:
        measured_from, measured_to: when the first and the last of them were measured, ISO 8601.
        untrusted: how many of them were measured while it was too noisy, or vary too much.
    """

    devices: tuple[Device, ...]
    points: int
    measured_from: str
    measured_to: str
    untrusted: int
    tasks: tuple[TaskFigures, ...]
    predictions: PredictionFigure

    def document(self) -> dict[str, Any]:
        """The same as plain data, finite numbers only."""
        return {"schema": SCHEMA, **asdict(self)}


def report_of(
    profiles: Sequence[Profile],
    *,
    predict_without: PredictWithout = leave_one_batch_out,
    is_more_accurate: IsMoreAccurate = intervals_part,
) -> Report:
    """The report of some profiles; at least one.

    Args:
        predict_without: predicts points that its model has not seen.
        is_more_accurate: tells accuracies apart, to find what is dominated.
    """
    models = {
        machine: MeasuredCostModel([point for p in mine for point in p.points])
        for machine, mine in _grouped(profiles, lambda p: p.device.fingerprint).items()
    }
    tasks = []
    for task, of_task in _grouped(profiles, lambda p: p.variant.task).items():
        by_device = _grouped(of_task, lambda p: p.device.name).values()
        tasks.append(
            TaskFigures(
                task,
                tuple(throughput_figure(each, is_more_accurate) for each in by_device),
                tuple(batch_figure(each, models[each[0].device.fingerprint]) for each in by_device),
                frontier_figure(of_task),
            )
        )
    points = [point for profile in profiles for point in profile.points]
    return Report(
        tuple(dict.fromkeys(profile.device for profile in profiles)),
        len(points),
        min(point.measured_at for point in points).isoformat(),
        max(point.measured_at for point in points).isoformat(),
        sum(not point.trusted for point in points),
        tuple(tasks),
        prediction_figure(profiles, predict_without),
    )


def _grouped(
    profiles: Sequence[Profile], key: Callable[[Profile], str]
) -> dict[str, list[Profile]]:
    groups: dict[str, list[Profile]] = {}
    for profile in profiles:
        groups.setdefault(key(profile), []).append(profile)
    return groups
