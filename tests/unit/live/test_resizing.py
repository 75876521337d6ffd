"""A real device is resized while batches run: none is dropped, and engines get its threads."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelless.controller.control.messages import PlanEffect
from modelless.controller.device.messages import LoadInstance, ResizeWorker
from modelless.controller.live.worker.device import LocalDevice
from modelless.policies.reasons import Reason
from modelless.variants.runtimes import onnxruntime_cpu
from modelless.variants.vocabulary import DeviceClass, Engine, Variant
from tests.builders import TASK, expected_scores, tiny_bytes, variant_of

SMALL = DeviceClass("cpu-1", "cpu", 1, 1 << 30, 0.05, 8.0)
LARGE = DeviceClass("cpu-2", "cpu", 2, 1 << 30, 0.10, 16.0)
IMAGES = np.random.default_rng(3).integers(0, 256, (2, 8, 8, 3), dtype=np.uint8)
WAIT_S = 30.0
RESIZE = ResizeWorker("w", "cpu-2", Reason.OPTIMISED)


def variant(name: str) -> Variant:
    made = variant_of(tiny_bytes(), name)
    return dataclasses.replace(made, engine=Engine.ONNXRUNTIME_CPU)


ONE, TWO = (variant(name) for name in ("one", "two"))
VARIANTS = {each.id: each for each in (ONE, TWO)}


class Bench:
    """A device under test, and what its engine was asked for."""

    def __init__(self, folder: Path, memory_bytes: int = 1 << 30) -> None:
        self.changed = asyncio.Event()
        self.batches = 0
        path = folder / "model.onnx"
        path.write_bytes(tiny_bytes())
        self.device = LocalDevice(
            "w",
            SMALL,
            memory_bytes,
            lambda _: path,
            {TASK.name: TASK},
            self.changed.set,
            sizes=[LARGE],
        )

    def order(self, *effects: PlanEffect) -> None:
        self.device.obey(effects, (), VARIANTS)

    async def until(self, holds: Any) -> None:
        while not holds():
            await asyncio.wait_for(self.changed.wait(), WAIT_S)
            self.changed.clear()

    async def load(self, *variants: Variant) -> None:
        self.order(*[LoadInstance("w", each.id, Reason.WANTED) for each in variants])
        await self.until(lambda: len(self.device.report().variant_ids) == len(variants))

    async def run(self, name: str) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        batch = [{"image": IMAGES}]
        self.batches += 1
        self.device.run(
            self.batches, name, batch, lambda _, busy_s, result: answer.set_result(result)
        )
        return await asyncio.wait_for(answer, WAIT_S)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads of each session that was made."""
    asked: list[int] = []
    load = onnxruntime_cpu.OnnxRuntimeCpu.load

    def remember(self: Any, *arguments: Any, threads: int, **named: Any) -> Any:
        asked.append(threads)
        return load(self, *arguments, threads=threads, **named)

    monkeypatch.setattr(onnxruntime_cpu.OnnxRuntimeCpu, "load", remember)
    return asked


def test_batches_go_on_and_the_new_size_takes_over(tmp_path: Path, threads: list[int]) -> None:
    async def serve() -> None:
        bench = Bench(tmp_path)
        await bench.load(ONE, TWO)
        assert await bench.run(ONE.id)
        bench.order(RESIZE)
        assert bench.device.state().resizing_to == "cpu-2"
        assert bench.device.report().device_class == "cpu-1", "until it is ready"
        answers = [asyncio.ensure_future(bench.run(ONE.id)) for _ in range(20)]
        await bench.until(lambda: bench.device.report().device_class == "cpu-2")
        answers += [asyncio.ensure_future(bench.run(ONE.id)) for _ in range(5)]
        for (answer,) in await asyncio.gather(*answers):
            np.testing.assert_allclose(answer["scores"], expected_scores(IMAGES), rtol=1e-5)
        assert bench.device.report().variant_ids == (ONE.id,), "the other was never used"
        assert bench.device.state().resizing_to == ""
        assert threads == [1, 1, 2]
        bench.order(LoadInstance("w", TWO.id, Reason.WANTED))
        await bench.until(lambda: len(bench.device.report().variant_ids) == 2)
        assert threads == [1, 1, 2, 2]
        bench.device.close()

    asyncio.run(serve())


def test_without_room_for_two_copies_it_stays_what_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def serve() -> None:
        bench = Bench(tmp_path, memory_bytes=2 * len(tiny_bytes()) - 1)
        await bench.load(ONE)
        bench.order(RESIZE)
        assert bench.device.state().resizing_to == ""
        assert await bench.run(ONE.id)
        bench.device.close()

    asyncio.run(serve())
    assert "w stays cpu-1 and cannot become cpu-2" in caplog.text


def test_a_load_that_fails_leaves_it_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Any, *arguments: Any, **named: Any) -> Any:
        raise OSError("no such file")

    async def serve() -> None:
        bench = Bench(tmp_path)
        await bench.load(ONE)
        monkeypatch.setattr(onnxruntime_cpu.OnnxRuntimeCpu, "load", fail)
        bench.order(RESIZE)
        while bench.device.state().resizing_to:
            await asyncio.sleep(0)
        assert bench.device.report().device_class == "cpu-1"
        assert await bench.run(ONE.id)
        bench.device.close()

    asyncio.run(serve())
    assert "stays cpu-1" in caplog.text
