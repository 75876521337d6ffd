"""The road that the manual's page on policies shows, walked as it stands: its files, its commands.

Only `modelless up` is not run: what it would build from the settings file is.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from modelless.controller.config import load_settings
from modelless.policies.discovery import build_policy
from modelless.policies.seams import SelectionPolicy

from .pages import blocks, read

PAGE = "docs/policies.md"
NAMED = re.compile(r"`([\w.]+\.(?:py|toml|yaml))`:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILES = dict(NAMED.findall(read(PAGE)))
COMMANDS = [
    shlex.split(line, comments=True)
    for block in blocks("bash")
    if block.page == PAGE
    for line in block.text.replace("\\\n", " ").splitlines()
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the page writes."""
    folder = tmp_path_factory.mktemp("road")
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def importable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder, on the path that modules are imported from."""
    monkeypatch.syspath_prepend(folder)
    yield folder
    sys.modules.pop("headroom", None)


def run(folder: Path, *words: str) -> str:
    """What a command of this Python printed, run in the folder, which is on its PYTHONPATH."""
    module = ["-m", "modelless.controller.cli"] if words[0] == "modelless" else []
    done = subprocess.run(
        [sys.executable, *module, *words[1:]],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def passed(told: str) -> int:
    """How many tests pytest says have passed."""
    return int(re.findall(r"(\d+) passed", told)[-1])


def command(*start: str) -> list[str]:
    """The page's first command that begins with these words."""
    return next(words for words in COMMANDS if tuple(words[: len(start)]) == start)


def test_the_road_has_all_its_stations() -> None:
    assert FILES.keys() == {
        "headroom.py",
        "test_headroom.py",
        "world.yaml",
        "headroom.yaml",
        "pyproject.toml",
        "last_call.py",
    }
    shown = [" ".join(words[:2]) for words in COMMANDS]
    road = ["python -m", "modelless simulate", "modelless compare", "modelless up"]
    assert [each for each in shown if each in road][: len(road)] == road, "in this order"


def test_the_policy_is_under_thirty_lines() -> None:
    assert len(FILES["headroom.py"].splitlines()) < 30


def test_it_passes_the_conformance_kit(folder: Path) -> None:
    assert passed(run(folder, *command("python", "-m", "pytest"))) > 30


def test_the_late_binding_one_passes_it_too(folder: Path) -> None:
    case = FILES["test_headroom.py"].replace("headroom", "last_call")
    case = case.replace("Headroom", "LastCall")
    (folder / "test_last_call.py").write_text(case, encoding="utf-8")
    assert passed(run(folder, "python", "-m", "pytest", "test_last_call.py")) > 30


@pytest.mark.parametrize("name", ["headroom:Headroom", "last_call:LastCall"])
def test_it_serves_the_world_shown(folder: Path, name: str) -> None:
    world = yaml.safe_load(FILES["world.yaml"])
    assert world["policies"] == {"selection": "headroom:Headroom"}
    world |= {"policies": {"selection": name}, "duration_s": 10}
    (folder / "short.yaml").write_text(yaml.safe_dump(world), encoding="utf-8")
    words = [word.replace("world.yaml", "short.yaml") for word in command("modelless", "simulate")]
    figures = json.loads(run(folder, *words, "--json"))
    assert figures["queries"] > 1000
    assert figures["attainment"] > 0.99
    assert figures["policy_problems"] == {}


@pytest.mark.slow
def test_the_comparison_tells_what_the_page_says(folder: Path) -> None:
    words = command("modelless", "compare", "world.yaml", "--load")
    seeds, load = words.index("--seeds") + 1, words.index("--load") + 1
    assert words[load] == "1,1.5"
    words = [*words[:seeds], "1", *words[seeds + 1 :], "--json"]
    words[load] = "1.5"
    (scenario,) = json.loads(run(folder, *words))["scenarios"]
    rows: dict[str, dict[str, Any]] = {row["contender"]: row for row in scenario["rows"]}
    assert rows.keys() == {
        "most-accurate-feasible",
        "cheapest-feasible",
        "headroom:Headroom",
        "looser",
    }
    assert [row["error"] for row in rows.values() if not row["runs"]] == []
    others = rows["most-accurate-feasible"]
    for name in ("headroom:Headroom", "looser"):
        assert mean(rows[name], "violations_percent") < mean(others, "violations_percent") / 2
        assert mean(rows[name], "value_per_query") > mean(others, "value_per_query")
        assert mean(rows[name], "value_per_query") < scenario["bound"]["value_per_query"]["mean"]


def mean(row: dict[str, Any], figure: str) -> float:
    """The mean of one of a row's figures."""
    return float(row[figure]["mean"])


def test_up_would_build_it_from_the_settings(importable: Path) -> None:
    words = command("modelless", "up")
    settings = load_settings(importable / words[words.index("--config") + 1])
    policy = build_policy(SelectionPolicy, settings.policies.selection)
    assert type(policy).__name__ == "Headroom"
    assert vars(pickle.loads(pickle.dumps(policy)))["share"] == 0.8  # noqa: S301  (our own)


def test_an_installed_package_registers_it_by_name(importable: Path) -> None:
    """By the metadata that an installer writes from the page's pyproject.toml."""
    points = tomllib.loads(FILES["pyproject.toml"])["project"]["entry-points"]
    ((group, names),) = points.items()
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in names.items())]
    metadata = importable / "headroom-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: headroom\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    policy = build_policy(SelectionPolicy, {"policy": "headroom", "share": 0.5})
    assert type(policy).__name__ == "Headroom"
    assert vars(policy)["share"] == 0.5
