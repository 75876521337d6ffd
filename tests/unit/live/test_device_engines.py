"""A gateway's device with one file under several engines."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import itertools
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import parser

from modelless.common.errors import EnvironmentUnfitError
from modelless.controller.device import load_backoff
from modelless.controller.device.messages import LoadInstance, UnloadInstance
from modelless.controller.live.worker.batch_replies import TurnedBack
from modelless.controller.live.worker.device import LocalDevice
from modelless.policies.reasons import Reason
from modelless.variants.runtimes.onnxruntime_session import OnnxRuntimeVariant
from modelless.variants.vocabulary import DeviceClass, Engine, TensorSpec, Variant
from tests.builders import TASK, expected_scores, need, tiny_bytes, variant_of

CPU = DeviceClass("cpu-1", "cpu", 1, 1 << 30, 0.05, 8.0)
IMAGES = np.random.default_rng(3).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
WAIT_S = 30.0
WINDOWS = """
<ir_version: 8, opset_import: ["": 17]>
windows (float[N, S] audio) => (float[N, W] level) {
    shape = Constant <value_ints = [0, -1, 512]> ()
    parts = Reshape (audio, shape)
    level = ReduceMean <axes = [2], keepdims = 0> (parts)
}
"""
BATCH_IDS = itertools.count()


def variant(name: str, engine: Engine) -> Variant:
    """The same file under another name and engine."""

    return dataclasses.replace(variant_of(tiny_bytes(), name), engine=engine)


def artifact(folder: Path) -> Path:
    """The file that all of them share."""
    path = folder / hashlib.sha256(tiny_bytes()).hexdigest()
    path.write_bytes(tiny_bytes())
    return path


def load(device: LocalDevice, *variants: Variant, reason: Reason = Reason.WANTED) -> None:
    """Order the device to load these."""
    orders = [LoadInstance("w", each.id, reason) for each in variants]
    device.obey(orders, (), {each.id: each for each in variants})


def unload(device: LocalDevice, variant_id: str, for_variant_id: str = "") -> None:
    """Order the device to unload a variant, whether a batch runs on it or not."""
    device.obey([UnloadInstance("w", variant_id, Reason.ROOM_NEEDED, for_variant_id)], (), {})


async def load_all(folder: Path, variants: Sequence[Variant], done: int) -> LocalDevice:
    """A device that was asked to load ``variants``, once ``done`` of them are there."""
    changed = asyncio.Event()
    path = artifact(folder)
    device = LocalDevice("w", CPU, 1 << 30, lambda _: path, {TASK.name: TASK}, changed.set)
    load(device, *variants)
    while len(device.report().variant_ids) < done:
        await asyncio.wait_for(changed.wait(), WAIT_S)
        changed.clear()
    return device


async def run(device: LocalDevice, variant_id: str) -> Any:
    """The outputs of two queries in one batch."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    queries = [{"image": IMAGES[:1]}, {"image": IMAGES[1:]}]
    device.run(
        next(BATCH_IDS), variant_id, queries, lambda _, busy_s, result: answer.set_result(result)
    )
    return await asyncio.wait_for(answer, WAIT_S)


def test_both_answer_alike_side_by_side(tmp_path: Path) -> None:
    need(Engine.OPENVINO)
    variants = [variant("ort", Engine.ONNXRUNTIME_CPU), variant("ov", Engine.OPENVINO)]

    async def serve() -> None:
        device = await load_all(tmp_path, variants, done=2)
        for each in variants:
            one, two = await run(device, each.id)
            np.testing.assert_allclose(one["scores"], expected_scores(IMAGES[:1]), rtol=1e-5)
            np.testing.assert_allclose(two["scores"], expected_scores(IMAGES[1:]), rtol=1e-5)
        instances = device.state().instances
        sizes = {instance.variant_id: instance.memory_bytes for instance in instances}
        assert set(sizes) == {each.id for each in variants}
        assert min(sizes.values()) >= len(tiny_bytes())
        unload(device, variants[0].id)
        assert device.report().variant_ids == (variants[1].id,)
        assert len(await run(device, variants[1].id)) == 2
        device.close()

    asyncio.run(serve())


