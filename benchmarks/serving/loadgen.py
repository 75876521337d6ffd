"""MLPerf LoadGen drives a running modelless over HTTP: the rates that a third party finds valid.

It needs a package that the product does not, and that no requirements file has:
``pip install mlcommons-loadgen``. https://github.com/mlcommons/inference/tree/master/loadgen

- server: Poisson arrivals, a query an item. The highest rate at which LoadGen calls the run VALID:
  the 99th percentile of the latency is within the bound, by LoadGen's own clock, client included.
  A query names 90 % of the bound as its deadline. A refusal is reported to LoadGen only after the
  bound, so it counts as late. Rates double until one is not valid, and are then halved in between.
- offline: all items are there at the beginning, and are sent in batches. Items in a second.

Both for each minimum accuracy; an answer below it ends the benchmark. Other than in MLPerf's own
submissions the model is not given, runs are short, inputs are random and answers are not judged.

    modelless up &
    python benchmarks/serving/loadgen.py --task imagenet [--min-accuracy 0,74,77] [--p99-ms 200]
        [--scenarios server,offline] [--seconds 30] [--json FILE]

LoadGen's own summaries and logs are kept in ``--logs``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

from modelless.common.errors import ModellessError
from modelless.controller.usecases.client import AsyncClient, Client, EncodedQuery, encode_infer
from modelless.profiler.measure.inputs import sample_inputs
from modelless.variants.vocabulary import SLO, TensorSpec

SAMPLES = 64
DEADLINE_SHARE = 0.9
"""Of the latency bound: the rest is for the way there and back, and for LoadGen."""
NEAR = 1.05
"""The search ends when the lowest invalid rate is so many times the highest valid one."""
FEWEST_QUERIES = 1000
"""LoadGen says that a run is not valid if too few queries show that the bound holds: 459 if all do,
more the nearer the percentile is to the bound."""
OFFLINE_TRIES = 4
_VALID = re.compile(r"^Result is : (\w+)", re.MULTILINE)
_FIGURES = {
    "per_s": re.compile(r"^(?:Completed samples per second|Samples per second)\s*: ([\d.]+)", re.M),
    "p99_ns": re.compile(r"^99\.00 percentile latency \(ns\)\s*: (\d+)", re.M),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--url", default="http://localhost:8080")
    parser.add_argument("--task", default="imagenet", help="or a model or variant of it")
    parser.add_argument("--min-accuracy", default="0,74,77")
    parser.add_argument("--p99-ms", type=float, default=200.0)
    parser.add_argument("--scenarios", default="server,offline")
    parser.add_argument("--seconds", type=float, default=30.0, help="of a run, at least")
    parser.add_argument("--from-per-s", type=float, default=8.0, help="the first rate to try")
    parser.add_argument("--batch", type=int, default=8, help="items of a query, offline")
    parser.add_argument("--side", type=int, default=224, help="of a size that the task leaves free")
    parser.add_argument("--connections", type=int, default=256)
    parser.add_argument("--logs", type=Path, default=Path(tempfile.gettempdir()) / "loadgen")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    runs = []
    for minimum in map(float, arguments.min_accuracy.split(",")):
        for scenario in arguments.scenarios.split(","):
            with Driver(arguments, scenario, minimum) as driver:
                found = driver.find_rate() if scenario == "server" else driver.run_offline()
            runs.append({"scenario": scenario, "min_accuracy": minimum, **found})
    print(f"\n{'scenario':9}{'minimum':>9}{'items/s':>10}{'p99 ms':>9}{'accuracy':>10}")
    for run in runs:
        print(
            f"{run['scenario']:9}{run['min_accuracy']:8g}%{run['per_s']:10.1f}"
            f"{run['p99_ms']:9.1f}{run['accuracy']:9.2f}%"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(runs, indent=1))


class Driver:
    """Sends what LoadGen issues, from a thread with an event loop.

    Args:
        arguments: of the command line.
        scenario: ``server`` or ``offline``.
        minimum: accuracy that every query asks for, per cent.
    """

    def __init__(self, arguments: argparse.Namespace, scenario: str, minimum: float) -> None:
        import mlperf_loadgen

        self._loadgen = mlperf_loadgen
        self._arguments = arguments
        self._scenario = scenario
        self._minimum = minimum
        self._bound_s = arguments.p99_ms / 1e3
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        is_server = scenario == "server"
        limits = SLO(DEADLINE_SHARE * arguments.p99_ms if is_server else None, minimum or None)
        with Client(arguments.url) as client:
            specs = [
                TensorSpec(each["name"], each["datatype"], tuple(each["shape"]))
                for each in client.get(f"/v2/models/{arguments.task}")["inputs"]
            ]
        sides = {spec.name: [arguments.side] * spec.shape[1:].count(-1) for spec in specs}
        self._items = 1 if is_server else arguments.batch
        self._queries: list[EncodedQuery] = [
            encode_infer(
                arguments.task,
                sample_inputs(specs, self._items, free_axes=sides, seed=seed),
                limits,
            )
            for seed in range(SAMPLES)
        ]
        # Retries would hide refusals from the server scenario.
        self._client = AsyncClient(
            arguments.url,
            timeout_s=600.0,
            retries=0 if is_server else 5,
            connections=arguments.connections,
        )
        self._open = asyncio.Semaphore(arguments.connections if is_server else 32)
        self._accuracies: Counter[float] = Counter()
        self._refused: Counter[int] = Counter()
        self._failure: Exception | None = None

    def __enter__(self) -> Driver:
        self._thread.start()
        self._do(self._client.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._client.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _do(self, work: Coroutine[Any, Any, Any]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def find_rate(self) -> dict[str, Any]:
        """The run at the highest valid rate that was found; one at rate 0 if none was valid."""
        best: dict[str, Any] = {"per_s": 0.0, "p99_ms": float("nan"), "accuracy": float("nan")}
        valid, invalid, rate = 0.0, float("inf"), self._arguments.from_per_s
        while invalid > NEAR * valid and rate > self._arguments.from_per_s / 16:
            found = self.run(rate)
            if found["is_valid"]:
                valid, best = rate, found
            else:
                invalid = rate
            lowest = valid or invalid / 4
            rate = 2.0 * valid if invalid == float("inf") else (lowest + invalid) / 2
        return best

    def run_offline(self) -> dict[str, Any]:
        """The first run that is valid: LoadGen has to be told about how many items it takes."""
        per_s = self._arguments.from_per_s
        for _ in range(OFFLINE_TRIES):
            found = self.run(per_s)
            if found["is_valid"]:
                return found
            per_s = 1.2 * found["per_s"]
        raise SystemExit(f"no offline run was valid: see {self._arguments.logs}")

    def run(self, per_s: float) -> dict[str, Any]:
        """One run of LoadGen at ``per_s`` items a second; offline that is what it expects."""
        lg, seconds = self._loadgen, self._arguments.seconds
        self._accuracies.clear()
        self._refused.clear()
        settings = lg.TestSettings()
        settings.mode = lg.TestMode.PerformanceOnly
        settings.min_duration_ms = round(seconds * 1e3)
        if self._scenario == "server":
            settings.scenario = lg.TestScenario.Server
            settings.server_target_qps = per_s
            settings.server_target_latency_ns = round(self._bound_s * 1e9)
            settings.server_target_latency_percentile = 0.99
            settings.min_query_count = max(round(per_s * seconds), FEWEST_QUERIES)
        else:
            settings.scenario = lg.TestScenario.Offline
            settings.offline_expected_qps = per_s
            settings.min_query_count = 1
        folder = self._arguments.logs / f"{self._scenario}-{self._minimum:g}-{per_s:g}"
        folder.mkdir(parents=True, exist_ok=True)
        with self._constructed() as (system, library):
            logs = lg.LogSettings()
            logs.log_output.outdir = str(folder)
            logs.enable_trace = False
            lg.StartTestWithLogSettings(system, library, settings, logs)
        if self._failure is not None:
            raise SystemExit(f"the benchmark is void: {self._failure}")
        found = read_summary((folder / "mlperf_log_summary.txt").read_text())
        answered = self._accuracies.total()
        weighted = sum(percent * count for percent, count in self._accuracies.items())
        found["accuracy"] = weighted / answered if answered else float("nan")
        found["refused"] = dict(self._refused)
        told = "valid" if found["is_valid"] else "not valid"
        print(
            f"{self._scenario} from {self._minimum:g} % at {per_s:.1f}/s: {told}, "
            f"{found['per_s']:.1f}/s, p99 {found['p99_ms']:.1f} ms, "
            f"accuracy {found['accuracy']:.2f} %, refused {found['refused']}",
            flush=True,
        )
        return found

    @contextlib.contextmanager
    def _constructed(self) -> Iterator[tuple[int, int]]:
        lg = self._loadgen
        system = lg.ConstructSUT(self._issue, lambda: None)
        library = lg.ConstructQSL(SAMPLES, SAMPLES, lambda _: None, lambda _: None)
        try:
            yield system, library
        finally:
            lg.DestroyQSL(library)
            lg.DestroySUT(system)

    def _issue(self, samples: Any) -> None:
        """LoadGen's thread: hand the samples to the event loop, and return."""
        issued_s = time.monotonic()
        wanted = [(sample.id, sample.index) for sample in samples]
        parts = [wanted[at : at + self._items] for at in range(0, len(wanted), self._items)]
        self._loop.call_soon_threadsafe(self._begin, parts, issued_s)

    def _begin(self, parts: list[list[tuple[int, int]]], issued_s: float) -> None:
        for part in parts:
            task = self._loop.create_task(self._send(part, issued_s))
            task.add_done_callback(self._note)

    def _note(self, task: asyncio.Task[None]) -> None:
        if task.exception() is not None:
            self._failure = task.exception()  # type: ignore[assignment]

    async def _send(self, part: list[tuple[int, int]], issued_s: float) -> None:
        """Send a query, and tell LoadGen of its end, whatever that is: it waits for each."""
        try:
            async with self._open:
                reply = await self._client.send(self._queries[part[0][1]])
            if not reply.is_answer:
                reply.raise_for_status()
            accuracy = float(reply.parameters["accuracy"])
            if accuracy < self._minimum:
                raise ValueError(f"accuracy {accuracy} %, below {self._minimum} %")
            self._accuracies[accuracy] += len(part)
        except ModellessError as error:
            if self._scenario == "offline":
                raise
            self._refused[error.http_status] += 1
            await asyncio.sleep(issued_s + 2.0 * self._bound_s - time.monotonic())
        finally:
            lg = self._loadgen
            lg.QuerySamplesComplete([lg.QuerySampleResponse(id_, 0, 0) for id_, _ in part])


def read_summary(text: str) -> dict[str, Any]:
    """The figures of LoadGen's summary: items a second, 99th percentile, and its verdict."""
    verdict = _VALID.search(text)
    figures = {name: pattern.search(text) for name, pattern in _FIGURES.items()}
    if verdict is None or None in figures.values():
        raise SystemExit(f"not a summary of LoadGen:\n{text[:400]}")
    values = {name: float(found[1]) for name, found in figures.items() if found is not None}
    return {
        "is_valid": verdict[1] == "VALID",
        "per_s": values["per_s"],
        "p99_ms": values["p99_ns"] / 1e6,
    }


if __name__ == "__main__":
    main()
