"""An offline run beside online load: what it costs the online queries, and is each row there once?

    python benchmarks/serving/batch.py [--rows 1000000] [--per-s 100] [--latency-ms 50]

It brings up a modelless with fashion-mnist in a home of its own, or takes the one that runs from
``--home``. An open-loop client sends online queries all the time, from a process of its own.
``modelless batch`` answers random images beside it. It is held (SIGSTOP) for ``--alone-s`` in each
``--cycle-s`` seconds, killed (SIGKILL) once half of its files are there, and begun again.

Printed are the online queries in time and their mean accuracy, alone and beside it; by how much the
share in time falls, with the standard error over the cycles; the rows a second while it was not
held; and whether the output has every row once, in order, and answers as their variants give them
in this process. Exit code 1 if not. A million rows take less than 15 minutes on two quiet cores.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow.parquet as parquet
from open_loop import TASK, spec_of

from modelless.controller.demo.load import LoadProcess
from modelless.controller.demo.query_log import Row, Tally
from modelless.controller.usecases.client import find_url
from modelless.controller.usecases.home import open_home
from modelless.variants.runtimes import find_runtime

_TOLERANCE = 1e-3  # sums of another order, in another batch
_COMPARED = 64  # rows of each variant and file
_LONGEST_S = 3600.0
_SETTLES_S = 1.0  # left out of each stretch, at its beginning


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--home", type=Path, help="of a running modelless with fashion-mnist; default: its own")
    add("--rows", type=int, default=1_000_000)
    add("--per-s", type=float, default=100.0, help="online queries a second")
    add("--latency-ms", type=float, default=50.0, help="limit of the online queries")
    add("--min-accuracy", type=float, default=90.0, help="of all queries")
    add("--cycle-s", type=float, default=40.0)
    add("--alone-s", type=float, default=10.0, help="of each cycle")
    add("--rows-per-file", type=int, default=5000)
    add("--json", type=Path)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends what it began
    with tempfile.TemporaryDirectory() as name, running(arguments.home, Path(name)) as home:
        found = measure(arguments, home, Path(name))
    for sort in ("alone", "beside"):
        shown = found[sort]
        told = f"{shown['in_time']:.3%} of {shown['sent']} in time, p99 {shown['p99_ms']:.1f} ms"
        print(f"{sort:7} {told}, mean accuracy {shown['mean_accuracy']:.2f} %")
    falls = found["falls"]
    error = np.std(falls, ddof=1) / len(falls) ** 0.5 if len(falls) > 1 else np.nan
    told = f"{np.mean(falls):.2f} +- {error:.2f} points ({len(falls)} cycles)"
    print(f"online attainment falls by {told}; goal: 1 at most")
    print(f"{found['rows_per_s']:,.0f} rows/s beside it; killed at {found['killed_at']} rows")
    print(
        "; ".join(found["problems"]) or f"each of {arguments.rows} rows once, and as it should be"
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2))
    sys.exit(bool(found["problems"]))


@contextlib.contextmanager
def running(home: Path | None, folder: Path) -> Iterator[Path]:
    """A home that modelless runs from: the one given, or one of its own until this ends."""
    if home is not None:
        yield home
        return
    own = folder / "home"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    for words in (["zoo", "add", TASK], ["profile", TASK], ["up", "--port", port, "--detach"]):
        subprocess.run([*command_of(own), *words], check=True)
    try:
        yield own
    finally:
        subprocess.run([*command_of(own), "down"], check=True)


def command_of(home: Path) -> list[str]:
    return [sys.executable, "-P", "-m", "modelless.controller.cli", "--home", str(home)]


def begin(
    command: list[str], log: BinaryIO, ended: contextlib.ExitStack
) -> subprocess.Popen[bytes]:
    """Begin the offline run, which ends with the benchmark, however that ends."""
    run = subprocess.Popen(command, stdout=log, stderr=log)
    ended.callback(run.kill)
    return run


@dataclass
class Stretch:
    """Seconds of the load, with or without the run beside it."""

    sort: str
    began_s: float
    ended_s: float = np.inf
    tally: Tally = field(default_factory=Tally)


def measure(arguments: argparse.Namespace, home: Path, folder: Path) -> dict[str, Any]:
    """Run everything, and check the output."""
    items = np.lib.format.open_memmap(
        folder / "items.npy", "w+", np.uint8, (arguments.rows, 28, 28)
    )
    rng = np.random.default_rng(0)
    for first in range(0, arguments.rows, 65536):
        block = items[first : first + 65536]
        block[:] = rng.integers(0, 256, block.shape, np.uint8)
    items.flush()
    output = folder / "out"
    words = [str(folder / "items.npy"), str(output), "--task", TASK]
    words += ["--min-accuracy", str(arguments.min_accuracy)]
    words += ["--rows-per-file", str(arguments.rows_per_file)]
    command = [*command_of(home), "batch", *words]
    limits = {"latency_ms": arguments.latency_ms, "min_accuracy": arguments.min_accuracy}
    steps = [(_LONGEST_S, arguments.per_s)]
    spec = spec_of(find_url(home, None), folder, TASK, [(1.0, limits)], steps)
    stretches = [Stretch("alone", 0.0)]
    queries: list[Row] = []
    run, killed_at = None, 0
    with (
        LoadProcess(spec, folder) as load,
        (folder / "batch.log").open("ab") as log,
        contextlib.ExitStack() as ended,
    ):
        began_s = 0.0
        for rows in load.batches():  # once a second
            began_s = began_s or time.monotonic() - 1.0
            now_s, there = time.monotonic() - began_s, len(list(output.glob("part-*")))
            queries += rows
            if run is not None and run.poll() is not None:
                break
            if not killed_at and 2 * there * arguments.rows_per_file >= arguments.rows:
                killed_at = there * arguments.rows_per_file
                run.kill()
                run.wait()
                run = begin(command, log, ended)
                print(f"{now_s:.0f} s: killed at {killed_at} rows, and begun again", flush=True)
            sort = "alone" if now_s % arguments.cycle_s < arguments.alone_s else "beside"
            if sort == stretches[-1].sort:
                continue
            stretches[-1].ended_s = now_s
            stretches.append(Stretch(sort, now_s))
            if run is None:
                run = begin(command, log, ended)
            run.send_signal(signal.SIGCONT if sort == "beside" else signal.SIGSTOP)
            print(f"{now_s:.0f} s: {there * arguments.rows_per_file} rows", flush=True)
    stretches[-1].ended_s = now_s
    if run is None or run.returncode:
        raise SystemExit((folder / "batch.log").read_text()[-2000:])
    totals = {"alone": Tally(), "beside": Tally()}
    for each in stretches:
        for row in queries:
            if each.began_s + _SETTLES_S <= row.due_s < each.ended_s - _SETTLES_S:
                each.tally.add(row, arguments.latency_ms)
                totals[each.sort].add(row, arguments.latency_ms)
    shares = [each.tally.share_in_time for each in stretches]
    pairs = [pair for pair in zip(shares[::2], shares[1::2], strict=False) if None not in pair]
    beside_s = sum(each.ended_s - each.began_s for each in stretches if each.sort == "beside")
    return {
        **{
            sort: {
                "sent": tally.sent,
                "in_time": tally.share_in_time or 0.0,
                "mean_accuracy": tally.mean_accuracy or 0.0,
                "p99_ms": tally.latency_ms(0.99) or 0.0,
                "outcomes": {str(outcome): count for outcome, count in tally.outcomes.items()},
            }
            for sort, tally in totals.items()
        },
        "falls": [100.0 * (alone - beside) for alone, beside in pairs],
        "rows_per_s": arguments.rows / beside_s,
        "killed_at": killed_at,
        "problems": problems_of(home, output, items),
    }


def problems_of(home: Path, output: Path, items: np.ndarray) -> list[str]:
    """Returns the faults of the output; empty if there are none."""
    files = sorted(output.glob("part-*.parquet"))
    problems = []
    rows = np.concatenate([parquet.read_table(file, columns=["row"])["row"] for file in files])
    if not np.array_equal(rows, np.arange(len(items))):
        problems.append(f"{len(rows)} rows, {len(set(rows.tolist()))} different, of {len(items)}")
    sessions, worst = {}, 0.0
    with open_home(home) as registry:
        variants = {variant.id: variant for variant in registry.catalog().variants}
        for file in files:
            table = parquet.read_table(file)
            served_by = np.array(table["variant"].to_pylist())
            for name in sorted(set(served_by)):
                if name not in sessions:
                    artifact = registry.artifacts.fetch(variants[name].artifact_sha256)
                    runtime = find_runtime(variants[name].engine)
                    sessions[name] = runtime.load(variants[name], artifact, threads=1)
                places = np.flatnonzero(served_by == name)[:_COMPARED]
                inputs = {"image": items[table["row"].take(places).to_numpy()]}
                wanted = sessions[name].infer(inputs)["probabilities"]
                told = np.stack(table["probabilities"].take(places).to_numpy())
                worst = max(worst, float(np.abs(told - wanted).max()))
    print(f"largest difference to this process's own answers: {worst:.2g}")
    if not worst <= _TOLERANCE:
        problems.append(f"answers differ by {worst:.2g}")
    return problems


if __name__ == "__main__":
    main()
