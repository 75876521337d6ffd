"""The same seed gives the same log, in any process; another seed another one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml

from modelless.controller.sim.run import simulate
from modelless.controller.sim.worlds.world import load_world

from .worlds import DRIFT, document

SCRIPT = """
import sys
from pathlib import Path
from modelless.controller.sim.run import simulate
from modelless.controller.sim.worlds.world import load_world
simulate(load_world(Path(sys.argv[1])), log=Path(sys.argv[2]))
"""


def test_same_seed_same_log_in_another_process(tmp_path: Path) -> None:
    path = tmp_path / "world.yaml"
    path.write_text(yaml.safe_dump(document(**DRIFT, duration_s=4)), encoding="utf-8")
    mine, theirs = tmp_path / "mine.csv", tmp_path / "theirs.csv"
    simulate(load_world(path), log=mine)
    subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path), str(theirs)],
        check=True,
        timeout=120,
        env={**os.environ, "PYTHONHASHSEED": "12345"},
    )
    assert mine.read_bytes() == theirs.read_bytes()
    control = [path.with_suffix(".control.csv").read_bytes() for path in (mine, theirs)]
    assert control[0] == control[1]


def test_another_seed_differs(tmp_path: Path) -> None:
    path = tmp_path / "world.yaml"
    path.write_text(yaml.safe_dump(document(duration_s=2)), encoding="utf-8")
    logs = []
    for seed in (7, 8):
        log = tmp_path / f"{seed}.csv"
        simulate(load_world(path), seed=seed, log=log)
        logs.append(log.read_text(encoding="utf-8"))
    assert logs[0] != logs[1]


def test_queries_do_not_depend_on_who_serves_them(tmp_path: Path) -> None:
    asked = []
    for name in ("most-accurate-feasible", "cheapest-feasible"):
        path = tmp_path / f"{name}.yaml"
        changed = document(policies={"selection": name}, duration_s=2)
        path.write_text(yaml.safe_dump(changed), encoding="utf-8")
        log = tmp_path / f"{name}.csv"
        simulate(load_world(path), log=log)
        rows = [line.split(",") for line in log.read_text(encoding="utf-8").splitlines()[1:]]
        asked.append(sorted((int(row[0]), *row[1:5]) for row in rows))
    assert asked[0] == asked[1]
