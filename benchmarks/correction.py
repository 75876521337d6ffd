"""What correcting predictions while serving is worth: one run with busy neighbours, one setting.

The same open-loop queries, each due in ``--deadline-ms``, are sent twice to a live cluster whose
cores other processes keep busy too, so that every profile is wrong: with `learn_online: false` and
then with `true`. Prints the share in time, the accuracy, and the cost model's own coverage.

    python benchmarks/correction.py --home HOME [--busy 2] [--per-s 30] [--seconds 30]

HOME must hold the ``imagenet`` zoo, profiled without neighbours; it is copied, not written to.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from burst import copy_home, run, spec_of  # beside this file

BUSY = "while True: sum(range(10_000))"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--busy", type=int, default=2, help="processes that never rest")
    parser.add_argument("--per-s", type=float, default=30.0)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--deadline-ms", type=float, default=80.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    arguments = Namespace(
        mixed=False, seconds=asked.seconds, seed=asked.seed, deadline_ms=asked.deadline_ms
    )
    with tempfile.TemporaryDirectory() as folder, neighbours(asked.busy):
        home, _ = copy_home(asked.home, Path(folder))
        for round_number in range(asked.rounds):
            spec = spec_of(Path(folder), asked.per_s, [1.0], arguments, round_number)
            for learns in (False, True):
                found = run(home, {"learn_online": learns}, spec, Path(folder))
                tally = found.query_log.total
                told = found.status["predictions"]
                print(
                    f"learn_online {learns!s:5}: {tally.sent} sent, "
                    f"{tally.share_in_time or 0.0:.1%} in time at "
                    f"{tally.mean_accuracy or 0.0:.2f} %; predictions {told}",
                    flush=True,
                )


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Processes beside the cluster that keep the cores busy."""
    running = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
