"""Offline runs: the answers to all rows of a table, an array or a folder, at the lowest priority.

One process sends the rows to the running modelless as queries of priority -1, which get what all
others leave, and writes the answers as numbered Parquet files. A file appears whole or not at all,
so a run that was ended in any way goes on with the files that are missing, and each row is in the
output once.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from modelless.common.errors import (
    DeadlineExceededError,
    IntegrityError,
    InvalidInputError,
    UnavailableError,
)
from modelless.common.files import held, write_whole
from modelless.common.parquet import import_pyarrow
from modelless.controller.usecases.client import (
    AsyncClient,
    Client,
    EncodedQuery,
    InferReply,
    encode_infer,
    find_url,
)
from modelless.controller.usecases.home import Home
from modelless.controller.usecases.inferring import specs_of
from modelless.controller.usecases.progress import Progress, Step, ignore
from modelless.controller.usecases.row_sources import Ranges, Rows, Source, open_source
from modelless.variants.signature import dtype_of
from modelless.variants.vocabulary import OFFLINE, SLO, TensorSpec

MANIFEST: Final = "_run.json"
DONE: Final = "_SUCCESS"

_LATENCY_MS: Final = 30_000.0
"""How long a query waits for a worker; after that it is sent again."""
_BRIEF_MS: Final = 5.0
"""Rows go together as long as they run no longer: online queries wait for a batch that runs."""
_MOST_BYTES: Final = 4 << 20  # of a query
_LEAST_WAITING: Final = 2.0
_MOST_WAITING: Final = 4.0
"""Queries of this run that wait in the server at a time: fewer may leave a worker idle, and more
come in bursts that delay what else the gateway reads."""
_FORGET: Final = 1.001
"""The least latency becomes so many times as long with each answer, because it may have changed."""
_GIVE_UP_S: Final = 300.0
"""A run ends if nothing is there to answer for so long."""
_PAUSES_S: Final = (0.1, 5.0)
_READ_AHEAD: Final = 32  # queries
_SHOW_EVERY_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class OfflineRun:
    """What came of a run.

    Attributes:
        output: the folder with the answers.
        rows: all rows of the input.
        rows_before: those that were there when it began.
        rows_with_error: those that could not be read; see the column ``error``.
        files: the number of Parquet files.
        seconds, rows_per_s: of this run.
        served_by: of this run, the rows by variant.
    """

    output: Path
    rows: int
    rows_before: int
    rows_with_error: int
    files: int
    seconds: float
    rows_per_s: float
    served_by: Mapping[str, int]


def batch(
    input: Path | str,
    output: Path | str,
    *,
    task: str,
    min_accuracy: float | None = None,
    deadline_s: float | None = None,
    top: int | None = None,
    rows_per_file: int = 5000,
    most_in_flight: int = 256,
    url: str | None = None,
    key: str | None = None,
    home: Home = None,
    on_progress: Progress = ignore,
) -> OfflineRun:
    """Answer all rows of a table, an array or a folder of pictures with what online queries leave.

    The cheapest variants that are loaded and accurate enough serve. A run that was ended goes on if
    it is called again with the same input and output.

    Args:
        input: see ``open_source``.
        output: a folder for Parquet files, which is made.
        task: ``task``, ``task/model`` or ``task/model/variant``.
        min_accuracy: per cent.
        deadline_s: the run ends after so many seconds, done or not.
        top: answer with that many likeliest classes instead of whole tensors.
        rows_per_file: of the output; what is lost if a run is killed is a few files at most.
        most_in_flight: queries at once.
        url: of the server; default: the one that runs from ``home``.
        key: to send with each query; default: $MODELLESS_KEY.
        home: see ``home_folder``.
        on_progress: receives the rows done, and the time left.

    Raises:
        InvalidInputError: the input does not fit the task, or the output is another run's.
        DeadlineExceededError: it is not done; call it again to go on.
        InfeasibleError: no variant is accurate enough.
        UnavailableError: the server was away, or had nothing loaded to answer, for five minutes.
        EnvironmentUnfitError: pyarrow is not installed, or another run writes to the output.
        IntegrityError: a file of the output was removed or changed while it ran.

    Examples:
        >>> done = modelless.batch("images.npy", "out", task="fashion-mnist")  # doctest: +SKIP
        >>> done.rows, done.rows_before  # doctest: +SKIP
        (1000000, 0)
    """
    for name, value in (("rows_per_file", rows_per_file), ("top", top or 1)):
        if value < 1:
            raise InvalidInputError.of(name, value, "1 or more")
    address, folder = find_url(home, url), Path(output)
    with Client(address, key=key) as client:
        described = client.get(f"/v2/models/{quote(task, safe='/@')}")
        source = open_source(Path(input), specs_of(described["inputs"]))
        rows_a_query = _rows_a_query(client, task, min_accuracy, source)
    settings = {"task": task, "min_accuracy": min_accuracy, "top": top}
    outputs = specs_of(described["outputs"])
    with held(folder / ".lock", f"writing to {folder}"):
        files = _Files(folder, source, outputs, top, rows_per_file, settings)
        run = _Run(
            source, files, task,
            SLO(_LATENCY_MS, min_accuracy, priority=OFFLINE, when_late="refuse"),
            {spec.name: top for spec in outputs if _is_class(spec)} if top else None,
            Window(most_in_flight), rows_a_query, on_progress,
        )  # fmt: skip
        asyncio.run(run.send_all(AsyncClient(
            address, 2e-3 * _LATENCY_MS, retries=0, key=key, connections=most_in_flight
        ), deadline_s))  # fmt: skip
        return files.finish(run)


def _rows_a_query(client: Client, task: str, min_accuracy: float | None, source: Source) -> int:
    """How many rows go together: as many as run for ``_BRIEF_MS`` at most, or one."""
    config = client.get(f"/v2/models/{quote(task, safe='/@')}/config")
    most = int(config["max_batch_size"])
    first = next((rows for rows in source.read([(0, source.rows)], 1) if rows.tensors), None)
    if first is None:
        return 1
    size = sum(items.size for items in first.tensors.values())
    item_bytes = sum(items.nbytes for items in first.tensors.values())
    most = max(min(most, _MOST_BYTES // max(item_bytes, 1)), 1)
    limits = {"priority": OFFLINE, "latency_ms": 3.6e6}
    if min_accuracy is not None:
        limits["min_accuracy"] = min_accuracy
    while most > 1:
        asked = {"task": task, "items": most, "item_size": size, "parameters": limits}
        found = client.get("/modelless/quote", asked)["cheapest"]
        if found is not None and found["latency_ms"] - found["wait_ms"] <= _BRIEF_MS:
            break
        most //= 2
    return most


class Window:
    """How many queries are in flight, so that few wait in the server, as in TCP Vegas (Brakmo and
    Peterson, IEEE Journal on Selected Areas in Communications 1995). It halves after a refusal.

    Args:
        most: queries at once.
    """

    def __init__(self, most: int) -> None:
        self._most, self._limit, self._cut_s = most, 1.0, -1.0
        self._least_s = math.inf

    @property
    def limit(self) -> int:
        """How many queries may be in flight."""
        return int(self._limit)

    def note_answer(self, latency_s: float) -> None:
        """Let one query more or less in flight after as many answers, by how many waited."""
        self._least_s = min(_FORGET * self._least_s, latency_s)
        waiting = self._limit * (1.0 - self._least_s / latency_s)
        if waiting < _LEAST_WAITING:
            self._limit = min(self._limit + 1.0 / self._limit, self._most)
        elif waiting > _MOST_WAITING:
            self._limit = max(self._limit - 1.0 / self._limit, 1.0)

    def note_refusal(self, sent_s: float, now_s: float) -> None:
        """Halve the window, once for all that was in flight."""
        if sent_s >= self._cut_s:
            self._limit, self._cut_s = max(self._limit / 2.0, 1.0), now_s


@dataclass
class _Run:
    """One run.

    Attributes:
        limits: of each query.
        classes: as of ``encode_infer``.
        served_by: rows answered by this run, by variant.
        began_s: when it began.
    """

    source: Source
    files: _Files
    task: str
    limits: SLO
    classes: Mapping[str, int] | None
    window: Window
    rows_a_query: int
    on_progress: Progress
    served_by: Counter[str] = field(default_factory=Counter)
    began_s: float = field(default_factory=time.monotonic)
    _in_flight: int = 0
    _answered_s: float = -1e9
    _heard_s: float = 0.0
    _shown_s: float = 0.0

    async def send_all(self, client: AsyncClient, deadline_s: float | None) -> None:
        """Send what is missing, and write the answers."""
        self._heard_s = time.monotonic()
        self._changed = asyncio.Event()
        rows = self._read()
        try:
            async with asyncio.timeout(deadline_s), client, asyncio.TaskGroup() as tasks:
                while some := await asyncio.to_thread(lambda: list(islice(rows, _READ_AHEAD))):
                    for each in some:
                        while self._in_flight >= self.window.limit:
                            self._changed.clear()
                            await self._changed.wait()
                        self._in_flight += 1
                        tasks.create_task(self._answer(client, each))
        except TimeoutError:
            done = self.files.rows_done
            raise DeadlineExceededError(
                f"deadline: {done} of {self.source.rows} rows were done after {deadline_s:g} s. "
                "The same command goes on from there."
            ) from None
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    def _read(self) -> Iterator[Rows]:
        """Yield the rows of the missing files, in queries that belong to one file each."""
        step = self.files.rows_per_file
        for rows in self.source.read(self.files.missing(), self.rows_a_query):
            start = 0
            while start < rows.count:  # there may be several borders of files among them
                stop = min(start + step - (rows.first + start) % step, rows.count)
                cut = {name: items[start:stop] for name, items in rows.tensors.items()}
                yield Rows(rows.first + start, stop - start, cut, rows.error)
                start = stop

    async def _answer(self, client: AsyncClient, rows: Rows) -> None:
        reply = None if rows.error else await self._send_until_answered(client, rows)
        if reply is not None:
            self.served_by[str(reply.parameters.get("variant"))] += rows.count
        if written := self.files.add(rows, reply):
            await asyncio.to_thread(written)
        self._in_flight -= 1
        self._changed.set()
        self._show()

    async def _send_until_answered(self, client: AsyncClient, rows: Rows) -> InferReply:
        query, pause_s = self._encode(rows, self.limits), _PAUSES_S[0]
        while True:
            sent_s = time.monotonic()
            try:
                reply = await client.send(query)
                is_there = reply.status in (429, 504)
                wait_s = reply.retry_after_s or 0.0
                if reply.is_answer:
                    self.window.note_answer(time.monotonic() - sent_s)
                    self._answered_s = self._heard_s = time.monotonic()
                    return reply
                if not is_there and reply.status != 503:
                    reply.raise_for_status()
                problem = reply.error
            except (UnavailableError, DeadlineExceededError) as error:
                is_there, wait_s, problem = False, 0.0, str(error)
            now_s = time.monotonic()
            self.window.note_refusal(sent_s, now_s)
            if is_there:
                self._heard_s = now_s
            elif now_s - self._heard_s > _GIVE_UP_S:
                raise UnavailableError(f"no answers for {_GIVE_UP_S:g} s: {problem}")
            elif now_s - self._answered_s > _PAUSES_S[1]:
                # Offline queries are no demand that anything is loaded for: this one is.
                query = self._encode(rows, SLO(_LATENCY_MS, self.limits.min_accuracy))
            await asyncio.sleep(max(pause_s, wait_s))
            pause_s = min(2.0 * pause_s, _PAUSES_S[1])

    def _encode(self, rows: Rows, limits: SLO) -> EncodedQuery:
        names = {"cache_control": "no-store"}  # these would push online queries' answers out
        return encode_infer(self.task, rows.tensors, limits, classes=self.classes, names=names)

    def _show(self) -> None:
        now_s = time.monotonic()
        done, total = self.files.rows_done, self.source.rows
        if now_s - self._shown_s < _SHOW_EVERY_S and done < total:
            return
        self._shown_s = now_s
        per_s = (done - self.files.rows_before) / max(now_s - self.began_s, 1e-6)
        left_s = (total - done) / per_s if per_s else None
        self.on_progress(Step("rows", done, total, f"{per_s:,.0f} rows/s", left_s))


class _Files:
    """The output of a run: numbered Parquet files of equal numbers of rows.

    Args:
        folder: where they are; what says which run they are of is there, too.
        source: the input.
        outputs: of the task.
        top: see ``batch``.
        rows_per_file: of each but the last.
        settings: what must be the same for a run to go on.

    Attributes:
        rows_before: rows that were there at the beginning.
        rows_done: rows that are answered.
    """

    def __init__(
        self,
        folder: Path,
        source: Source,
        outputs: Sequence[TensorSpec],
        top: int | None,
        rows_per_file: int,
        settings: Mapping[str, Any],
    ) -> None:
        self._arrow, self._parquet = import_pyarrow()
        self.folder, self.rows_per_file, self._source = folder, rows_per_file, source
        self._top, self._outputs = top, outputs
        self._open: dict[int, list[_Answer]] = {}
        self._check(settings)
        self.count = -(-source.rows // rows_per_file)
        self._missing = [n for n in range(self.count) if not self._is_there(n)]
        if self._missing:
            (folder / DONE).unlink(missing_ok=True)
        self.rows_before = source.rows - sum(map(self._rows_in, self._missing))
        self.rows_done = self.rows_before

    def missing(self) -> Ranges:
        """The rows of the files that are not there."""
        ranges: list[tuple[int, int]] = []
        for number in self._missing:
            start = number * self.rows_per_file
            if ranges and ranges[-1][1] == start:
                start = ranges.pop()[0]
            ranges.append((start, number * self.rows_per_file + self._rows_in(number)))
        return ranges

    def add(self, rows: Rows, reply: InferReply | None) -> Callable[[], None] | None:
        """Take the answer to some rows; return what writes their file if that is complete."""
        number = rows.first // self.rows_per_file
        known = self._open.setdefault(number, [])
        known.append(_Answer(rows.first, rows.count, reply, rows.error or None))
        self.rows_done += rows.count
        if sum(answer.rows for answer in known) < self._rows_in(number):
            return None
        del self._open[number]
        return lambda: self._write(number, sorted(known, key=lambda answer: answer.first))

    def finish(self, run: _Run) -> OfflineRun:
        """Mark the output as complete if it is, and say what came of the run."""
        dataset = import_module("pyarrow.dataset")
        for number in range(self.count):
            if not self._is_there(number):
                raise IntegrityError(
                    f"output {self.folder}: {self._path(number).name} is missing or has not "
                    f"{self._rows_in(number)} rows. The same command writes it again."
                )
        files = [str(self._path(number)) for number in range(self.count)]
        errors = dataset.field("error").is_valid()
        found = dataset.dataset(files).count_rows(filter=errors) if files else 0
        write_whole(self.folder / DONE, b"", mode=0o644)
        seconds = time.monotonic() - run.began_s
        rows_per_s = (self.rows_done - self.rows_before) / max(seconds, 1e-6)
        return OfflineRun(
            self.folder, self._source.rows, self.rows_before, found, self.count, seconds,
            rows_per_s, dict(run.served_by),
        )  # fmt: skip

    def _check(self, settings: Mapping[str, Any]) -> None:
        """Note what the output is of, or check that it is of the same."""
        digest = hashlib.sha256()
        for name, path in self._source.files.items():
            there = path.stat()
            digest.update(f"{name}\0{there.st_size}\0{there.st_mtime_ns}\0".encode())
        mine = {**settings, "rows": self._source.rows, "rows_per_file": self.rows_per_file}
        mine["input_sha256"] = digest.hexdigest()
        path = self.folder / MANIFEST
        if not path.exists():
            if others := [each.name for each in self.folder.iterdir() if each.name != ".lock"]:
                allowed = "a new or empty folder, or that of the same run"
                raise InvalidInputError.of("output", f"{self.folder} with {others[0]}", allowed)
            write_whole(path, json.dumps(mine, indent=2).encode(), mode=0o644)
            return
        try:
            known = json.loads(path.read_bytes())
        except ValueError:
            known = {}
        for name, value in mine.items():
            if known.get(name) != value:
                raise InvalidInputError.of(
                    f"output {self.folder}: {name}", value, f"{known.get(name)}, as it began",
                    "Name another folder for another run.",
                )  # fmt: skip

    def _rows_in(self, number: int) -> int:
        return min(self.rows_per_file, self._source.rows - number * self.rows_per_file)

    def _path(self, number: int) -> Path:
        return self.folder / f"part-{number:05d}.parquet"

    def _is_there(self, number: int) -> bool:
        try:
            there = self._parquet.read_metadata(self._path(number)).num_rows
        except (OSError, ValueError):  # damaged: it is written again
            return False
        return bool(there == self._rows_in(number))

    def _write(self, number: int, answers: Sequence[_Answer]) -> None:
        path = self._path(number)
        part = self.folder / f".{path.name}.part"
        with part.open("wb") as file:
            self._parquet.write_table(self._table_of(answers), file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)

    def _table_of(self, answers: Sequence[_Answer]) -> Any:
        """The columns of a file: the rows' numbers and names, the outputs, variant and error."""
        arrow = self._arrow
        first = answers[0].first
        last = answers[-1].first + answers[-1].rows
        columns: dict[str, Any] = {"row": arrow.array(range(first, last), arrow.int64())}
        if self._source.names is not None:
            columns["file"] = arrow.array(self._source.names[first:last], arrow.string())
        for spec in self._outputs:
            for name, kind in self._columns_of(spec):
                chunks = [
                    arrow.nulls(answer.rows, kind)
                    if answer.reply is None
                    else self._array_of(answer.reply, spec.name, name, kind)
                    for answer in answers
                ]
                columns[name] = arrow.chunked_array(chunks, kind)
        variants: list[str | None] = []
        errors: list[str | None] = []
        for answer in answers:
            served_by = answer.reply.parameters.get("variant") if answer.reply else None
            variants += [served_by] * answer.rows
            errors += [answer.error] * answer.rows
        columns["variant"] = arrow.array(variants, arrow.string())
        columns["error"] = arrow.array(errors, arrow.string())
        return arrow.table(columns).combine_chunks()

    def _columns_of(self, spec: TensorSpec) -> list[tuple[str, Any]]:
        """The columns of an output: its values, row-major, and their shapes if sizes are free."""
        arrow = self._arrow
        if self._top and _is_class(spec):
            parts = {"score": arrow.float64(), "index": arrow.int32(), "label": arrow.string()}
            return [(spec.name, arrow.list_(arrow.struct(list(parts.items()))))]
        is_text = spec.datatype == "BYTES"
        value = arrow.binary() if is_text else arrow.from_numpy_dtype(dtype_of(spec.datatype))
        if len(spec.shape) == 1:
            return [(spec.name, value)]
        if -1 in spec.shape[1:]:
            shapes = arrow.list_(arrow.int32())
            return [(spec.name, arrow.list_(value)), (f"{spec.name}_shape", shapes)]
        return [(spec.name, arrow.list_(value, math.prod(spec.shape[1:])))]

    def _array_of(self, reply: InferReply, output: str, column: str, kind: Any) -> Any:
        arrow = self._arrow
        if output in reply.classes:
            names = ("score", "index", "label")
            items = reply.classes[output]
            rows = [[dict(zip(names, each, strict=True)) for each in item] for item in items]
            return arrow.array(rows, kind)
        tensor = reply.tensors[output]
        if column != output:
            return arrow.array([list(tensor.shape[1:])] * len(tensor), kind)
        if arrow.types.is_fixed_size_list(kind):
            flat = arrow.array(tensor.reshape(-1), kind.value_type)
            return arrow.FixedSizeListArray.from_arrays(flat, kind.list_size)
        return arrow.array(
            tensor if tensor.ndim == 1 else list(tensor.reshape(len(tensor), -1)), kind
        )


class _Answer(NamedTuple):
    first: int
    rows: int
    reply: InferReply | None
    error: str | None


def _is_class(spec: TensorSpec) -> bool:
    return len(spec.shape) == 2 and spec.shape[1] != 1
