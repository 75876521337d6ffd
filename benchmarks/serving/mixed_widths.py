"""Lines of print of 64 to 2,400 pixels on a running cluster, and what bursts leave behind.

    python benchmarks/serving/mixed_widths.py --home HOME [--seconds 30] [--load 0.5]
        [--latency-ms 2000] [--bursts 10] [--json FILE]

HOME must hold ``printed-lines``, profiled, and serve it with default settings (``modelless zoo
add``, ``profile``, ``up``). Three measurements:

- capacity: 32 connections, each with one query at a time and ``--latency-ms`` to spare: answers in
  time a second, and the mean number of items in a batch;
- load: Poisson arrivals at ``--load`` times that: the share in time, and the median of the error of
  predicted latencies, relative to the observed ones, and by width;
- bursts: five seconds at three times the capacity, then one query after the other: the seconds
  until an idle cluster answers in time with as accurate a variant as before the first burst, five
  times in succession.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelless import AsyncClient
from modelless.common.errors import ModellessError
from modelless.controller.usecases.client import find_url
from modelless.variants.zoo import MadeEntry, find_entry

TASK = "printed-lines"
WIDTHS_PX = (64, 2400)
CONNECTIONS = 32
BURST_S = 5.0
IN_SUCCESSION = 5
MOST_S = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One query's outcome.

    Attributes:
        width_px: of its line.
        latency_ms: as the client saw it; infinite without an answer.
        predicted_ms, observed_ms, accuracy: as the reply says; 0 without an answer.
    """

    width_px: int
    latency_ms: float = float("inf")
    predicted_ms: float = 0.0
    observed_ms: float = 0.0
    accuracy: float = 0.0


def lines_of_widths(count: int, seed: int = 2) -> list[NDArray[np.uint8]]:
    """Pictures of print, (1, 48, width, 3) uint8, whose widths are log-uniform."""
    entry = find_entry(TASK)
    assert isinstance(entry, MadeEntry)
    rng = np.random.default_rng(seed)
    drawn = [np.asarray(picture, np.uint8) for picture, _ in entry.draw(rng, 64)]
    found = []
    for width in np.geomspace(*WIDTHS_PX, count).astype(int):
        pieces: list[NDArray[np.uint8]] = []
        while sum(piece.shape[1] for piece in pieces) < width:
            pieces.append(drawn[rng.integers(len(drawn))])
        found.append(np.concatenate(pieces, axis=1)[None, :, :width])
    return found


async def ask(client: AsyncClient, line: NDArray[np.uint8], latency_ms: float) -> Answer:
    """Send one query; its outcome, refusals included."""
    width_px, began_s = line.shape[2], time.perf_counter()
    try:
        reply = await client.infer(TASK, {"image": line}, latency_ms=latency_ms)
    except ModellessError:
        return Answer(width_px)
    if reply.status != 200:
        return Answer(width_px)
    said = reply.parameters
    return Answer(
        width_px,
        (time.perf_counter() - began_s) * 1e3,
        said["predicted_latency_ms"],
        said["observed_latency_ms"],
        said["accuracy"],
    )


async def closed_loop(
    client: AsyncClient, lines: list[NDArray[np.uint8]], latency_ms: float, seconds: float
) -> list[Answer]:
    """Keep ``CONNECTIONS`` queries under way."""
    end_s = time.monotonic() + seconds

    async def one(place: int) -> list[Answer]:
        found = []
        while time.monotonic() < end_s:
            found.append(await ask(client, lines[place % len(lines)], latency_ms))
            place += CONNECTIONS
        return found

    return [a for each in await asyncio.gather(*map(one, range(CONNECTIONS))) for a in each]


async def open_loop(
    client: AsyncClient,
    lines: list[NDArray[np.uint8]],
    latency_ms: float,
    per_s: float,
    seconds: float,
) -> list[Answer]:
    """Send each query when it is due, whatever becomes of those before it."""
    due_s = np.cumsum(np.random.default_rng(3).exponential(1.0 / per_s, int(per_s * seconds)))
    began_s = time.monotonic()
    asked = []
    for place, at_s in enumerate(due_s):
        await asyncio.sleep(max(began_s + at_s - time.monotonic(), 0.0))
        asked.append(asyncio.create_task(ask(client, lines[place % len(lines)], latency_ms)))
    return list(await asyncio.gather(*asked))


