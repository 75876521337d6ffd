"""A user's run speaks to nobody outside the machine, and leaves nothing outside its folders."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import numpy as np
import pytest

from .running import free_port, own_environment, processes_marked

LOCAL = re.compile(r"AF_UNIX|AF_NETLINK|AF_UNSPEC|\"127\.|\"::1\"|\"::ffff:127\.")
COMMANDS = """
modelless zoo add fashion-mnist
modelless make fashion-mnist/cnn-xs/fp32-28 --recipe ../recipe.yaml --validation ../items.npz \\
    --model mine --batches 1 --budget 1s
modelless profile fashion-mnist/cnn-s --batches 1 --budget 1s
modelless up --detach --config ../up.yaml
modelless infer ../one.npy --task fashion-mnist
modelless infer ../one.npy --task fashion-mnist --latency-ms 500
modelless status
modelless down
"""
RECIPE = "variants:\n  fp32: [optimise]\n  int8: [optimise, int8-static]\n"


def strace() -> str:
    found = shutil.which("strace")
    if found is None:
        pytest.skip("strace is not installed: whether a run looks up a name is NOT CHECKED")
    return found


@pytest.mark.timeout(900, func_only=True)
def test_a_run_speaks_to_nobody_and_leaves_nothing_behind(tmp_path: Path) -> None:
    traces = tmp_path / "trace"
    user, temporary, here = (tmp_path / name for name in ("user", "tmp", "here"))
    for folder in (user, temporary, here):
        folder.mkdir()
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (40, 28, 28), np.uint8)
    np.savez(tmp_path / "items.npz", inputs=images, labels=rng.integers(0, 10, 40))
    np.save(tmp_path / "one.npy", images[:1])
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "up.yaml").write_text(f"http: {{port: {free_port()}}}\ngateways: {{count: 1}}\n")
    marker = f"outside-{uuid.uuid4().hex[:8]}"
    environment = own_environment(marker) | {
        "HOME": str(user),
        "XDG_CACHE_HOME": str(user / "cache"),
        "TMPDIR": str(temporary),
        "MODELLESS_HOME": str(tmp_path / "home"),
    }
    for name in ("ORT_DISABLE_TELEMETRY", "MODELLESS_STORE_URL", "MPLCONFIGDIR"):
        environment.pop(name, None)
    sessions = set(Path("/tmp/ray").glob("session_*"))
    command = f"{sys.executable} -m modelless.controller.cli"
    watched = ("-f", "--seccomp-bpf", "-qq", "-e", "trace=connect", "-o", str(traces))
    try:  # one trace of all: it goes on as long as what 'up' leaves running
        done = subprocess.run(
            [strace(), *watched, "sh", "-ec", COMMANDS.replace("modelless ", f"{command} ")],
            cwd=here,
            env=environment,
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
    finally:
        for process in processes_marked(marker):
            os.kill(process, signal.SIGKILL)
    assert done.returncode == 0, done.stdout + done.stderr
    calls = [line for line in traces.read_text().splitlines() if "connect(" in line]
    assert sum("127.0.0.1" in call for call in calls) > 10, "the trace shows the run"
    assert [call for call in calls if not LOCAL.search(call)] == []
    assert list(temporary.iterdir()) == []
    short = Path("/tmp").glob("modelless-*/run")
    assert [link for link in short if link.resolve().is_relative_to(tmp_path)] == []
    assert set(Path("/tmp/ray").glob("session_*")) - sessions == set()
    assert {path.name for path in here.iterdir()} <= {"mine-report"}
    outside = {path.relative_to(user).parts[:2] for path in user.rglob("*") if path.is_file()}
    assert outside <= {("cache", "modelless")}