def test_it_warms_up_with_items_of_the_size_that_was_profiled(tmp_path: Path) -> None:
    """Windows of 512 samples do not divide a warm-up item of 224."""
    data = parser.parse_model(WINDOWS).SerializeToString()
    path = tmp_path / hashlib.sha256(data).hexdigest()
    path.write_bytes(data)
    inputs = (TensorSpec("audio", "FP32", (-1, -1)),)
    task = dataclasses.replace(
        TASK, inputs=inputs, outputs=(TensorSpec("level", "FP32", (-1, -1)),)
    )
    windows = dataclasses.replace(variant_of(data, "windows"), engine=Engine.ONNXRUNTIME_CPU)

    async def serve() -> None:
        changed = asyncio.Event()
        device = LocalDevice(
            "w", CPU, 1 << 30, lambda _: path, {task.name: task}, changed.set,
            item_shape=lambda _: {"audio": (1024,)},
        )  # fmt: skip
        load(device, windows)
        await asyncio.wait_for(changed.wait(), WAIT_S)
        assert device.report().variant_ids == (windows.id,), device.failed_loads
        device.close()

    asyncio.run(serve())


def test_an_absent_engine_is_told_and_the_others_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    absent, there = variant("trt", Engine.TENSORRT), variant("ort", Engine.ONNXRUNTIME_CPU)

    async def serve() -> None:
        device = await load_all(tmp_path, [absent, there], done=1)
        assert "pip install 'modelless[gpu]'" in device.failed_loads[absent.id]
        assert len(await run(device, there.id)) == 2
        device.close()

    asyncio.run(serve())


def test_an_unload_that_fails_is_told_and_the_others_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: OnnxRuntimeVariant) -> None:
        raise EnvironmentUnfitError("CUDA: cudaFree failed: cudaErrorIllegalAddress")

    variants = [variant("one", Engine.ONNXRUNTIME_CPU), variant("two", Engine.ONNXRUNTIME_CPU)]

    async def serve() -> None:
        device = await load_all(tmp_path, variants, done=2)
        with monkeypatch.context() as patch:
            patch.setattr(OnnxRuntimeVariant, "unload", fail)
            unload(device, variants[0].id)
            assert len(await run(device, variants[1].id)) == 2
        device.check_health(time.monotonic())
        device.close()

    asyncio.run(serve())
    assert f"cannot unload {variants[0].id} in w" in caplog.text


def test_a_device_is_empty_until_it_is_asked_to_load(tmp_path: Path) -> None:
    async def ask() -> None:
        device = await load_all(tmp_path, [], done=0)
        assert device.is_empty
        load(device, variant("ort", Engine.ONNXRUNTIME_CPU))
        assert not device.is_empty
        device.close()

    asyncio.run(ask())


def test_fifty_cold_orders_cause_one_load(tmp_path: Path) -> None:
    async def ask() -> None:
        one = variant("ort", Engine.ONNXRUNTIME_CPU)
        device = await load_all(tmp_path, [one] * 50, done=1)
        load(device, one)
        changes = device.take_changes()
        assert [(c.kind, c.variant_id, c.reason) for c in changes] == [
            ("loaded", one.id, Reason.WANTED)
        ]
        assert changes[0].seconds > 0.0
        assert changes[0].memory_bytes >= len(tiny_bytes())
        device.close()

    asyncio.run(ask())


def test_what_waits_to_run_is_answered_before_it_is_freed(tmp_path: Path) -> None:
    async def ask() -> None:
        one = variant("ort", Engine.ONNXRUNTIME_CPU)
        device = await load_all(tmp_path, [one], done=1)
        waiting = [asyncio.create_task(run(device, one.id)) for _ in range(20)]
        await asyncio.sleep(0)  # all are handed over
        unload(device, one.id, "t/other/x@1")
        refused = await run(device, one.id)
        assert isinstance(refused, TurnedBack)
        assert refused.holds == device.report()
        for answer in await asyncio.gather(*waiting):
            np.testing.assert_allclose(answer[0]["scores"], expected_scores(IMAGES[:1]), rtol=1e-5)
        while not device.is_empty:
            await asyncio.sleep(0)
        evicted = device.take_changes()[-1]
        assert (evicted.kind, evicted.reason) == ("unloaded", Reason.ROOM_NEEDED)
        assert evicted.for_variant_id == "t/other/x@1"
        device.close()

    asyncio.run(ask())


