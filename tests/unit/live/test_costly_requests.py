"""No request holds the event loop for long, takes far more memory than it has, or is uncounted."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import socket
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelless.controller.api.request_limits import GRPC_SERVICE, MOST_PICTURE_BYTES, Limits
from modelless.controller.api.v2_errors import PayloadTooLargeError
from modelless.controller.api.v2_reply import Headers, render_infer
from modelless.controller.config import Settings
from modelless.controller.live.front import side_thread
from modelless.controller.live.knowledge import Knowledge, read_knowledge
from tests.unit.cli.tiny import add_measurements, add_variants

from .front import INFER, Answer, Front, query, serving, until

MIB = 1 << 20


@pytest.fixture
def knowledge(tmp_path: Path) -> Knowledge:
    add_variants(tmp_path)
    add_measurements(tmp_path)
    return read_knowledge(tmp_path, Settings())


def infer_binary(
    datatype: str, shape: list[int], raw: bytes, spaces: int = 0
) -> tuple[bytes, dict[str, str]]:
    size = {"binary_data_size": len(raw)}
    given = {"name": "image", "shape": shape, "datatype": datatype, "parameters": size}
    head = json.dumps({"inputs": [given]}).encode() + b" " * spaces
    return head + raw, {"inference-header-content-length": str(len(head))}


LISTS = b"[" + b"[]," * (4 * MIB // 3 - 2) + b"[]]"


@pytest.mark.parametrize(
    ("body", "headers", "status", "says"),
    [
        (gzip.compress(LISTS), {"content-encoding": "gzip"}, 413, "take more than"),
        (LISTS, {}, 413, "Send tensors as binary data"),
        (gzip.compress(bytes(9 * MIB)), {"content-encoding": "gzip"}, 413, "in plain"),
        (b"[" * 20_000, {}, 400, "nested too deeply"),
        (b"{" * 50_000, {}, 413, "take more than"),
        (b'"' + b"a," * MIB + b'"', {}, 413, "take more than"),
        (b"[" + b"0.5," * 100_000 + b"]", {}, 400, "valid JSON"),
        (b"[" + b"1" * MIB + b"]", {}, 400, "a number of 65536 digits"),
        (b"[0." + b"1" * MIB + b"]", {}, 400, "a number of 65536 digits"),
    ],
)
def test_hostile_json_is_refused_off_the_loop(
    knowledge: Knowledge,
    tmp_path: Path,
    body: bytes,
    headers: dict[str, str],
    status: int,
    says: str,
) -> None:
    async def ask() -> None:
        async with serving(knowledge, tmp_path) as front:
            answer = await front.send("POST", INFER, body, headers)
            assert answer.status == status
            assert says in answer.document["error"]
            assert front.frontend.budget.used_bytes == 0
            assert front.frontend.replies == {status: 1}
            assert not front.ran

    tracemalloc.start()
    try:
        asyncio.run(ask())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(body) + 32 * MIB  # text, its bytes, and what it is parsed into


def test_nothing_looks_at_the_values_of_a_query_with_too_many_items(
    knowledge: Knowledge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modelless.controller.live.front.frontend.check_inputs", None)
    body, headers = infer_binary("FP32", [4000, 16, 16, 3], bytes(4 * 4000 * 768))

    async def ask() -> None:
        async with serving(knowledge, tmp_path) as front:
            answer = await front.send("POST", INFER, body, headers)
            assert answer.status == 422
            assert "4000" in answer.document["error"]
            assert answer.document["receipt_id"].startswith("g-")
            assert not front.has_open

    asyncio.run(ask())


def test_large_queries_are_answered_while_others_are(knowledge: Knowledge, tmp_path: Path) -> None:
    side = 224
    plain = np.random.default_rng(0).integers(0, 255, (1, side, side, 3), np.uint8)
    large, length = infer_binary("FP32", [4, side, side, 3], bytes(16 * plain.size))
    packed, packed_length = infer_binary("UINT8", [1, side, side, 3], plain.tobytes())
    requests = [
        (query((1, side, side, 3)), {}),
        (large, length),
        (gzip.compress(packed), {**packed_length, "content-encoding": "gzip"}),
        (query(), {}),
    ]

    async def ask() -> None:
        async with serving(knowledge, tmp_path) as front:
            answers = [front.send("POST", INFER, body, given) for body, given in requests]
            told = await asyncio.gather(*answers)
            assert [answer.status for answer in told] == [200] * 4, told
            assert front.frontend.budget.used_bytes == 0
            sums = sorted(int(t["image"].sum()) for batch in front.ran for t in batch.inputs)
            assert sums == [0, 0, 0, int(plain.sum())]

    asyncio.run(ask())


def test_what_a_compressed_body_becomes_counts_until_it_is_answered(
    knowledge: Knowledge, tmp_path: Path
) -> None:
    body, length = infer_binary("UINT8", [1, 1000, 1000, 3], bytes(3_000_000))
    packed = gzip.compress(body)

    async def ask() -> None:
        async with serving(knowledge, tmp_path, budget_bytes=4_000_000) as front:
            front.answers_at_once = False
            headers = {**length, "content-encoding": "gzip"}
            first = asyncio.ensure_future(front.send("POST", INFER, packed, headers))
            await until(lambda: front.ran)
            assert front.frontend.budget.used_bytes == len(packed) + len(body)
            refused = await front.send("POST", INFER, packed, headers)
            assert refused.status == 429
            front.finish(front.ran[0])
            assert (await first).status == 200
            assert front.frontend.budget.used_bytes == 0

    asyncio.run(ask())


@pytest.mark.parametrize("when", ["while it is read", "while it runs"])
def test_a_client_that_leaves_a_large_query_leaves_nothing_behind(
    knowledge: Knowledge, tmp_path: Path, when: str
) -> None:
    body = gzip.compress(infer_binary("UINT8", [1, 500, 500, 3], bytes(750_000))[0])
    length = infer_binary("UINT8", [1, 500, 500, 3], bytes(750_000))[1]

    async def ask() -> None:
        async with serving(knowledge, tmp_path) as front:
            front.answers_at_once = False
            headers = {**length, "content-encoding": "gzip"}
            asked = asyncio.ensure_future(front.send("POST", INFER, body, headers))
            await until(lambda: front.ran if when == "while it runs" else front.is_reading)
            asked.cancel()
            await until(lambda: not front.frontend.budget.used_bytes and not front.is_reading)
            assert front.frontend.budget.used_bytes == 0
            assert not front.has_open

    asyncio.run(ask())


def test_only_so_many_wait_for_the_thread(
    knowledge: Knowledge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_thread, "MOST_WAITING", 3)
    body = query((1, 100, 100, 3))

    async def ask() -> None:
        async with serving(knowledge, tmp_path) as front:
            asked = [front.send("POST", INFER, body) for _ in range(12)]
            statuses = [answer.status for answer in await asyncio.gather(*asked)]
            assert set(statuses) == {200, 429}
            assert statuses.count(200) >= 3
            assert front.frontend.replies == {code: statuses.count(code) for code in (200, 429)}

    asyncio.run(ask())


def test_large_feedback_is_refused_and_smaller_is_read_off_the_loop(
    knowledge: Knowledge, tmp_path: Path
) -> None:
    wrong = b'{"feedback":[{"receipt_id":"g-1","label":[' + b"null," * 40_000 + b"0]}]}"

    async def ask(front: Front) -> None:
        path = "/modelless/feedback"
        assert (await front.send("POST", path, bytes(300_000))).status == 413
        refused = await front.send("POST", path, wrong)
        assert refused.status == 400
        assert len(refused.document["error"]) < 1000
        entry = {"receipt_id": front.receipt_id(1), "correct": True}
        many = json.dumps({"feedback": [entry] * 900}).encode()
        told = await front.send("POST", path, many)
        assert (told.status, told.document["ignored"]) == (200, 900)

    async def run() -> None:
        async with serving(knowledge, tmp_path) as front:
            await ask(front)

    asyncio.run(run())


def test_strings_are_bounded_in_all_tensors_together(knowledge: Knowledge, tmp_path: Path) -> None:
    one = {"datatype": "BYTES", "shape": [9000], "parameters": {"binary_data_size": 36_000}}
    head = json.dumps({"inputs": [{"name": f"t{n}", **one} for n in range(2)]}).encode()
    headers = {"inference-header-content-length": str(len(head))}

    async def ask() -> None:
        async with serving(knowledge, tmp_path) as front:
            answer = await front.send("POST", INFER, head + bytes(72_000), headers)
            assert answer.status == 400
            assert "16384 strings a request" in answer.document["error"]

    asyncio.run(ask())


@pytest.mark.parametrize("sizes", [[5 * MIB], [3 * MIB, 3 * MIB]])
def test_the_bytes_of_strings_are_bounded_in_all_tensors_together(
    knowledge: Knowledge, tmp_path: Path, sizes: list[int]
) -> None:
    one = {"datatype": "BYTES", "shape": [1]}
    inputs = [
        {"name": f"t{number}", **one, "parameters": {"binary_data_size": 4 + size}}
        for number, size in enumerate(sizes)
    ]
    head = json.dumps({"inputs": inputs}).encode()
    headers = {"inference-header-content-length": str(len(head))}
    body = head + b"".join(size.to_bytes(4, "little") + bytes(size) for size in sizes)

    async def ask() -> None:
        async with serving(knowledge, tmp_path) as front:
            answer = await front.send("POST", INFER, body, headers)
            assert answer.status == 413
            assert "4194304 bytes of strings in a query" in answer.document["error"]

    asyncio.run(ask())


def test_the_loop_runs_while_large_json_is_parsed(knowledge: Knowledge, tmp_path: Path) -> None:
    numbers = ",".join(["0.12345678"] * 150_528)
    given = f'"name":"image","shape":[1,224,224,3],"datatype":"FP32","data":[{numbers}]'
    body = b'{"inputs":[{' + given.encode() + b"}]}"

    async def ask() -> float:
        async with serving(knowledge, tmp_path) as front:
            asked = asyncio.ensure_future(front.send("POST", INFER, body))
            longest_s, turns, all_s = 0.0, 0, time.perf_counter()
            while not asked.done():
                began_s = time.perf_counter()
                await asyncio.sleep(0)
                longest_s, turns = max(longest_s, time.perf_counter() - began_s), turns + 1
            assert (await asked).status == 400  # 0.12 is no pixel
            assert turns > 100
            return longest_s / (time.perf_counter() - all_s)

    # The machine may be busy with something else: the best of three says what the code does.
    # Parsed in one piece it is more than 0.7 of the time.
    assert min(asyncio.run(ask()) for _ in range(3)) < 0.4


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("classes", [0, 4])
def test_long_replies_are_rendered_off_the_loop(
    knowledge: Knowledge,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    binary: bool,
    classes: int,
) -> None:
    threads: list[int] = []

    def render(*args: Any, **said: Any) -> tuple[bytes, Headers]:
        threads.append(threading.get_ident())
        return render_infer(*args, **said)

    monkeypatch.setattr("modelless.controller.live.front.frontend.render_infer", render)
    wanted = {"name": "scores", "parameters": {"binary_data": binary, "classification": classes}}

    async def ask(items: int) -> Answer:
        document = json.loads(query((items, 2, 2, 3))) | {"outputs": [wanted]}
        limits = Limits(small_reply_elements=8)
        async with serving(knowledge, tmp_path, limits) as front:
            return await front.send("POST", INFER, json.dumps(document).encode())

    for items in (2, 3):
        answer = asyncio.run(ask(items))
        assert answer.document["outputs"][0]["shape"] == [items, 4], answer
    here = threading.get_ident()
    assert threads[0] == here
    assert (threads[1] == here) == (binary and not classes)


@pytest.mark.parametrize(
    ("shape", "status", "words"),
    [((12, 2, 3), 400, "shape: got [12, 2, 3]"), ((9, 2, 2, 3), 422, "1 to 8 (limits.max_batch)")],
    ids=["no axis of items", "too many items"],
)
def test_a_forgotten_axis_is_not_told_as_too_many_items(
    knowledge: Knowledge, tmp_path: Path, shape: tuple[int, ...], status: int, words: str
) -> None:
    async def ask() -> Answer:
        async with serving(knowledge, tmp_path, Limits()) as front:
            return await front.send("POST", INFER, query(shape))

    answer = asyncio.run(ask())
    assert answer.status == status
    assert words in answer.document["error"]


def test_a_client_that_leaves_before_its_long_reply_leaves_nothing_behind(
    knowledge: Knowledge, tmp_path: Path
) -> None:
    async def ask() -> None:
        async with serving(knowledge, tmp_path, Limits(small_reply_elements=1)) as front:
            front.answers_at_once = False
            asked = asyncio.ensure_future(front.send("POST", INFER, query()))
            await until(lambda: front.ran)
            front.finish(front.ran[0])
            asked.cancel()
            await until(lambda: not front.frontend.budget.used_bytes)
            assert not front.has_open
            assert (await front.send("GET", "/v2")).status == 200

    asyncio.run(ask())


@pytest.mark.parametrize("spaces", range(4))
@pytest.mark.parametrize(("datatype", "item_bytes"), [("UINT8", 1), ("FP32", 4)])
def test_a_query_takes_little_more_memory_than_its_bytes(
    knowledge: Knowledge, tmp_path: Path, datatype: str, item_bytes: int, spaces: int
) -> None:
    shape = [2, 1000, 1000, 3]
    body, length = infer_binary(datatype, shape, bytes(6_000_000 * item_bytes), spaces)
    length |= {"host": "localhost", "content-length": str(len(body))}
    head = "".join(f"{name}: {value}\r\n" for name, value in length.items())

    def send(path: Path) -> bytes:  # asyncio would copy the body
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(f"POST {INFER} HTTP/1.1\r\n{head}\r\n".encode())
            client.sendall(body)
            return client.recv(15)

    async def ask() -> int:
        async with serving(knowledge, tmp_path) as front:
            tracemalloc.start()
            assert await asyncio.to_thread(send, front.path) == b"HTTP/1.1 200 OK"
            assert [batch.inputs[0]["image"].shape for batch in front.ran] == [tuple(shape)]
            return tracemalloc.get_traced_memory()[1]

    try:
        peak = asyncio.run(ask())
    finally:
        tracemalloc.stop()
    as_uint8 = 6_000_000 if datatype == "FP32" else 0
    assert peak < len(body) + as_uint8 + 1_000_000


def test_tensors_that_are_larger_than_their_bytes_count(
    knowledge: Knowledge, tmp_path: Path
) -> None:
    body, length = infer_binary("BF16", [1, 1000, 1000, 3], bytes(6_000_000))

    async def ask(budget_bytes: int) -> Answer:
        async with serving(knowledge, tmp_path, budget_bytes=budget_bytes) as front:
            answer = await front.send("POST", INFER, body, length)
            assert front.frontend.budget.used_bytes == 0
            return answer

    assert asyncio.run(ask(18_500_000)).status == 200
    assert asyncio.run(ask(17_500_000)).status == 429


def test_a_refused_body_is_freed_at_once(knowledge: Knowledge, tmp_path: Path) -> None:
    body, length = infer_binary("FP32", [4, 1000, 1000, 1], bytes(16_000_000))

    async def ask() -> int:
        async with serving(knowledge, tmp_path) as front:
            for turn in range(4):
                if turn == 1:
                    before = tracemalloc.get_traced_memory()[0]
                assert (await front.send("POST", INFER, body, length)).status == 400
                for _ in range(1000):  # the thread that read it lets go of it after the reply
                    await asyncio.sleep(0)
            return tracemalloc.get_traced_memory()[0] - before

    gc.disable()  # it would free what frees itself not
    tracemalloc.start()
    try:
        assert asyncio.run(ask()) < 8_000_000
    finally:
        tracemalloc.stop()
        gc.enable()


def test_limits_have_sensible_sizes() -> None:
    limits = Limits()
    assert limits.small_json_bytes < limits.max_feedback_bytes < limits.max_json_bytes
    assert limits.max_json_bytes < limits.max_chunked_bytes < limits.max_body_bytes
    for method in (b"ModelInfer", b"ModelStreamInfer"):
        limits.check_body_bytes(limits.max_body_bytes, GRPC_SERVICE + method)
    for method in (b"ModelReady", b"ModelMetadata", b"ModelConfig", b"ModelStatistics", b"None"):
        limits.check_body_bytes(limits.max_feedback_bytes, GRPC_SERVICE + method)
        with pytest.raises(PayloadTooLargeError):
            limits.check_body_bytes(limits.max_feedback_bytes + 1, GRPC_SERVICE + method)


def test_a_picture_to_try_has_a_limit_of_its_own() -> None:
    limits = Limits()
    limits.check_body_bytes(MOST_PICTURE_BYTES, b"/console/try?task=a")
    for size, path in (
        (MOST_PICTURE_BYTES + 1, b"/console/try?task=a"),
        (limits.max_feedback_bytes + 1, b"/console/tryout"),
        (limits.max_feedback_bytes + 1, b"/console/policies"),
    ):
        with pytest.raises(PayloadTooLargeError):
            limits.check_body_bytes(size, path)
    with pytest.raises(PayloadTooLargeError):
        Limits(max_body_bytes=1000).check_body_bytes(1001, b"/console/try")


def test_who_is_refused_while_sending_reads_why(knowledge: Knowledge, tmp_path: Path) -> None:
    """A socket that is closed with unread data breaks the connection, and the reply is lost."""

    async def run() -> bytes:
        async with serving(knowledge, tmp_path) as front:
            reader, writer = await asyncio.open_unix_connection(str(front.path))
            head = b"POST /v2/models/pixels/infer HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n"
            writer.write(head + bytes(128 << 10))
            await writer.drain()
            reply = await reader.read()
            writer.close()
            return reply

    assert asyncio.run(run()).startswith(b"HTTP/1.1 413 ")
