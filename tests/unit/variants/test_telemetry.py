"""ONNX Runtime reports nothing: no database or device id in the user's cache, no name looked up.

Without the setting, ONNX Runtime 1.31 makes both files as it is imported, and looks up where it
reports to 9.2 s later.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

WATCHED_S = 11.0
PROGRAM = """
import sys
import time

import modelless
import onnxruntime
from onnx import TensorProto, helper

ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
node = helper.make_node("Identity", ["x"], ["y"])
graph = helper.make_graph([node], "same", ends[:1], ends[1:])
opset = helper.make_opsetid("", 17)
model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
time.sleep(float(sys.argv[1]))
"""


def run(folder: Path, alive_s: float, *tracer: str, said: str | None = None) -> list[Path]:
    """The files that it leaves in a home that has none yet.

    Args:
        folder: for the home.
        alive_s: how long the process lives after it has opened a session.
        tracer: what runs it.
        said: what the user's environment says of telemetry.
    """
    home = folder / "home"
    home.mkdir()
    environment = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    environment |= {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
    if said is not None:
        environment["ORT_DISABLE_TELEMETRY"] = said
    command = [*tracer, sys.executable, "-c", PROGRAM, str(alive_s)]
    subprocess.run(command, env=environment, cwd=folder, check=True, timeout=120)
    return [path for path in home.rglob("*") if path.is_file()]


@pytest.mark.parametrize("said", [None, "", "0"])
def test_a_session_leaves_nothing_in_the_users_home(tmp_path: Path, said: str | None) -> None:
    assert run(tmp_path, 0.0, said=said) == []


@pytest.mark.slow
def test_a_session_speaks_to_nobody(tmp_path: Path) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed: whether ONNX Runtime looks up a name is NOT CHECKED")
    trace = tmp_path / "trace"
    options = ("-f", "-qq", "-e", "trace=socket,connect,sendto,sendmsg", "-o", str(trace))
    assert run(tmp_path, WATCHED_S, strace, *options) == []
    calls = [line for line in trace.read_text().splitlines() if "+++" not in line]
    assert calls == []
