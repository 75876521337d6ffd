"""What serving processes import, and what stands in for Ray's agents."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from modelless.controller.live.cluster import ray_agent
from modelless.controller.live.cluster.lean_ray import QUICK_S

LEFT_OUT = ("pandas", "sklearn", "matplotlib", "onnx", "scipy.linalg", "alembic")
BEGINNING = "from modelless.controller.live.cluster.lean_ray import import_serve; import_serve();"


@pytest.mark.parametrize(
    "modules",
    [
        "modelless.controller.live.cluster.serve_app, modelless.variants.runtimes.onnxruntime_cpu",
        "modelless.controller.live.control.control_loop",
        "modelless.controller.cli, modelless.controller.usecases.cluster, "
        "modelless.controller.live.cluster.deployment",
    ],
    ids=["gateway and worker", "control loop", "up"],
)
def test_serving_processes_import_nothing_that_only_offline_work_needs(modules: str) -> None:
    script = f"{BEGINNING} import sys, {modules}; print(*sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    assert "ray.serve" in output.split()
    assert set(LEFT_OUT) & set(output.split()) == set()


def test_who_needs_pandas_can_import_it_after_serve() -> None:
    subprocess.run([sys.executable, "-c", f"{BEGINNING} import pandas"], check=True)


def test_the_agent_says_where_it_does_not_listen_and_ends_with_the_raylet(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", ray_agent.__file__, "agent.py"]
    command += [f"--session-dir={tmp_path}", "--node-id=ab12"]
    process = subprocess.run(command, stdin=subprocess.DEVNULL, timeout=30, check=False)
    assert process.returncode == 0
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        f"{name}_ab12": "-1" for name in ray_agent.PORTS
    }


def test_serves_controller_looks_quickly_once_it_is_told_to_delete() -> None:
    script = """
from unittest.mock import Mock
from modelless.controller.live.cluster import lean_ray
lean_ray.QUICKLY_FOR_S = 0.01
lean_ray.prepare_worker()
from ray.serve._private import controller
import time
time.sleep(0.2)  # the start is over
print(controller.CONTROL_LOOP_INTERVAL_S)
lean_ray.QUICKLY_FOR_S = 60.0
state = Mock()
controller.ServeController.delete_apps(state, ["one"])
print(controller.CONTROL_LOOP_INTERVAL_S, state.application_state_manager.delete_app.call_args)
"""
    environment = {**os.environ, "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "1"}
    output = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    ).stdout
    assert output.split() == ["1.0", str(QUICK_S), "call('one')"]
