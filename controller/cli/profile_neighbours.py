"""``modelless profile --neighbours``: a few placements run in pairs, and what that costs each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from modelless.common.errors import NoisyMachineError
from modelless.controller.cli.screen import Steps, show_table
from modelless.profiler.cost_model.measured_model import best_points
from modelless.profiler.cost_model.slowdowns import PairRun
from modelless.profiler.devices.device import DeviceFacts
from modelless.profiler.measure.jobs import MeasurementJob
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.neighbours import choose_representatives, run_pairs
from modelless.profiler.measure.pair_records import PairRecords


def measure_neighbours(
    jobs: Sequence[MeasurementJob],
    rows: Sequence[Measurement],
    records: PairRecords,
    facts: DeviceFacts,
    *,
    accept_noise: bool,
) -> list[PairRun]:
    """Run the pairs with progress on stderr; each is kept as soon as it was run.

    Args:
        jobs: the placements to pick from.
        rows: what was measured of them.
        records: where the runs go.
        facts: of this host.
        accept_noise: run on a noisy machine too.

    Raises:
        NoisyMachineError: it is too noisy, and noise was not accepted.
    """
    representatives = choose_representatives(jobs, best_points(rows))
    counts = [sum(o.job.device == e.job.device for o in representatives) for e in representatives]
    runs: list[PairRun] = []
    with Steps("running pairs") as steps:
        try:
            for run in run_pairs(representatives, facts, accept_noise=accept_noise):
                records.add(run)
                runs.append(run)
                steps.at(len(runs), sum(counts), f"{run.placement.variant_id}")
        except NoisyMachineError as error:
            raise NoisyMachineError(f"{error} (--accept-noise)") from None
    return runs


def show_neighbours(runs: Sequence[PairRun]) -> None:
    """The table."""
    caption = "medians of one item, alone and while the other runs without a pause"
    if not all(run.trusted for run in runs):
        caption += "; *: not trusted, something else disturbed it"
    show_table(
        ["variant", "device", "kind", "beside", "kind", "alone ms", "together ms", "slowdown"],
        [
            (
                run.placement.variant_id,
                run.placement.device_class,
                run.kind.value,
                run.neighbour.variant_id,
                run.neighbour_kind.value,
                f"{run.alone_s * 1e3:.2f}",
                f"{run.beside_s * 1e3:.2f}",
                f"{run.slowdown:.2f}{'' if run.trusted else ' *'}",
            )
            for run in runs
        ],
        caption=caption,
        right=range(5, 8),
    )


def neighbours_document(runs: Sequence[PairRun]) -> list[dict[str, Any]]:
    """The same as plain data."""
    return [
        {
            "variant": run.placement.variant_id,
            "device_class": run.placement.device_class,
            "kind": run.kind.value,
            "neighbour": run.neighbour.variant_id,
            "neighbour_kind": run.neighbour_kind.value,
            "alone_ms": run.alone_s * 1e3,
            "beside_ms": run.beside_s * 1e3,
            "slowdown": run.slowdown,
            "repeats": run.repeats,
            "trusted": run.trusted,
        }
        for run in runs
    ]
