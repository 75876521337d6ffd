"""An offline run beside online load: what it costs the online queries, and is each row there once?

    modelless zoo add fashion-mnist; modelless profile; modelless up --detach
    python benchmarks/serving/batch.py --home HOME [--rows 1000000] [--per-s 100] [--latency-ms 50]

The online load is an open-loop client in a process of its own. It runs in segments, alternately
alone and beside ``modelless batch`` on random images. The batch run is killed (SIGKILL) at the end
of each segment and begun again in the next one, until it is done. Printed are, for both sorts of
segments, the online queries answered in time and the mean accuracy of what answered them; the rows
a second of the segments with a batch run; and whether the output has every row once, in order, and
each answer as its variant gives it in this process. Exit code 1 if not.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
from open_loop import TASK, send, spec_of

from modelless.controller.demo.query_log import Row, Tally
from modelless.controller.usecases.client import find_url
from modelless.controller.usecases.home import open_home
from modelless.variants.runtimes import find_runtime

_TOLERANCE = 1e-3  # sums of another order, in another batch
_COMPARED = 64  # rows of each variant and file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--home", type=Path, required=True, help="of a running modelless with fashion-mnist")
    add("--rows", type=int, default=1_000_000)
    add("--per-s", type=float, default=100.0, help="online queries a second")
    add("--latency-ms", type=float, default=50.0, help="limit of the online queries")
    add("--min-accuracy", type=float, default=90.0, help="of all queries")
    add("--segment-s", type=float, default=60.0)
    add("--rows-per-file", type=int, default=1000, help="fewer than a segment answers")
    add("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found = measure(arguments, Path(name))
    for sort in ("alone", "beside"):
        shown = found[sort]
        told = f"{shown['in_time']:.3%} of {shown['sent']} in time, p99 {shown['p99_ms']:.1f} ms"
        print(f"{sort:7} {told}, mean accuracy {shown['mean_accuracy']:.2f} %")
    fall = 100.0 * (found["alone"]["in_time"] - found["beside"]["in_time"])
    print(f"online attainment falls by {fall:.2f} points; goal: 1 at most")
    print(f"{found['rows_per_s']:,.0f} rows/s beside it; killed {found['kills']} times")
    print(
        "; ".join(found["problems"]) or f"each of {arguments.rows} rows once, and as it should be"
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2))
    sys.exit(bool(found["problems"]))


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Run all segments, and check the output."""
    items = np.lib.format.open_memmap(
        folder / "items.npy", "w+", np.uint8, (arguments.rows, 28, 28)
    )
    rng = np.random.default_rng(0)
    for first in range(0, arguments.rows, 65536):
        block = items[first : first + 65536]
        block[:] = rng.integers(0, 256, block.shape, np.uint8)
    items.flush()
    output = folder / "out"
    command = [sys.executable, "-m", "modelless.controller.cli", "--home", str(arguments.home)]
    command += ["batch", str(folder / "items.npy"), str(output), "--task", TASK]
    command += ["--min-accuracy", str(arguments.min_accuracy)]
    command += ["--rows-per-file", str(arguments.rows_per_file)]
    tallies = {"alone": Tally(), "beside": Tally()}
    kills, taken_s, is_done = 0, 0.0, False
    while not is_done:
        count(tallies["alone"], online(arguments, folder), arguments.latency_ms)
        began_s = time.monotonic()
        with (folder / "batch.log").open("ab") as log:
            run = subprocess.Popen(command, stdout=log, stderr=log)
            rows = online(arguments, folder)
            is_done = run.poll() is not None
            if not is_done:
                run.send_signal(signal.SIGKILL)
                kills += 1
            else:  # it ended within the segment: the rest of that is no part of either sort
                ended_s = (output / "_SUCCESS").stat().st_mtime - time.time() + time.monotonic()
                rows = [row for row in rows if row.due_s < ended_s - began_s - 2.0]
            taken_s += (ended_s if is_done else time.monotonic()) - began_s
            if run.wait() not in (0, -signal.SIGKILL):
                raise SystemExit((folder / "batch.log").read_text()[-2000:])
        count(tallies["beside"], rows, arguments.latency_ms)
        print(f"{len(list(output.glob('part-*')))} files are there", flush=True)
    return {
        **{
            sort: {
                "sent": tally.sent,
                "in_time": tally.share_in_time or 0.0,
                "mean_accuracy": tally.mean_accuracy or 0.0,
                "p99_ms": tally.latency_ms(0.99) or 0.0,
                "outcomes": {str(outcome): count for outcome, count in tally.outcomes.items()},
            }
            for sort, tally in tallies.items()
        },
        "rows_per_s": arguments.rows / taken_s,
        "kills": kills,
        "problems": problems_of(arguments.home, output, items),
    }


def online(arguments: argparse.Namespace, folder: Path) -> list[Row]:
    """Send a segment of online load; what became of each query."""
    limits = {"latency_ms": arguments.latency_ms, "min_accuracy": arguments.min_accuracy}
    steps = [(arguments.segment_s, arguments.per_s)]
    url = find_url(arguments.home, None)
    return send(spec_of(url, folder, TASK, [(1.0, limits)], steps, seed=time.time_ns()), folder)


def count(tally: Tally, rows: list[Row], latency_ms: float) -> None:
    """Add up what became of the queries."""
    for row in rows:
        tally.add(row, latency_ms)


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
