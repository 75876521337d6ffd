"""The measurement of one placement at one batch size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime

from modelless.common.errors import InvalidInputError
from modelless.profiler.measure.item_shapes import count_elements
from modelless.variants.vocabulary import Placement


@dataclass(frozen=True, slots=True)
class Measurement:
    """One placement measured at one batch size, with items of one size, on one machine.

    Attributes:
        variant_id, device_class: the placement.
        batch: items in a batch.
        threads: intra-op threads.
        engine: engine and version, e.g. ``onnxruntime-cpu-1.20.1``.
        device_name: common name of the processor or card.
        repeats: number of timed runs.
        p50_s, p90_s, p99_s, mean_s: latency of the whole batch, seconds.
        throughput_per_s: items a second, one batch after another.
        memory_bytes: growth of resident memory by loading and running at this batch size.
        load_s: time from the artifact on disk to a warm session, seconds.
        trusted: whether the machine was quiet enough and the median is known well enough.
        noise: noise as a multiple of its limit; up to 1 a measurement can be trusted.
        measured_at: time with a time zone.
        fingerprint: fingerprint of the machine, see ``DeviceFacts.fingerprint_of``.
        shape: of an item, as ``item_shapes.write_shape`` writes it; empty where the task leaves no
            size free, or none was known.
        is_typical: whether items are usually of this size; one size of a placement is.
    """

    variant_id: str
    device_class: str
    batch: int
    threads: int
    engine: str
    device_name: str
    repeats: int
    p50_s: float
    p90_s: float
    p99_s: float
    mean_s: float
    throughput_per_s: float
    memory_bytes: int
    load_s: float
    trusted: bool
    noise: float
    measured_at: datetime
    fingerprint: str
    shape: str = ""
    is_typical: bool = True

    def __post_init__(self) -> None:
        for name in ("batch", "threads", "repeats"):
            if getattr(self, name) < 1:
                raise self._error(name, "1 or more")
        for name in ("p50_s", "p90_s", "p99_s", "mean_s", "throughput_per_s"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise self._error(name, "a finite number, more than 0")
        for name in ("memory_bytes", "load_s", "noise"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise self._error(name, "a finite number, 0 or more")
        if not self.p50_s <= self.p90_s <= self.p99_s:
            raise InvalidInputError.of(
                f"measurement of {self.variant_id} at batch {self.batch}: p50_s, p90_s, p99_s",
                (self.p50_s, self.p90_s, self.p99_s),
                "in ascending order",
            )
        if self.measured_at.tzinfo is None:
            raise self._error("measured_at", "a time with a time zone")

    def _error(self, name: str, allowed: str) -> InvalidInputError:
        return InvalidInputError.of(
            f"measurement of {self.variant_id} at batch {self.batch}: {name}",
            getattr(self, name),
            allowed,
        )

    @property
    def elements(self) -> int:
        """The numbers in one item's inputs together; 0 where no shape is known."""
        return count_elements(self.shape)

    @property
    def placement(self) -> Placement:
        """The measured placement."""
        return Placement(self.variant_id, self.device_class)
