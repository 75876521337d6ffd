"""Loads that never end, on demand: Python imports this at the start of whatever has its folder on
``PYTHONPATH``, as the processes of ``under_test.py`` have.

While the file ``MODELLESS_BENCH_STALL`` exists, a thread that opens an artifact stays there for
good, as behind a file system that hangs. An audit hook is asked in the thread that opens, so
nothing else of the process waits, and nothing of modelless is changed.
"""

import os
import sys
import time
from pathlib import Path

STALL = os.environ.get("MODELLESS_BENCH_STALL", "")


def _stay(event: str, arguments: tuple[object, ...]) -> None:
    if event != "open" or "/artifacts/" not in str(arguments[0]) or not Path(STALL).exists():
        return
    while True:
        time.sleep(60.0)


if STALL:
    sys.addaudithook(_stay)
