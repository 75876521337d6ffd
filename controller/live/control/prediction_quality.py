"""The members' cost models in figures, and notes of placements whose latency drifted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from modelless.common.errors import ModellessError
from modelless.controller.control.messages import MemberReport
from modelless.profiler.cost_model.drift_history import record_drifts
from modelless.profiler.cost_model.online.coverage import merge_coverage
from modelless.profiler.cost_model.serving_model import Drift
from modelless.variants.registry.registry import open_registry
from modelless.variants.vocabulary import Placement

logger = logging.getLogger(__name__)


class DriftNotes:
    """Writes into the store's history which placements to profile again, each once.

    Profiles are read at the start only, so a second note would say nothing new. A store that is
    away costs the note, until a member's next report, and nothing else.
    """

    def __init__(self, home: Path, fingerprints: Mapping[str, str]) -> None:
        self._home = home
        self._fingerprints = fingerprints
        self._noted: set[Placement] = set()
        self._writing: asyncio.Task[None] | None = None

    def add(self, drifts: Iterable[Drift]) -> None:
        """Note those that are new, in the background; one write at a time."""
        if self._writing is not None and not self._writing.done():
            return
        fresh = [drift for drift in drifts if drift.placement not in self._noted]
        if fresh:
            self._writing = asyncio.get_running_loop().create_task(self._write(fresh))

    async def _write(self, drifts: Sequence[Drift]) -> None:
        try:
            await asyncio.to_thread(self._record, drifts)
        except ModellessError as error:
            logger.warning("drifts are not noted: %s", error)
            return
        for drift in drifts:
            self._noted.add(drift.placement)
            logger.warning(
                "%s on %s takes %.2f times what was measured: run 'modelless profile --drifted'",
                drift.placement.variant_id,
                drift.placement.device_class,
                drift.factor,
            )

    def _record(self, drifts: Sequence[Drift]) -> None:
        with closing(open_registry(self._home)) as registry:
            record_drifts(registry.store, drifts, self._fingerprints)


def predictions_status(reports: Iterable[MemberReport]) -> list[dict[str, Any]]:
    """How the predictions of all cost models fared lately, a row a device class."""
    merged = merge_coverage(coverage for report in reports for coverage in report.coverage)
    return [
        {
            name: round(figure, 2) if isinstance(figure, float) else figure
            for name, figure in asdict(row).items()
            if name != "weight"
        }
        for row in merged
    ]


def drifts_status(reports: Iterable[MemberReport]) -> list[dict[str, Any]]:
    """Return what should be profiled again, by name; of several members' factors the last."""
    factors = {drift.placement: drift.factor for report in reports for drift in report.drifts}
    return [
        {
            "variant": placement.variant_id,
            "device_class": placement.device_class,
            "factor": round(factor, 3),
        }
        for placement, factor in sorted(factors.items())
    ]
