"""What ``modelless profile`` shows: a row a placement, a column a batch; also as JSON and CSV."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelless.common.errors import InvalidInputError
from modelless.controller.cli.device_command import rates_document
from modelless.controller.cli.screen import (
    accuracy_fields,
    duration,
    mebibytes,
    show_table,
)
from modelless.profiler.devices.microbenchmark import DeviceRates
from modelless.profiler.measure.campaign import CampaignResult
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.progress import SkipReason
from modelless.profiler.measure.table import rows_of, write_table
from modelless.variants.vocabulary import DeviceClass, Placement, Variant

_SKIPPED = {
    SkipReason.ALREADY_MEASURED: "measured before",
    SkipReason.LATENCY_CAP: "larger batches left out: slower than a second",
    SkipReason.BUDGET_SPENT: "left out: the time was spent (the same command measures them)",
    SkipReason.PREDICTED: "left out: predicted well enough from the others",
}


@dataclass(frozen=True)
class Summary:
    """What is known of the wanted placements now, and what came of measuring them.

    Attributes:
        variants, devices: by id and name.
        families: of models, by ``task/model``.
        rows: all measurements of the placements on this machine.
        result: of the campaign.
        failed: what went wrong, by placement.
        rates: what the device classes do in a second, as far as that is known.
    """

    variants: Mapping[str, Variant]
    devices: Mapping[str, DeviceClass]
    families: Mapping[str, str]
    rows: Sequence[Measurement]
    result: CampaignResult
    failed: Mapping[Placement, str]
    rates: Mapping[str, DeviceRates]

    def show(self) -> None:
        """The table."""
        batches = sorted({row.batch for row in self.rows})
        cells = [
            (
                placement.variant_id,
                placement.device_class,
                *(_latency(by_batch.get(batch)) for batch in batches),
                _rate(max(row.throughput_per_s for row in by_batch.values())),
                mebibytes(max(row.memory_bytes for row in by_batch.values())),
                f"{min(row.load_s for row in by_batch.values()) * 1e3:.0f}",
            )
            for placement, by_batch in self._by_placement()
        ]
        caption = "latency: p50/p99, ms a batch"
        if not all(row.trusted for row in self.rows):
            caption += "; *: not trusted, it was too noisy or varies too much"
        headings = [f"batch {batch}" for batch in batches]
        show_table(
            ["variant", "device", *headings, "items/s", "MiB", "load ms"],
            cells,
            caption=caption,
            right=range(2, 5 + len(batches)),
            whole=0,
        )

    def document(self) -> dict[str, Any]:
        """The same, and more, as plain data."""
        measured = {(row.placement, row.batch) for row in self.result.measured}
        return {
            "device": self.rows[0].device_name if self.rows else None,
            "fingerprint": self.rows[0].fingerprint if self.rows else None,
            "rates": {name: rates_document(each) for name, each in self.rates.items()},
            "elapsed_s": self.result.elapsed_s,
            "measured": len(self.result.measured),
            "placements": [
                {
                    "variant": placement.variant_id,
                    "device_class": placement.device_class,
                    **accuracy_fields(self.variants[placement.variant_id].accuracy),
                    "batches": [
                        {**_point(row), "measured_now": (placement, row.batch) in measured}
                        for row in by_batch.values()
                    ],
                }
                for placement, by_batch in self._by_placement()
            ],
            "skipped": [
                {
                    "variant": placement.variant_id,
                    "device_class": placement.device_class,
                    "batch": batch,
                    "reason": reason.value,
                }
                for (placement, batch), reason in self.result.skipped.items()
            ],
            "failed": [
                {
                    "variant": placement.variant_id,
                    "device_class": placement.device_class,
                    "error": message,
                }
                for placement, message in self.failed.items()
            ],
        }

    def write_csv(self, path: Path) -> None:
        """The measurements in the schema that all profiles share.

        Raises:
            InvalidInputError: it cannot be written.
        """
        rows = rows_of(self.rows, self.variants, self.devices, self.families)
        try:
            write_table(path, rows)
        except OSError as error:
            raise InvalidInputError.of(
                "--csv", str(path), f"a file that can be written ({error.strerror})"
            ) from None

    def remarks(self) -> Iterator[str]:
        """What a person should know besides: counts, doubts, failures."""
        count = len(self.result.measured)
        yield f"measured {count} points in {duration(self.result.elapsed_s)}"
        for reason, skipped in Counter(self.result.skipped.values()).items():
            yield f"{skipped} points {_SKIPPED[reason]}"
        doubtful = len(self.result.untrusted)
        if doubtful:
            yield (
                f"{doubtful} points are not trusted: it was too noisy, or they vary too much; "
                "the same command measures them again"
            )
        for placement, message in self.failed.items():
            yield f"failed: {placement.variant_id} on {placement.device_class}: {message}"

    def _by_placement(self) -> Iterator[tuple[Placement, dict[int, Measurement]]]:
        found: dict[Placement, dict[int, Measurement]] = {}
        for row in self.rows:
            found.setdefault(row.placement, {})[row.batch] = row
        for variant_id in self.variants:
            for device in self.devices:
                placement = Placement(variant_id, device)
                if placement in found:
                    yield placement, found[placement]


def _latency(row: Measurement | None) -> str:
    if row is None:
        return ""
    mark = "" if row.trusted else " *"
    return f"{_ms(row.p50_s)}/{_ms(row.p99_s)}{mark}"


def _rate(per_s: float) -> str:
    return f"{per_s:.0f}" if per_s >= 100.0 else f"{per_s:.1f}"


def _ms(seconds: float) -> str:
    value = seconds * 1e3
    return f"{value:.{3 if value < 1.0 else 2 if value < 10.0 else 1}f}"


def _point(row: Measurement) -> dict[str, Any]:
    return {
        "batch": row.batch,
        "p50_ms": row.p50_s * 1e3,
        "p90_ms": row.p90_s * 1e3,
        "p99_ms": row.p99_s * 1e3,
        "throughput_per_s": row.throughput_per_s,
        "memory_bytes": row.memory_bytes,
        "load_s": row.load_s,
        "repeats": row.repeats,
        "trusted": row.trusted,
        "noise": row.noise,
        "measured_at": row.measured_at.isoformat(),
    }