def batches_of(url: str) -> tuple[float, float]:
    """Items and batches that ran so far."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as reply:
        text = reply.read().decode()
    sums = [
        sum(float(value) for value in re.findall(rf"^{name}{{.*}} (\S+)$", text, re.MULTILINE))
        for name in ("modelless_batch_items_sum", "modelless_batch_items_count")
    ]
    return sums[0], sums[1]


async def seconds_back(
    client: AsyncClient, line: NDArray[np.uint8], latency_ms: float, accuracy: float
) -> float:
    """Return when the first of ``IN_SUCCESSION`` good answers was; infinite after ``MOST_S``."""
    began_s, first_s, good = time.monotonic(), float("inf"), 0
    while time.monotonic() - began_s < MOST_S:
        asked_s = time.monotonic()
        answer = await ask(client, line, latency_ms)
        if answer.latency_ms <= latency_ms and answer.accuracy >= accuracy:
            first_s = min(first_s, asked_s - began_s)
            good += 1
            if good == IN_SUCCESSION:
                return first_s
        else:
            first_s, good = float("inf"), 0
        await asyncio.sleep(0.1)
    return float("inf")


def in_time(answers: list[Answer], latency_ms: float) -> float:
    return statistics.fmean(answer.latency_ms <= latency_ms for answer in answers)


def errors_of(answers: list[Answer]) -> list[tuple[int, float]]:
    """Width and relative error of the predicted latency of each answer."""
    return [
        (answer.width_px, abs(answer.predicted_ms - answer.observed_ms) / answer.observed_ms)
        for answer in answers
        if answer.observed_ms
    ]


async def measure(url: str, arguments: argparse.Namespace) -> Mapping[str, Any]:
    """Run the three measurements; what they found, as plain data."""
    lines = lines_of_widths(600)
    latency_ms: float = arguments.latency_ms
    async with AsyncClient(url, retries=0, connections=1000) as client:
        await open_loop(client, lines, latency_ms, 3.0, 5.0)  # loads what is wanted
        items, batches = batches_of(url)
        closed = await closed_loop(client, lines, latency_ms, arguments.seconds)
        more_items, more_batches = batches_of(url)
        good = sum(answer.latency_ms <= latency_ms for answer in closed)
        capacity_per_s = good / arguments.seconds
        mean_batch = (more_items - items) / max(more_batches - batches, 1.0)
        print(f"capacity {capacity_per_s:.1f} a second, {mean_batch:.2f} items a batch", flush=True)

        await asyncio.sleep(5.0)
        per_s = arguments.load * capacity_per_s
        answers = await open_loop(client, lines, latency_ms, per_s, arguments.seconds)
        errors = errors_of(answers)
        median = statistics.median(error for _, error in errors)
        share = in_time(answers, latency_ms)
        mean_accuracy = statistics.fmean(a.accuracy for a in answers if a.observed_ms)
        print(f"load {arguments.load:g}: {len(answers)} sent, {share:.2%} in time", flush=True)
        print(f"mean accuracy {mean_accuracy:.1f}; median error of predictions {median:.1%}")
        for low, high in ((64, 200), (200, 600), (600, 2401)):
            some = [error for width, error in errors if low <= width < high]
            print(f"  {low} to {high - 1} pixels: {statistics.median(some):.1%} of {len(some)}")

        await asyncio.sleep(10.0)
        line = next(each for each in lines if 200 <= each.shape[2] <= 400)
        before = [await ask(client, line, latency_ms) for _ in range(20)]
        accuracy = max(answer.accuracy for answer in before)
        back_s = []
        for burst in range(arguments.bursts):
            sent = await open_loop(client, lines, latency_ms, 3.0 * capacity_per_s, BURST_S)
            back_s.append(await seconds_back(client, line, latency_ms, accuracy))
            print(
                f"burst {burst}: {in_time(sent, latency_ms):.0%} in time; "
                f"{accuracy:g} % again after {back_s[-1]:.1f} s",
                flush=True,
            )
    return {
        "capacity_per_s": capacity_per_s,
        "mean_batch": mean_batch,
        "in_time": share,
        "median_error": median,
        "answers": [asdict(answer) for answer in answers],
        "back_s": back_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--load", type=float, default=0.5)
    parser.add_argument("--latency-ms", type=float, default=2000.0)
    parser.add_argument("--bursts", type=int, default=10)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = asyncio.run(measure(find_url(arguments.home, None), arguments))
    if arguments.json:
        arguments.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
