"""Receipts in files: a sample that leaves room for each kind, a bound in bytes, found by id."""

from __future__ import annotations

import asyncio
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from modelless.common.errors import InvalidInputError
from modelless.controller.config import HistorySettings
from modelless.controller.dispatch.receipts import Receipt, RecentReceipts
from modelless.controller.history.receipts import (
    OLD_FILES_KEPT,
    ReceiptFiles,
    WantedReceipts,
    drop_old_files,
    find_receipt,
    gateway_of,
    read_receipts,
    receipts_folder,
)
from modelless.controller.live.front.receipt_log import ReceiptLog, sample, weigh
from tests.unit.dispatch.world import World, make_query


def closed(number: int, outcome: str = "served") -> Receipt:
    return Receipt(make_query(number, 1.0), outcome=outcome)


def ids(receipts: list[Receipt]) -> list[int]:
    return [receipt.query.query_id for receipt in receipts]


def test_a_sample_has_room_for_each_kind() -> None:
    served = [closed(number) for number in range(100)]
    refused = [closed(number, "refused") for number in range(100, 110)]
    chosen = sample(served + refused, 20)
    assert ids(chosen[10:]) == list(range(100, 110))
    assert ids(chosen[:10]) == list(range(0, 100, 10))
    assert weigh(served + refused, chosen) == [10.0] * 10 + [1.0] * 10
    flood = [closed(number, "refused") for number in range(1000)]
    chosen = sample(flood + served, 20)
    assert [receipt.outcome for receipt in chosen] == ["refused"] * 10 + ["served"] * 10
    assert sample(served, 200) == served
    assert sample(served, 0) == []


def test_one_refusal_among_a_flood_of_badly_predicted_answers_is_kept() -> None:
    slow = [closed(number) for number in range(400)]
    for receipt in slow:
        receipt.observed_latency_s = 1.0
    for most in (1, 2, 20):
        chosen = sample([*slow[:200], closed(500, "refused"), *slow[200:]], most)
        assert len(chosen) == most
        assert 500 in ids(chosen)


def test_what_is_new_in_a_book() -> None:
    book = RecentReceipts()
    receipts = [closed(number) for number in range(5)]
    for receipt in receipts[:3]:
        book.add(receipt)
    assert ids(book.newest(None, 10)) == [0, 1, 2]
    book.add(receipts[3])
    book.add(receipts[4])
    assert ids(book.newest(receipts[2], 10)) == [3, 4]
    assert ids(book.newest(receipts[2], 1)) == [4]
    assert book.newest(receipts[4], 10) == []


def test_what_arrived_up_to_a_time_is_found_in_all_gateways_files(tmp_path: Path) -> None:
    def second(number: int) -> str:
        return f"2026-03-01T12:00:{number:02d}.500+00:00"

    for gateway, numbers in (("a", range(0, 60, 2)), ("b", range(1, 60, 2))):
        files = ReceiptFiles(tmp_path, gateway, 1024)
        for number in numbers:
            files.write([{"receipt_id": f"{gateway}-{number}", "arrived_at": second(number)}])
    assert (tmp_path / "a.older.gz").exists()

    def until(text: str, most: int) -> list[str]:
        found = read_receipts(
            tmp_path, WantedReceipts(until=datetime.fromisoformat(text), most=most)
        )
        return [str(each["receipt_id"]) for each in found]

    assert until("2026-03-01T12:00:58+00:00", 3) == ["b-55", "a-56", "b-57"]
    assert until("2026-03-01T13:00:58.5+01:00", 1) == ["a-58"]
    assert until("2026-03-01T11:00:00+00:00", 3) == []


def document(number: int, **more: object) -> dict[str, object]:
    arrived = f"2026-03-01T12:{number // 60:02d}:{number % 60:02d}.000+00:00"
    return {"receipt_id": f"gw-{number}", "arrived_at": arrived, **more}


