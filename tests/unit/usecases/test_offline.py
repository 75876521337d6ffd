"""Offline runs: rows are read as they are, each is answered once, and a run goes on where it ended.

The server is a fake at the protocol; ``modelless batch`` is tried for its exit codes.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as parquet
import pytest
from typer.testing import CliRunner

from modelless.common.errors import (
    DeadlineExceededError,
    EnvironmentUnfitError,
    InfeasibleError,
    IntegrityError,
    InvalidInputError,
    ModellessError,
    OverloadedError,
    UnavailableError,
)
from modelless.common.files import held
from modelless.controller.api.v2_headers import read_headers
from modelless.controller.api.v2_reply import Reply, render_error, render_infer, render_json
from modelless.controller.api.v2_request import InferRequest, parse_infer
from modelless.controller.cli.app import app
from modelless.controller.usecases import offline
from modelless.controller.usecases.offline import Window, batch
from modelless.controller.usecases.progress import Step
from modelless.controller.usecases.row_sources import open_source
from modelless.variants.vocabulary import TensorSpec

ROWS = 103
ITEMS = np.random.default_rng(0).integers(0, 256, (ROWS, 4), np.uint8)
SPEC = TensorSpec("x", "UINT8", (-1, 4))
PICTURE = TensorSpec("image", "UINT8", (-1, -1, -1, 3))


def scores_of(items: np.ndarray) -> np.ndarray:
    """What the fake server answers."""
    return np.stack([items.sum(axis=1), items[:, 0], items[:, 1]], axis=1).astype(np.float32)


class Server:
    """A modelless of one task, whose batches have up to 8 items.

    Attributes:
        asked: the queries that came.
        refuse: an error for the nth query, or None for an answer.
    """

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[InferRequest] = []
        self.refuse: Callable[[int], ModellessError | None] = lambda _: None
        self._lock = threading.Lock()

    def get(self, path: str) -> Reply:
        if path.endswith("/config"):
            return render_json({"max_batch_size": 8})
        outputs = [{"name": "y", "datatype": "FP32", "shape": [-1, 3]}]
        return render_json(
            {
                "inputs": [{"name": SPEC.name, "datatype": "UINT8", "shape": [-1, 4]}],
                "outputs": outputs,
            }
        )

    def post(self, path: str, body: bytes, headers: list[tuple[bytes, bytes]]) -> Reply:
        if path == "/modelless/quote":  # an item takes 2 ms
            took_ms = 2.0 * json.loads(body)["items"]
            return render_json({"cheapest": {"wait_ms": 9.0, "latency_ms": 9.0 + took_ms}})
        said = read_headers(headers)
        request = parse_infer(body, said.json_length, header_parameters=said.parameters)
        with self._lock:
            self.asked.append(request)
            error = self.refuse(len(self.asked))
        if error is not None:
            return render_error(error)
        rendered, told = render_infer(
            request,
            {"y": scores_of(request.tensors["x"])},
            model_name="t",
            model_version="1",
            parameters={"variant": "t/m/v@1"},
            labels=("a", "b", "c"),
        )
        return Reply(200, rendered, told)


@pytest.fixture
def server() -> Iterator[Server]:
    fake = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.answer(fake.get(self.path))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = [(k.lower().encode(), v.encode()) for k, v in self.headers.items()]
            self.answer(fake.post(self.path, body, headers))

        def answer(self, reply: Reply) -> None:
            self.send_response(reply.status)
            for name, value in reply.headers:
                self.send_header(name.decode(), value.decode())
            self.end_headers()
            self.wfile.write(reply.body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        listening.daemon_threads = True
        fake.url = f"http://127.0.0.1:{listening.server_port}"
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        yield fake
        listening.shutdown()
        thread.join(10.0)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long runs waited before they sent a query again, seconds."""
    slept: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float, *_: object) -> None:
        slept.append(seconds)
        await real(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return slept


@pytest.fixture
def items(tmp_path: Path) -> Path:
    np.save(tmp_path / "items.npy", ITEMS)
    return tmp_path / "items.npy"


def read(output: Path) -> pa.Table:
    return pa.concat_tables(parquet.read_table(file) for file in sorted(output.glob("part-*")))


def check(output: Path) -> None:
    """Each row is there once, with its answer."""
    found = read(output)
    assert found["row"].to_pylist() == list(range(ROWS))
    np.testing.assert_array_equal(np.stack(found["y"].to_numpy()), scores_of(ITEMS))
    assert set(found["variant"].to_pylist()) == {"t/m/v@1"}
    assert (output / "_SUCCESS").exists()


# -- reading ----------------------------------------------------------------------------------


def write_table(folder: Path, kind: str) -> Path:
    """The items as a table of this kind."""
    if kind == "npy":
        np.save(folder / "items.npy", ITEMS)
        return folder / "items.npy"
    columns = {f"c{number}": ITEMS[:, number] for number in range(4)}
    if kind == "csv":
        pyarrow.csv.write_csv(pa.table(columns), folder / "items.csv")
        return folder / "items.csv"
    if kind == "list":
        columns = {"id": np.arange(ROWS), "x": pa.array(list(ITEMS.astype(np.int64)))}
    elif kind == "tensor":
        columns = {"only": pa.FixedShapeTensorArray.from_numpy_ndarray(ITEMS)}
    for number, (start, stop) in enumerate([(0, 40), (40, ROWS)]):
        part = pa.table({name: values[start:stop] for name, values in columns.items()})
        parquet.write_table(part, folder / f"{number}.parquet", row_group_size=16)
    return folder


@pytest.mark.parametrize("kind", ["npy", "csv", "columns", "list", "tensor"])
@pytest.mark.parametrize("ranges", [[(0, ROWS)], [(3, 4), (30, 60), (102, 103)]])
def test_all_forms_give_the_same_rows(
    tmp_path: Path, kind: str, ranges: list[tuple[int, int]]
) -> None:
    source = open_source(write_table(tmp_path, kind), [SPEC])
    assert source.rows == ROWS
    found = [(rows.first, rows.tensors["x"]) for rows in source.read(ranges, 8)]
    assert {array.dtype for _, array in found} == {np.dtype(np.uint8)}
    numbers = [first + n for first, array in found for n in range(len(array))]
    assert numbers == [row for start, stop in ranges for row in range(start, stop)]
    np.testing.assert_array_equal(np.concatenate([array for _, array in found]), ITEMS[numbers])


def test_pictures_come_by_shape_and_one_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for number, side in enumerate([4, 4, 6, 0, 4]):
        path = tmp_path / f"deep{number % 2}" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        if side:
            image.new("RGB", (side, side), (number, 0, 0)).save(path)
        else:
            path.write_bytes(b"no picture")
    (tmp_path / "notes.txt").write_text("no picture either")
    source = open_source(tmp_path, [PICTURE])
    assert source.names == ["deep0/0.png", "deep0/2.png", "deep0/4.png", "deep1/1.png",
                            "deep1/3.png"]  # fmt: skip
    found = list(source.read([(0, 5)], 8))
    assert [(rows.first, rows.count) for rows in found] == [(0, 1), (1, 1), (2, 2), (4, 1)]
    assert found[2].tensors["image"][:, 0, 0, 0].tolist() == [4, 1]
    assert "no image" in found[3].error


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda p: p / "none.npy", "input: got .*none.npy"),
        (lambda p: (np.save(p / "a.npy", ITEMS[:, :3]), p / "a.npy")[1], "input: shape"),
        (
            lambda p: (np.save(p / "a.npy", ITEMS.astype(int) + 300), p / "a.npy")[1],
            "input: got .*UINT8",
        ),
        (lambda p: (np.save(p / "a.npy", ITEMS * 0.5), p / "a.npy")[1], "allowed: UINT8"),
        (
            lambda p: (np.save(p / "a.npy", ITEMS.astype(str)), p / "a.npy")[1],
            "input: dtype: got 'str.*allowed: UINT8",
        ),
        (lambda p: (np.save(p / "a.npy", ITEMS * 1j), p / "a.npy")[1], "dtype: got 'complex"),
        (
            lambda p: (np.save(p / "a.npy", np.float32(7.0)), p / "a.npy")[1],
            r"input: shape: got \[\]; allowed: items \[4\]",
        ),
        (
            lambda p: (np.savez(p / "a.npz", ITEMS), (p / "a.npz").rename(p / "a.npy"))[1],
            "of one array",
        ),
        (lambda p: ((p / "a.csv").write_text("a,b\n1,2\n"), p / "a.csv")[1], "columns x, or one"),
        (lambda p: ((p / "a.csv").write_text("x\nword\n"), p / "a.csv")[1], "column x: got .*str"),
        (lambda p: ((p / "a.parquet").write_text("no"), p / "a.parquet")[1], "parquet files"),
    ],
)
def test_what_does_not_fit_is_an_error_that_says_where(
    tmp_path: Path, made: Callable[[Path], Path], words: str
) -> None:
    with pytest.raises(InvalidInputError, match=words):
        list(open_source(made(tmp_path), [SPEC]).read([(0, 1)], 8))