def test_a_load_says_what_it_displaced(tmp_path: Path) -> None:
    async def ask() -> None:
        old, new = (variant(name, Engine.ONNXRUNTIME_CPU) for name in ("old", "new"))
        device = await load_all(tmp_path, [old], done=1)
        device.take_changes()
        orders = [
            UnloadInstance("w", old.id, Reason.ROOM_NEEDED, new.id),
            LoadInstance("w", new.id, Reason.DEMAND),
        ]
        device.obey(orders, set(), {old.id: old, new.id: new})
        while device.report().variant_ids != (new.id,):
            await asyncio.sleep(0)
        evicted, loaded = device.take_changes()
        assert (evicted.kind, evicted.variant_id) == ("unloaded", old.id)
        assert (loaded.kind, loaded.reason, loaded.displaced) == (
            "loaded",
            Reason.DEMAND,
            (old.id,),
        )
        device.close()

    asyncio.run(ask())


def test_a_load_that_fails_is_not_tried_again_at_once(tmp_path: Path) -> None:
    tries: list[str] = []

    def fetch(sha256: str) -> Path:
        tries.append(sha256)
        raise EnvironmentUnfitError("the file is gone")

    async def ask() -> None:
        device = LocalDevice("w", CPU, 1 << 30, fetch, {TASK.name: TASK}, lambda: None)
        wanted = variant("ort", Engine.ONNXRUNTIME_CPU)
        load(device, wanted)
        while not device.failed_loads:
            await asyncio.sleep(0)
        load(device, wanted)
        assert device.is_empty
        assert device.state().barred == {wanted.id}
        assert device.failed_loads == {wanted.id: "the file is gone (next try in 1 s)"}
        device.check_health(time.monotonic())
        device.close()

    asyncio.run(ask())
    assert len(tries) == 1


def test_a_load_that_never_ends_makes_the_device_unfit_and_batches_still_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = threading.Event()
    path = artifact(tmp_path)
    good, stuck = variant("ort", Engine.ONNXRUNTIME_CPU), variant("two", Engine.ONNXRUNTIME_CPU)
    changed = asyncio.Event()

    def fetch(_: str) -> Path:
        if changed.is_set():
            ending.wait(WAIT_S)
        return path

    async def ask() -> None:
        device = LocalDevice(
            "w", CPU, 1 << 30, fetch, {TASK.name: TASK}, changed.set, load_s=lambda _: 0.0
        )
        load(device, good)
        await asyncio.wait_for(changed.wait(), WAIT_S)
        load(device, stuck)
        device.check_health(time.monotonic())
        monkeypatch.setattr(load_backoff, "LOAD_S", 0.0)
        with pytest.raises(RuntimeError, match=f"load of {stuck.id} has run for"):
            device.check_health(time.monotonic())
        assert len(await run(device, good.id)) == 2
        ending.set()
        device.close()

    asyncio.run(ask())


def test_a_device_that_serves_wakes_after_each_rest_between_copies(tmp_path: Path) -> None:
    async def ask() -> None:
        first, *copies = (variant(name, Engine.ONNXRUNTIME_CPU) for name in ("a", "b", "c"))
        device = await load_all(tmp_path, [first], done=1)
        await run(device, first.id)
        load(device, *copies, reason=Reason.ANOTHER_COPY)
        while len(device.report().variant_ids) < 3:
            await asyncio.sleep(0)
        assert device.report().variant_ids == (first.id, *[copy.id for copy in copies])
        device.close()

    asyncio.run(ask())