def test_files_are_bounded_and_the_newest_are_found(tmp_path: Path) -> None:
    files = ReceiptFiles(tmp_path, "gw", 4096)
    for number in range(300):
        files.write([document(number)])
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 4096 + 128
    assert find_receipt(tmp_path, "gw-299") == document(299)
    assert find_receipt(tmp_path, "gw-29") is None  # long gone, and no beginning of another
    assert find_receipt(tmp_path, "other-1") is None
    files.write([document(300), document(301)])
    assert [d["receipt_id"] for d in read_receipts(tmp_path, WantedReceipts(most=2))] == [
        "gw-300",
        "gw-301",
    ]
    newest = tmp_path / "gw.receipts.gz"
    newest.write_bytes(newest.read_bytes()[:-5])  # killed while it wrote
    assert find_receipt(tmp_path, "gw-299") == document(299)


def test_receipts_are_found_by_tenant_task_outcome_and_time(tmp_path: Path) -> None:
    rows = [
        ("shop", "imagenet", "served"),
        ("shop", "imagenet/lite0", "refused"),
        ("other", "imagenet", "served"),
        ("shop", "speech", "served-late"),
        ('sho"p', "imagenet with imagenet/lite0/int8@2", "served"),
    ]
    ReceiptFiles(tmp_path, "gw", 1 << 20).write(
        document(number, scope=scope, tenant=tenant, outcome=outcome, last=None)
        for number, (tenant, scope, outcome) in enumerate(rows)
    )

    def found(**wanted: Any) -> list[int]:
        told = read_receipts(tmp_path, WantedReceipts(**wanted))
        return [int(each["receipt_id"].removeprefix("gw-")) for each in told]

    assert found() == [0, 1, 2, 3, 4]
    assert found(tenant="shop") == [0, 1, 3]
    assert found(tenant='sho"p') == [4]
    assert found(tenant="sh") == []
    assert found(task="imagenet") == [0, 1, 2, 4]
    assert found(task="imagenet/lite0") == [1]
    assert found(task="image") == []
    assert found(outcomes=("served",)) == [0, 2, 4]
    assert found(outcomes=("refused", "served-late"), tenant="shop") == [1, 3]
    since = datetime.fromisoformat("2026-03-01T12:00:02+00:00")
    assert found(since=since, most=2) == [3, 4]
    assert found(since=since, until=since) == [2]


def test_files_of_gateways_long_gone_are_dropped(tmp_path: Path) -> None:
    for number in range(OLD_FILES_KEPT + 3):
        path = tmp_path / f"gw{number}.receipts.gz"
        path.write_text("")
        os.utime(path, (number, number))
    (tmp_path / "fresh.receipts.gz").write_text("")
    drop_old_files(tmp_path, (tmp_path / "fresh.receipts.gz").stat().st_mtime)
    left = {path.name for path in tmp_path.iterdir()}
    assert len(left) == OLD_FILES_KEPT + 1
    assert {"fresh.receipts.gz", "gw3.receipts.gz"} <= left
    assert "gw2.receipts.gz" not in left


@pytest.mark.parametrize("text", ["17", "gw-", "../x-3", "gw-1.5", "", "-3"])
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="receipt id"):
        gateway_of(text)


def test_a_log_writes_a_sample_and_at_the_end_the_rest(tmp_path: Path) -> None:
    world = World()
    world.add_worker()
    queries = []
    for _ in range(6):
        queries.append(world.ask(latency_ms=50.0))
        world.finish()

    async def serve() -> None:
        log = ReceiptLog(tmp_path, "gw", HistorySettings(receipts_per_s=1000))
        log.log_new(world.dispatcher.receipts)
        await log._writing
        world.ask(latency_ms=0.001)
        log.close(world.dispatcher.receipts)

    asyncio.run(serve())
    told = {
        row["query_id"]: row for row in read_receipts(receipts_folder(tmp_path), WantedReceipts())
    }
    assert sorted(told) == [*queries, queries[-1] + 1]
    assert told[queries[0]]["outcome"] == "served"
    assert told[queries[0]]["candidates"]
    assert told[queries[-1] + 1]["weight"] == 1.0
    assert told[queries[-1] + 1]["reason"] == "too-slow"