# -- running ----------------------------------------------------------------------------------


def test_the_window_grows_by_one_a_round_until_some_wait_and_halves_once_a_round() -> None:
    window = Window(4)
    for limit in (1, 2, 2, 2, 3):
        assert window.limit >= min(limit, 2)
        window.note_answer(0.01)
    for _ in range(20):
        window.note_answer(0.01)
    assert window.limit == 4
    for _ in range(3):
        window.note_refusal(sent_s=1.0, now_s=2.0)
    assert window.limit == 2
    window.note_refusal(sent_s=2.5, now_s=3.0)
    assert window.limit == 1
    for workers, limit in ((1, 5), (4, 8)):  # each answers in 10 ms
        window = Window(256)
        for _ in range(400):
            window.note_answer(0.01 * max(window.limit / workers, 1.0))
        assert limit - 2 <= window.limit <= limit


def test_each_row_is_answered_once_at_the_lowest_priority(
    server: Server, items: Path, tmp_path: Path
) -> None:
    steps: list[Any] = []
    done = batch(
        items, tmp_path / "out", task="t", min_accuracy=70.0, rows_per_file=10, url=server.url,
        on_progress=steps.append,
    )  # fmt: skip
    check(tmp_path / "out")
    assert (done.rows, done.rows_before, done.files) == (ROWS, 0, 11)
    assert done.served_by == {"t/m/v@1": ROWS}
    assert {(query.slo.priority, query.slo.min_accuracy) for query in server.asked} == {(-1, 70.0)}
    assert max(len(query.tensors["x"]) for query in server.asked) == 2, "as many as run for 5 ms"
    assert isinstance(steps[-1], Step)
    assert (steps[-1].done, steps[-1].total) == (ROWS, ROWS)


