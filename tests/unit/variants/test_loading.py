"""Loading: what is warmed up, and for how long."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest

from modelless.variants.runtimes.loading import load_measured
from tests.builders import variant_of

BATCHES: list[Any] = [{"image": items} for items in (1, 2, 4, 8)]


class Session:
    """A session that notes what it ran; each item takes a second of a clock of its own."""

    memory_bytes, load_s = 0, 0.0

    def __init__(self, clock: list[float]) -> None:
        self.ran: list[int] = []
        self._clock = clock

    def infer(self, inputs: Any) -> dict[str, Any]:
        self.ran.append(inputs["image"])
        self._clock[0] += inputs["image"]
        return {}

    def unload(self) -> None:
        """Nothing is held."""


class Gauge:
    """Memory that does not change."""

    def settle(self) -> None:
        """It always is."""

    def used_bytes(self) -> int:
        return 0


@pytest.mark.parametrize(("most_s", "ran"), [(math.inf, [1, 2, 4, 8]), (2.5, [1, 2]), (0.0, [1])])
def test_what_waits_for_a_slow_model_does_not_wait_for_its_largest_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_s: float, ran: list[int]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    session: Any = Session(clock)
    artifact = tmp_path / "artifact"
    artifact.write_bytes(b"x")
    opened: list[bytes] = []

    def open_variant(data: bytes) -> Any:
        opened.append(data)
        return session

    variant = variant_of(b"x")
    loaded = load_measured(variant, artifact, 1, open_variant, BATCHES, Gauge(), most_s)
    assert opened == [b"x"]
    assert loaded.ran == ran
    assert loaded.load_s == sum(ran)
