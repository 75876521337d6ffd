"""The tutorial, walked as the page has it: its files, its commands, in order."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import blocks, read

from .running import free_port

PAGE = "docs/tutorial.md"
NAMED = re.compile(r"`([\w.]+\.(?:py|yaml))`:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SET_UP = ("python3", ".", "pip")


@pytest.mark.timeout(900)
def test_tutorial(tmp_path: Path) -> None:
    for name, text in NAMED.findall(read(PAGE)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    port = str(free_port())
    lines = [
        line for block in blocks("bash") if block.page == PAGE for line in block.text.splitlines()
    ]
    commands = [words for words in map(shlex.split, lines) if words[0] not in SET_UP]
    assert [words[:2] for words in commands].count(["modelless", "up"]) == 2
    environment = {**os.environ, "MODELLESS_HOME": str(tmp_path / "home")}
    told: dict[str, str] = {}
    try:
        for words in commands:
            told[shlex.join(words)] = run(tmp_path, environment, words, port)
    finally:
        run(tmp_path, environment, ["modelless", "down"], port)
    assert "differs" not in told["modelless replay run-1"]
    assert told["modelless replay run-1"].count("identical") >= 3
    assert told["python ask.py"].count("handwriting/") == 3


def run(folder: Path, environment: dict[str, str], words: list[str], port: str) -> str:
    """Run a command of the page and return what it prints; a server listens on a free port."""
    module = ["-m", "modelless.controller.cli"] if words[0] == "modelless" else []
    more = ["--port", port] if words[:2] == ["modelless", "up"] else []
    done = subprocess.run(
        [sys.executable, *module, *words[1:], *more],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout
