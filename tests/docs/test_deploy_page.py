"""The page on deploying names files that are there and settings that are taken."""

from __future__ import annotations

import re

import pytest
import yaml

from modelless.controller.config import parse_settings

from .pages import ROOT, blocks, read

PAGE = "docs/deploy.md"


def named_files() -> list[str]:
    """Every file of the repository that a command on the page names."""
    text = "\n".join(block.text for block in blocks("bash") if block.page == PAGE)
    return sorted(set(re.findall(r"(?<![\w/.-])deploy/[\w./-]+", text)))


@pytest.mark.parametrize("name", named_files())
def test_files_named_in_commands_are_there(name: str) -> None:
    assert (ROOT / name).exists()


def test_every_kind_of_deployment_is_named() -> None:
    page = read(PAGE)
    for folder in (ROOT / "deploy").iterdir():
        assert f"../deploy/{folder.name}/" in page


def test_the_settings_shown_are_taken() -> None:
    shown = [block for block in blocks("yaml") if block.page == PAGE]
    assert shown
    for block in shown:
        parse_settings(yaml.safe_load(block.text))
