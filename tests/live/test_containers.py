"""The container of ``deploy/docker`` as Docker runs it: command, environment, probe and stop."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path

import yaml

from tests.unit.deploy.files import DEPLOY, document, environment, instructions

from .clients import Clients, wait_until
from .running import Running, free_port, own_environment

SERVICE = document("docker", "compose.yaml")["services"]["modelless"]
IMAGE = DEPLOY / "docker" / "Dockerfile.cpu"


def test_a_container_is_healthy_and_drains_in_the_time_that_it_gets(
    live_home: Path, tmp_path: Path
) -> None:
    home, port = tmp_path / "home", free_port()
    shutil.copytree(live_home, home, ignore=shutil.ignore_patterns("run"))
    (mount,) = [each for each in SERVICE["volumes"] if each.startswith("./")]
    source, inside, _ = mount.split(":")
    settings = yaml.safe_load((IMAGE.parent / source).read_text())
    published = SERVICE["ports"][0].split(":")[-1]
    assert str(settings["http"]["port"]) == published
    settings["http"] |= {"port": port, "operators_port": free_port()}
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump(settings))
    command = [word.replace(inside, str(tmp_path / "settings.yaml")) for word in SERVICE["command"]]
    marker = f"container-{uuid.uuid4().hex[:8]}"
    told = {
        **own_environment(marker),
        **environment(IMAGE),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "MODELLESS_HOME": str(home),
    }
    (check,) = [rest for word, rest in instructions(IMAGE) if word == "HEALTHCHECK"]
    probe = json.loads(check.partition("CMD ")[2].replace(f":{published}/", f":{port}/"))

    def is_healthy() -> bool:
        return subprocess.run(probe, env=told, capture_output=True, check=False).returncode == 0

    assert not is_healthy()
    log = (tmp_path / "log").open("wb")
    process = subprocess.Popen(command, env=told, stdout=log, stderr=log, start_new_session=True)
    running = Running(process, home, f"http://127.0.0.1:{port}", marker)
    try:
        wait_until(is_healthy, 180.0)
        wait_until(lambda: running.get("/v2/health/ready") is not None, 60.0)
        with Clients(running) as clients:
            process.terminate()
            began_s = time.monotonic()
            code = process.wait(float(SERVICE["stop_grace_period"].removesuffix("s")))
            assert code == 0, (tmp_path / "log").read_text()[-2000:]
        assert set(clients.outcomes) <= {"200", "503", "broken", "closed"}, clients.outcomes
        assert clients.outcomes["broken"] <= 3, clients.outcomes  # one a client, as the port closes
        assert time.monotonic() - began_s < 60.0
        assert not is_healthy()
        assert not running.processes()
    finally:
        log.close()
        process.kill()
        for process_id in running.processes():
            os.kill(process_id, 9)
