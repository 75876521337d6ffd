"""Items of different sizes at a gateway's front: queries carry the size, and are padded."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from modelless.controller.config import Settings
from modelless.controller.dispatch.explanations import explain_receipt
from modelless.controller.live.knowledge import Knowledge, read_knowledge
from modelless.profiler.measure.records import Records
from modelless.variants.registry.catalog import Catalog
from modelless.variants.registry.registry import open_registry
from tests.unit.cli.tiny import TASK, VARIANTS, add_measurements, add_variants, measurement

from .front import INFER, Front, query, serving

NARROW, WIDE = (1, 2, 2, 3), (1, 2, 8, 3)


@pytest.fixture
def knowledge(tmp_path: Path) -> Knowledge:
    """Profiled at items of 12 numbers, and at 48, which take four times as long."""
    add_variants(tmp_path)
    add_measurements(tmp_path)
    with closing(open_registry(tmp_path)) as registry:
        records = Records(registry.store)
        for name, _, _, p50_ms in VARIANTS:
            for size, ms in ((12, p50_ms), (48, 4.0 * p50_ms)):
                point = measurement(f"pixels/mean/{name}@1", 1, ms)
                at_size = replace(point, shape=f"image={size}", is_typical=size == 12)
                records.add(at_size)
    return read_knowledge(tmp_path, Settings(learn_online=False))


def predicted_ms(front: Front, query_id: int) -> list[float]:
    """What each candidate would take."""
    receipt = front.frontend._dispatcher.receipt(query_id)
    assert receipt is not None
    return [row["p50_ms"] for row in explain_receipt(receipt)["candidates"]]


def test_a_query_is_predicted_for_its_size(knowledge: Knowledge, tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(knowledge, tmp_path) as front:
            for shape in (NARROW, WIDE):
                assert (await front.send("POST", INFER, query(shape))).status == 200
            four_times = [4.0 * ms for ms in predicted_ms(front, 1)]
            assert predicted_ms(front, 2) == pytest.approx(four_times, rel=0.022)

    asyncio.run(test())


def test_padded_items_share_a_batch(knowledge: Knowledge, tmp_path: Path) -> None:
    (spec,) = TASK.inputs
    padded = replace(TASK, inputs=(replace(spec, padding=7.0),))
    known = knowledge.catalog
    catalog = Catalog([padded], known.models.values(), known.versions.values())

    async def test() -> None:
        async with serving(replace(knowledge, catalog=catalog), tmp_path) as front:
            front.answers_at_once = False
            sent = [
                asyncio.ensure_future(front.send("POST", INFER, query((1, 2, width, 3))))
                for width in (2, 9, 10, 11)
            ]
            answers: list[Any] = []
            while len(answers) < len(sent):
                for batch in front.ran:
                    front.finish(batch)
                shapes = [[each["image"].shape for each in batch.inputs] for batch in front.ran]
                assert all(len(set(each)) == 1 for each in shapes)
                seen.extend(shape for each in shapes for shape in each)
                front.ran.clear()
                await asyncio.sleep(0)
                answers = [task for task in sent if task.done()]
            assert {task.result().status for task in answers} == {200}

    seen: list[tuple[int, ...]] = []
    asyncio.run(test())
    assert sorted(seen) == [(1, 2, 2, 3), (1, 2, 10, 3), (1, 2, 10, 3), (1, 2, 12, 3)]