@pytest.mark.parametrize("rows_per_file", [1, 2, 7])
def test_a_query_may_have_the_rows_of_several_files(
    server: Server, items: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_per_file: int
) -> None:
    monkeypatch.setattr(offline, "_BRIEF_MS", 100.0)  # so that 8 rows go together
    output = tmp_path / "out"
    done = batch(items, output, task="t", rows_per_file=rows_per_file, url=server.url)
    check(output)
    sizes = [parquet.read_metadata(file).num_rows for file in sorted(output.glob("part-*"))]
    assert len(sizes) == done.files
    assert set(sizes[:-1]) == {rows_per_file}


def test_an_output_that_is_not_whole_gets_no_mark(
    server: Server, items: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    marked: list[bool] = []

    def damage(step: Step) -> None:
        if step.done == ROWS:
            (output / "part-00003.parquet").unlink()
            marked.append((output / "_SUCCESS").exists())

    batch(items, output, task="t", rows_per_file=10, url=server.url)
    (output / "part-00005.parquet").unlink()
    with pytest.raises(IntegrityError, match=r"part-00003\.parquet is missing"):
        batch(items, output, task="t", rows_per_file=10, url=server.url, on_progress=damage)
    assert marked == [False], "it went with the file that was missing before"
    assert not (output / "_SUCCESS").exists()
    batch(items, output, task="t", rows_per_file=10, url=server.url)
    check(output)


def test_refusals_are_sent_again_and_obeyed(
    server: Server, items: Path, tmp_path: Path, slept: list[float]
) -> None:
    errors = [OverloadedError("full", 7.0), UnavailableError("busy", 0.2),
              DeadlineExceededError("late")]  # fmt: skip
    server.refuse = lambda number: errors[number % 3] if number % 4 == 0 else None
    batch(items, tmp_path / "out", task="t", url=server.url)
    check(tmp_path / "out")
    assert {7.0, 0.2, 0.1} <= set(slept)


def test_where_nothing_is_loaded_an_online_query_asks_for_it(
    server: Server, items: Path, tmp_path: Path, slept: list[float]
) -> None:
    server.refuse = lambda number: UnavailableError("nothing ready") if number == 1 else None
    batch(items, tmp_path / "out", task="t", min_accuracy=70.0, url=server.url)
    check(tmp_path / "out")
    assert [query.slo.priority for query in server.asked[:3]] == [-1, 0, -1]
    assert server.asked[1].slo.min_accuracy == 70.0


@pytest.mark.parametrize("damage", [False, True])
def test_a_run_that_ended_goes_on(
    server: Server, items: Path, tmp_path: Path, damage: bool
) -> None:
    output = tmp_path / "out"
    server.refuse = lambda number: InfeasibleError("nothing") if number > 31 else None
    with pytest.raises(InfeasibleError, match="nothing"):
        batch(items, output, task="t", rows_per_file=10, url=server.url)
    there = sorted(output.glob("part-*"))
    assert 1 <= len(there) < 8
    assert not (output / "_SUCCESS").exists()
    if damage:
        there[0].write_bytes(there[0].read_bytes()[:100])
    written = {file: file.stat().st_mtime_ns for file in there[damage:]}
    server.asked.clear()
    server.refuse = lambda _: None
    done = batch(items, output, task="t", rows_per_file=10, url=server.url)
    check(output)
    assert written == {file: file.stat().st_mtime_ns for file in written}
    assert done.rows_before == 10 * len(written)
    assert sum(len(query.tensors["x"]) for query in server.asked) == ROWS - done.rows_before
    assert batch(items, output, task="t", rows_per_file=10, url=server.url).rows_before == ROWS


def test_an_output_belongs_to_one_run(server: Server, items: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    batch(items, output, task="t", url=server.url)
    with pytest.raises(InvalidInputError, match="min_accuracy: got 80"):
        batch(items, output, task="t", min_accuracy=80.0, url=server.url)
    np.save(items, ITEMS[::-1])
    with pytest.raises(InvalidInputError, match="input_sha256"):
        batch(items, output, task="t", url=server.url)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").touch()
    with pytest.raises(InvalidInputError, match="thesis"):
        batch(items, tmp_path / "full", task="t", url=server.url)
    with held(output / ".lock", "a test"), pytest.raises(EnvironmentUnfitError, match="writing to"):
        batch(items, output, task="t", url=server.url)


def test_the_likeliest_classes(server: Server, items: Path, tmp_path: Path) -> None:
    batch(items, tmp_path / "out", task="t", top=1, url=server.url)
    found = read(tmp_path / "out")["y"].to_pylist()
    assert [len(row) for row in found] == [1] * ROWS
    best = scores_of(ITEMS).argmax(axis=1)
    assert [row[0]["label"] for row in found] == ["abc"[index] for index in best]


def test_a_server_that_stays_away_ends_the_run(
    server: Server, items: Path, tmp_path: Path, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offline, "_GIVE_UP_S", 0.0)
    server.refuse = lambda number: UnavailableError("nothing ready") if number > 9 else None
    with pytest.raises(UnavailableError, match=r"no answers for .*nothing ready"):
        batch(items, tmp_path / "out", task="t", url=server.url)


def test_the_command_and_its_exit_codes(
    server: Server, items: Path, tmp_path: Path, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    nice: list[int] = []
    monkeypatch.setattr("os.nice", nice.append)

    def run(*words: object) -> tuple[int, str, str]:
        arguments = ["batch", str(items), *words, "--task", "t", "--url", server.url]
        ran = CliRunner().invoke(app, [str(word) for word in arguments])
        return ran.exit_code, ran.stdout, ran.stderr

    code, out, _ = run(tmp_path / "out", "--json")
    assert (code, json.loads(out)["rows"]) == (0, ROWS)
    code, out, err = run(tmp_path / "out")
    assert code == 0
    assert f"{ROWS} of them before" in out
    assert run(tmp_path / "out", "--top", 3)[0] == 2
    server.refuse = lambda _: InfeasibleError("nothing is so accurate")
    assert run(tmp_path / "other")[0] == 4
    server.refuse = lambda _: OverloadedError("full", 60.0)
    code, _, err = run(tmp_path / "other", "--deadline", "200ms")
    assert code == 9
    assert f"0 of {ROWS} rows" in err
    assert min(nice) > 0
