"""The container files: linted, pinned, locked, and nothing runs as root."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from modelless.controller.live.cluster.loopback import HAPROXY

from .files import DEPLOY, ROOT, SAFE, document, environment, instructions

DOCKERFILES = sorted((DEPLOY / "docker").glob("Dockerfile.*"))


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_the_linter_finds_nothing(path: Path) -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert hadolint is not None, "the extra 'dev' brings it"
    done = subprocess.run([hadolint, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_images_are_pinned_locked_checked_and_without_root(path: Path) -> None:
    found = instructions(path)
    bases = {rest.split()[0] for word, rest in found if word == "FROM"}
    assert all(re.fullmatch(r"[\w/.-]+:\d+\.\d+\.\d+\S*", base) for base in bases)
    last_stage = found[max(i for i, (word, _) in enumerate(found) if word == "FROM") :]
    (user,) = [rest for word, rest in last_stage if word == "USER"]
    assert int(user.partition(":")[0]) >= 10000
    assert any(word == "HEALTHCHECK" and "/v2/health/live" in rest for word, rest in last_stage)
    installs = [rest for word, rest in found if word == "RUN" and "pip install" in rest]
    for install in installs:
        assert "--require-hashes" in install or "--no-deps" in install
    for word, rest in found:
        if word == "COPY" and not rest.startswith(("--from", ".")):
            assert (ROOT / rest.split()[0]).is_file()


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_nothing_in_an_image_reports_to_anybody_or_imports_from_where_it_starts(path: Path) -> None:
    assert environment(path).items() >= SAFE.items()


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_serve_runs_haproxy_in_images_as_it_does_elsewhere(path: Path) -> None:
    told = environment(path)
    assert {name: value for name, value in told.items() if name.startswith("RAY_SERVE")} == HAPROXY


def test_both_images_are_used_alike() -> None:
    cpu, gpu = (
        set(instructions(DEPLOY / "docker" / f"Dockerfile.{kind}")) for kind in ("cpu", "gpu")
    )
    changed = {word for word, _ in cpu ^ gpu}
    assert changed <= {"COPY", "RUN", "ENV", "HEALTHCHECK"}


def test_compose_publishes_to_loopback_and_mounts_what_exists() -> None:
    compose = document("docker", "compose.yaml")
    folder = DEPLOY / "docker"
    for service in compose["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert service["cap_drop"] == ["ALL"]
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (folder / source).exists(), volume
        build = service.get("build")
        if build:
            assert (folder / build["context"] / build["dockerfile"]).is_file()
        else:
            assert re.fullmatch(r"[\w/.-]+:v?\d+\.\d+\.\d+", service["image"])
