"""What the page on accuracy shows is done, from its top to its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from modelless.controller.cli.app import app
from modelless.variants.metrics import METRICS

from .pages import blocks, read
from .test_readme import commands_in

PAGE = "docs/accuracy.md"


def test_the_page_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELLESS_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MODELLESS_STORE_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    mine = [block for block in blocks("python", "bash") if block.page == PAGE]
    for block in mine:
        if block.language == "python":
            exec(compile(block.text, str(block), "exec"), names)  # noqa: S102
            continue
        for words in commands_in(block.text):
            if words:
                ran = CliRunner().invoke(app, words[1:])
                assert ran.exit_code == 0, (words, ran.output)
    assert {block.language for block in mine} == {"python", "bash"}
    names["registry"].close()


def test_every_metric_is_on_the_page() -> None:
    page = read(PAGE)
    assert [name for name in METRICS.built_in if f"`{name}`" not in page] == []
