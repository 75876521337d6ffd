"""What ``modelless make`` tells at its end: a table, or the same and more as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from modelless.common.pages import count_of
from modelless.controller.cli.family import Family, FamilyOrder, Member
from modelless.controller.cli.register_command import variant_fields
from modelless.controller.cli.screen import accuracy_text, duration, grouped, mebibytes, show_table
from modelless.profiler.cost_model.dominated import dominated_by_device
from modelless.profiler.devices.device import DeviceFacts
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.records import Records
from modelless.variants.registry.outcomes import latest_outcomes
from modelless.variants.registry.registry import Registry
from modelless.variants.vocabulary import DeviceClass


@dataclass(slots=True)
class Summary:
    """The family as it stands.

    Attributes:
        rows: smallest measured batch by variant id and device class.
        victors: what dominates a variant, by device class; itself where nothing does.
        report: where it was drawn.
        elapsed_s: that all of it took.
    """

    order: FamilyOrder
    family: Family
    devices: Sequence[DeviceClass]
    rows: Mapping[tuple[str, str], Measurement]
    victors: Mapping[str, Mapping[str, str]]
    report: Path | None = None
    elapsed_s: float = 0.0

    def show(self) -> None:
        """The table."""
        names = [device.name for device in self.devices]
        several = len(names) > 1
        heads = [f"ms{f', {name}' if several else ''}" for name in names]
        members = sorted(self.family.members, key=lambda m: -m.variant.accuracy.percent)
        cells = [
            (
                member.variant.id,
                accuracy_text(member.variant.accuracy),
                f"{member.origin.fidelity.sqnr_db:.0f}",
                mebibytes(member.variant.artifact_bytes),
                *(self._latency(member, name) for name in names),
                self._memory(member),
                ", ".join(
                    by.rpartition("/")[2] + (f" on {device}" if several else "")
                    for device, by in self._beaten(member).items()
                ),
            )
            for member in members
        ]
        show_table(
            ["variant", "accuracy", "SQNR dB", "file MiB", *heads, "memory MiB", "dominated by"],
            cells,
            caption="SQNR: against the source's outputs, 200 is equal; ms: median of one item"
            f"{'; *: not trusted, it was too noisy' if not self._all_trusted() else ''}",
            right=range(2, 5 + len(names)),
            whole=0,
        )

    def document(self) -> dict[str, Any]:
        """All of it, as plain data."""
        order = self.order
        return {
            "task": order.task.name,
            "model": order.model.name,
            "source": {
                "name": order.source.name,
                "framework": order.source.framework,
                "tools": dict(order.source.tools),
            },
            "calibration_items": _count(order),
            "validation_set": {
                "name": order.items.name,
                "sha256": order.items.sha256,
                "items": len(order.items),
                "measured_on": order.sample,
            },
            "engines": [engine.value for engine in order.engines],
            "variants": [self._fields(member) for member in self.family.members],
            "left_out": dict(self.family.left_out),
            "report": None if self.report is None else str(self.report),
            "elapsed_s": round(self.elapsed_s, 3),
        }

    def remarks(self) -> Iterator[str]:
        """What a person should know besides."""
        members = self.family.members
        for reason, names in grouped(self.family.left_out).items():
            yield f"left out: {names}: {reason}"
        makers = {step.maker for m in members for step in m.origin.lineage.steps}
        engines = {member.variant.engine for member in members}
        beaten = sum(bool(self._beaten(member)) for member in members)
        there = sum(member.was_there for member in members)
        yield (
            f"{count_of(len(members), 'variant')} by {count_of(len(makers), 'maker')} on "
            f"{count_of(len(engines), 'engine')}"
            f"{f', {there} of them were there' if there else ''}; {beaten} dominated; "
            f"calibrated on {_count(self.order)} items, accuracy measured on {self.order.sample}; "
            f"{duration(self.elapsed_s)}"
        )
        if self.report is not None:
            yield f"report: {self.report / 'report.html'}"

    def _fields(self, member: Member) -> dict[str, Any]:
        origin = member.origin
        return {
            **variant_fields(member.variant),
            "chain": origin.chain,
            "steps": [asdict(step) for step in origin.lineage.steps],
            "notes": list(origin.notes),
            "fidelity": asdict(origin.fidelity),
            "was_there": member.was_there,
            "profiled": {
                device.name: {
                    "batch": row.batch,
                    "p50_ms": row.p50_s * 1e3,
                    "p99_ms": row.p99_s * 1e3,
                    "memory_bytes": row.memory_bytes,
                    "trusted": row.trusted,
                }
                for device in self.devices
                if (row := self.rows.get((member.variant.id, device.name))) is not None
            },
            "dominated_by": self._beaten(member),
        }

    def _beaten(self, member: Member) -> dict[str, str]:
        """What dominates it, by device class; nothing where nothing does."""
        name = member.variant.id
        return {
            device.name: by
            for device in self.devices
            if (by := self.victors.get(name, {}).get(device.name, name)) != name
        }

    def _all_trusted(self) -> bool:
        ids = {member.variant.id for member in self.family.members}
        return all(row.trusted for (name, _), row in self.rows.items() if name in ids)

    def _latency(self, member: Member, device: str) -> str:
        row = self.rows.get((member.variant.id, device))
        if row is None:
            return ""
        value = f"{row.p50_s * 1e3 / row.batch:.3g}"
        return value if row.trusted else f"{value} *"

    def _memory(self, member: Member) -> str:
        rows = [self.rows.get((member.variant.id, device.name)) for device in self.devices]
        return mebibytes(max((r.memory_bytes for r in rows if r is not None), default=0))


def summarise(
    registry: Registry,
    order: FamilyOrder,
    family: Family,
    devices: Sequence[DeviceClass],
    facts: DeviceFacts,
) -> Summary:
    """The family beside all other variants of its task, by what is registered and measured now."""
    of_task = [v for v in registry.catalog().variants if v.task == order.task.name]
    kinds = sorted({device.kind for device in devices})
    records = Records(registry.store)
    measured = [row for kind in kinds for row in records.current(facts, kind)]
    outcomes = latest_outcomes(registry.store, [variant.id for variant in of_task])
    least: dict[tuple[str, str], Measurement] = {}
    for row in measured:
        key = (row.variant_id, row.device_class)
        if key not in least or row.batch < least[key].batch:
            least[key] = row
    victors = dominated_by_device(of_task, measured, outcomes)
    return Summary(order, family, devices, least, victors)


def _count(order: FamilyOrder) -> int:
    return sum(len(next(iter(feed.values()))) for feed in order.calibration.feeds)
