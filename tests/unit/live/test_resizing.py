"""A real device is resized while batches run: none is dropped, and engines get its threads."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelless.controller.device import load_queue
from modelless.controller.effects import LoadInstance, ResizeWorker
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


ONE, TWO, THREE = (variant(name) for name in ("one", "two", "three"))
VARIANTS = {each.id: each for each in (ONE, TWO, THREE)}


class Bench:
    """A device under test, and what its engine was asked for."""

    def __init__(self, folder: Path, memory_bytes: int = 1 << 30) -> None:
        self.changed = asyncio.Event()
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

    async def until(self, holds: Any) -> None:
        while not holds():
            await asyncio.wait_for(self.changed.wait(), WAIT_S)
            self.changed.clear()

    async def load(self, *variants: Variant) -> None:
        for each in variants:
            self.device.load(each)
        await self.until(lambda: len(self.device.report().variant_ids) == len(variants))

    async def run(self, name: str) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        batch = [{"image": IMAGES}]
        self.device.run(1, name, batch, lambda _, busy_s, result: answer.set_result(result))
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
        bench.device.obey([RESIZE], {ONE.id}, VARIANTS)
        assert bench.device.state(set()).resizing_to == "cpu-2"
        assert bench.device.report().device_class == "cpu-1", "until it is ready"
        answers = [asyncio.ensure_future(bench.run(ONE.id)) for _ in range(20)]
        await bench.until(lambda: bench.device.report().device_class == "cpu-2")
        answers += [asyncio.ensure_future(bench.run(ONE.id)) for _ in range(5)]
        for (answer,) in await asyncio.gather(*answers):
            np.testing.assert_allclose(answer["scores"], expected_scores(IMAGES), rtol=1e-5)
        assert bench.device.report().variant_ids == (ONE.id,), "the other was never used"
        assert bench.device.state(set()).resizing_to == ""
        assert threads == [1, 1, 2]
        bench.device.load(TWO)
        await bench.until(lambda: len(bench.device.report().variant_ids) == 2)
        assert threads == [1, 1, 2, 2]
        bench.device.close()

    asyncio.run(serve())


def test_while_it_is_resized_nothing_else_is_begun(tmp_path: Path, threads: list[int]) -> None:
    async def serve() -> None:
        bench = Bench(tmp_path)
        await bench.load(ONE)
        load = LoadInstance("w", TWO.id, Reason.WANTED)
        bench.device.obey([RESIZE, RESIZE, load], set(), VARIANTS)
        await bench.until(lambda: bench.device.report().device_class == "cpu-2")
        assert threads == [1, 2]
        bench.device.close()

    asyncio.run(serve())


def test_what_comes_into_use_meanwhile_is_taken_along(tmp_path: Path, threads: list[int]) -> None:
    async def serve() -> None:
        bench = Bench(tmp_path)
        await bench.load(ONE, TWO, THREE)
        await bench.run(ONE.id)
        bench.device.obey([RESIZE], {ONE.id}, VARIANTS)
        await bench.run(TWO.id)
        await bench.until(lambda: bench.device.report().device_class == "cpu-2")
        assert set(bench.device.report().variant_ids) == {ONE.id, TWO.id}
        assert bench.device.holds(TWO.id)
        assert not bench.device.holds(THREE.id)
        assert threads == [1, 1, 1, 2, 2]
        bench.device.close()

    asyncio.run(serve())


def test_what_came_into_use_and_has_no_room_twice_leaves(
    tmp_path: Path, threads: list[int]
) -> None:
    async def serve() -> None:
        bench = Bench(tmp_path)
        await bench.load(ONE, TWO)
        await bench.run(ONE.id)
        bench.device.obey([RESIZE], {ONE.id}, VARIANTS)
        bench.device._residency.memory_bytes = 0
        await bench.run(TWO.id)
        await bench.until(lambda: bench.device.report().device_class == "cpu-2")
        assert bench.device.report().variant_ids == (ONE.id,)
        bench.device.close()

    asyncio.run(serve())


def test_copies_that_wait_to_be_loaded_do_not_hold_it_up(
    tmp_path: Path, threads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_queue, "SHARE", 1e-9)

    async def serve() -> None:
        bench = Bench(tmp_path)
        await bench.load(ONE)
        await bench.run(ONE.id)
        for variant in (TWO, THREE):
            bench.device.load(variant, Reason.ANOTHER_COPY)
        await bench.until(lambda: len(bench.device.report().variant_ids) == 2)
        bench.device.obey([RESIZE], set(), VARIANTS)
        await bench.until(lambda: bench.device.report().device_class == "cpu-2")
        assert [one.variant_id for one in bench.device.state(set()).instances] == [ONE.id]
        assert threads == [1, 1, 2]
        bench.device.load(THREE)
        await bench.until(lambda: len(bench.device.report().variant_ids) == 2)
        bench.device.close()

    asyncio.run(serve())


def test_without_room_for_two_copies_it_stays_what_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def serve() -> None:
        bench = Bench(tmp_path, memory_bytes=2 * len(tiny_bytes()) - 1)
        await bench.load(ONE)
        bench.device.obey([RESIZE], {ONE.id}, VARIANTS)
        assert bench.device.state(set()).resizing_to == ""
        assert await bench.run(ONE.id)
        bench.device.close()

    asyncio.run(serve())
    assert "w cannot become cpu-2" in caplog.text


def test_a_load_that_fails_leaves_it_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Any, *arguments: Any, **named: Any) -> Any:
        raise OSError("no such file")

    async def serve() -> None:
        bench = Bench(tmp_path)
        await bench.load(ONE)
        monkeypatch.setattr(onnxruntime_cpu.OnnxRuntimeCpu, "load", fail)
        bench.device.obey([RESIZE], {ONE.id}, VARIANTS)
        while bench.device.state(set()).resizing_to:
            await asyncio.sleep(0)
        assert bench.device.report().device_class == "cpu-1"
        assert await bench.run(ONE.id)
        bench.device.close()

    asyncio.run(serve())
    assert "stays cpu-1" in caplog.text


def test_what_is_unloaded_meanwhile_does_not_come_back(tmp_path: Path) -> None:
    async def serve() -> None:
        bench = Bench(tmp_path)
        await bench.load(ONE, TWO)
        bench.device.obey([RESIZE], set(), VARIANTS)
        bench.device.unload(TWO.id)
        await bench.until(lambda: bench.device.report().device_class == "cpu-2")
        assert bench.device.report().variant_ids == (ONE.id,)
        bench.device.close()

    asyncio.run(serve())
