"""The locked requirements: complete, hashed, in step with each other, bound to no index."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FILES = ("demo.txt", "test.txt", "container.txt", "container-gpu.txt")
EXTRAS = {
    "demo.txt": ("cpu", "demo"),
    "container.txt": ("cpu", "demo", "postgresql"),
    "container-gpu.txt": ("demo", "postgresql"),
    "test.txt": (
        "cpu",
        "openvino",
        "making",
        "sklearn",
        "parquet",
        "demo",
        "postgresql",
        "tune",
        "dev",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_names_no_index_and_no_place(root: Path, name: str) -> None:
    text = (root / "requirements" / name).read_text(encoding="utf-8")
    assert re.findall(r"://|index|find-links|trusted|file:|@ |(?<![\w.-])/\w+", text) == []


@pytest.mark.parametrize("name", FILES)
def test_every_requirement_is_pinned_and_hashed(root: Path, name: str) -> None:
    blocks = _blocks(root, name)
    assert blocks
    for block in blocks:
        assert re.match(r"[a-z0-9][a-z0-9.-]*==[^ ;]+( ;[^\\]+)? \\\n", block), block[:100]
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", block), block[:100]


def test_demo_is_part_of_test_in_the_same_versions(root: Path) -> None:
    demo, test = _pins(root, "demo.txt"), _pins(root, "test.txt")
    assert {name: pin for name, pin in demo.items() if test.get(name) != pin} == {}
    assert len(demo) < len(test)


@pytest.mark.parametrize("name", FILES)
def test_what_the_project_declares_is_pinned_within_its_bounds(
    root: Path, pyproject: dict[str, Any], name: str
) -> None:
    project = pyproject["project"]
    lines = [*project["dependencies"], *pyproject["build-system"]["requires"]]
    for extra in EXTRAS[name]:
        lines += project["optional-dependencies"][extra]
    pins = _pins(root, name)
    stale = {}
    for line in lines:
        wanted = Requirement(line)
        pin = pins.get(canonicalize_name(wanted.name))
        if pin is None or not wanted.specifier.contains(pin, prereleases=True):
            stale[line] = pin
    assert stale == {}, "run 'make lock'"


def _blocks(root: Path, name: str) -> list[str]:
    lines = (root / "requirements" / name).read_text(encoding="utf-8").splitlines(keepends=True)
    text = "".join(line for line in lines if not line.lstrip().startswith("#"))
    return [block for block in re.split(r"^(?=\S)", text, flags=re.MULTILINE) if block.strip()]


def _pins(root: Path, name: str) -> dict[str, str]:
    """Version by name. One version each: the files do not fork by Python or platform."""
    pins = [block.split(maxsplit=1)[0].split("==") for block in _blocks(root, name)]
    assert len({name for name, _ in pins}) == len(pins)
    return {canonicalize_name(name): version for name, version in pins}
