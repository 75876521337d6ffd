"""What runs is closed to the folder it is started from, and to every other user of the machine."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from .clients import wait_until
from .running import free_port, own_environment, processes_marked

TRAPS = ("json", "numpy", "onnxruntime", "psutil", "pydantic", "ray", "sqlalchemy", "typer", "yaml")
TRAP = "import pathlib; pathlib.Path(__file__).with_suffix('.sprung').touch()\n"
POLICY = "from modelless.policies.selection.round_robin import RoundRobin as Own\n"
CONFIG = """
http: {{port: {port}}}
serve_dominated: true
gateways: {{count: 1}}
pools: [{{device_class: cpu-1, workers: 1}}]
policies: {{selection: "own_policy:Own"}}
"""


@dataclass(frozen=True)
class Started:
    """A modelless that was started in the background, in a folder with traps.

    Attributes:
        folder: with the traps.
        run: of its home.
        marker: in the environment of its processes.
        environment: theirs; PYTHONPATH names a folder that is in the folder.
    """

    folder: Path
    run: Path
    marker: str
    environment: dict[str, str]

    def modelless(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command, given in the folder."""
        return subprocess.run(
            [sys.executable, "-m", "modelless.controller.cli", "--home", self.run.parent, *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def sprung(self) -> list[str]:
        return sorted(path.stem for path in self.folder.glob("*.sprung"))


@pytest.fixture(scope="module")
def started(live_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    folder = tmp_path_factory.mktemp("trapped")
    for name in TRAPS:
        (folder / f"{name}.py").write_text(TRAP)
    (folder / "mine").mkdir()
    (folder / "mine" / "own_policy.py").write_text(POLICY)
    (folder / "settings.yaml").write_text(CONFIG.format(port=free_port()))
    run = live_home / "run"
    run.mkdir(exist_ok=True)
    run.chmod(0o755)  # as an older modelless left it
    marker = f"modelless-test-private-{uuid.uuid4().hex[:8]}"
    environment = {**own_environment(marker), "PYTHONPATH": "mine"}
    started = Started(folder, run, marker, environment)
    try:
        done = started.modelless("up", "--detach", "--config", "settings.yaml")
        assert done.returncode == 0, done.stderr
        yield started
    finally:
        started.modelless("down")
        wait_until(lambda: not processes_marked(started.marker), 30.0)


def test_no_module_of_the_folder_where_it_was_started_runs(started: Started) -> None:
    done = started.modelless("upgrade", "--restart")
    assert done.returncode == 0, done.stderr
    commands = " ".join(processes_marked(started.marker).values())
    assert "-P -m modelless.controller.cli" in commands
    for process in ("raylet", "gcs_server"):
        assert process in commands
    assert started.sprung() == []
    subprocess.run([sys.executable, "-c", "import typer"], cwd=started.folder, check=True)
    assert started.sprung() == ["typer"], "the traps work"


def test_nothing_of_it_is_within_reach_of_other_users(started: Started) -> None:
    run, home = started.run, started.run.parent
    assert mode_of(run) == 0o700
    assert mode_of(run / "ray-token") == 0o600
    sockets, files = opened_by(processes_marked(started.marker))
    assert {path.name for path in sockets} >= {"plasma_store", "raylet"}
    for path in sockets:
        assert path.resolve().is_relative_to(run)
        assert path.is_relative_to(run) or mode_of(Path(*path.parts[:3])) == 0o700
    assert any("gcs_server" in path.name for path in files)
    elsewhere = [path for path in files if not path.is_relative_to(run)]
    assert {path.parent for path in elsewhere} <= {home}
    assert {path.suffix for path in elsewhere} <= {".db", ".db-shm", ".db-wal"}, elsewhere


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def opened_by(processes: Iterable[int]) -> tuple[set[Path], set[Path]]:
    """Unix sockets that they have, and files that they write, but for devices and memory."""
    rows = [line.split(maxsplit=7) for line in Path("/proc/net/unix").read_text().splitlines()]
    names = {f"socket:[{row[6]}]": row[7] for row in rows if len(row) == 8}
    sockets, files = set(), set()
    for process in processes:
        for link in Path(f"/proc/{process}/fd").glob("*"):
            with suppress(OSError):  # it ended, or was closed, meanwhile
                name = str(link.readlink())
                flags = int(Path(f"/proc/{process}/fdinfo/{link.name}").read_text().split()[3], 8)
                if names.get(name, "").startswith("/"):
                    sockets.add(Path(names[name]))
                elif name.startswith("/") and flags & (os.O_WRONLY | os.O_RDWR):
                    files.add(Path(name))
    return sockets, {path for path in files if not path.is_relative_to("/dev")}
