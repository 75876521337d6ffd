"""The command line as a whole: help, version, global options, and what is not imported."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import typer

import modelless
from modelless.common.errors import InvalidInputError
from modelless.controller.cli.app import app
from modelless.controller.cli.failures import globals_first
from modelless.controller.usecases.home import home_folder
from modelless.variants.registry.registry import open_registry

from .conftest import Run
from .tiny import TASK, add_variants

COMMANDS = (
    *("zoo", "register", "device", "profile", "select"),
    *("up", "status", "infer", "down", "demo"),
)
HEAVY = {
    *("ray", "onnx", "onnxruntime", "openvino", "pandas", "sklearn", "scipy", "numpy"),
    *("sqlalchemy", "pydantic", "yaml", "rich", "PIL"),
}


def walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command below ``command`` with its words."""
    for name, each in getattr(command, "commands", {}).items():
        yield (*path, name), each
        yield from walk(each, (*path, name))


GROUPS = {("zoo",), ("costmodel",), ("key",)}
"""Commands of commands."""

EVERY = dict(walk(typer.main.get_command(app)))


def test_every_command_is_there() -> None:
    assert {words[0] for words in EVERY} >= set(COMMANDS)
    assert ("zoo", "list") in EVERY
    assert ("zoo", "add") in EVERY


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_every_help_ends_with_an_example(run: Run, words: tuple[str, ...]) -> None:
    ran = run(*words, "--help")
    assert ran.code == 0
    assert re.search("Examples?: modelless", ran.out)
    assert EVERY[words].help or EVERY[words].callback.__doc__


@pytest.mark.parametrize(
    "words",
    [
        words
        for words in EVERY
        if words not in {("zoo",), ("config",), ("costmodel",), ("key",), ("store",), ("demo",)}
    ],
    ids=" ".join,
)
def test_every_command_speaks_json(words: tuple[str, ...]) -> None:
    assert any("--json" in parameter.opts for parameter in EVERY[words].params)


def test_without_words_help_is_shown(run: Run) -> None:
    ran = run()
    assert ran.code == 0
    assert all(name in ran.out for name in COMMANDS)


def test_the_version_is_shown(run: Run) -> None:
    assert run("--version").out == f"modelless {modelless.__version__}\n"


def test_nothing_heavy_is_imported_before_a_command_needs_it() -> None:
    script = f"import sys, modelless.controller.cli.app; print({HEAVY!r} & set(sys.modules))"
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "set()"


def test_it_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "modelless.controller.cli", "--version"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout == f"modelless {modelless.__version__}\n"


@pytest.mark.parametrize("place", range(3))
def test_the_home_may_stand_anywhere(run: Run, tmp_path: Path, place: int) -> None:
    add_variants(tmp_path / "other")
    words = ["profile", "nonsense"]
    words[place:place] = ["--home", str(tmp_path / "other")]
    ran = run(*words)
    assert ran.code == 3
    assert "pixels" in ran.err
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("words", [("--home", "~no-such-user/x"), ()])
def test_a_home_of_nobody_is_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("MODELLESS_HOME", "~no-such-user/x")
    ran = run("zoo", "list", *words)
    assert ran.code == 2
    assert "--home: got '~no-such-user/x'; allowed: a path" in ran.err
    with pytest.raises(InvalidInputError, match="home: got '~no-such-user/x'"):
        home_folder(None)


def test_another_store_may_be_named(run: Run, tmp_path: Path, home: Path) -> None:
    ran = run("zoo", "list", "--json", "--store", f"sqlite:///{tmp_path}/other.db")
    assert ran.code == 0
    assert (tmp_path / "other.db").exists()
    assert not (home / "store.db").exists()
    with closing(open_registry(home)) as registry:  # and the environment is as it was
        registry.add_task(TASK)
    assert (home / "store.db").exists()


def test_a_store_that_cannot_be_is_refused(run: Run) -> None:
    assert run("zoo", "list", "--store", "nonsense").code == 2
    assert run("zoo", "list", "--store", "sqlite:////nowhere/at/all.db").code == 6


def test_a_store_that_is_no_store_is_refused(run: Run, home: Path) -> None:
    home.mkdir()
    (home / "store.db").write_bytes(b"no database, but long enough to look like one" * 100)
    ran = run("zoo", "list", "--json")
    assert ran.code == 6
    assert ran.document["exit_code"] == 6


@pytest.mark.parametrize(
    ("words", "brought"),
    [
        (["a", "--home", "x"], ["--home", "x", "a"]),
        (["a", "--store=y", "b"], ["--store=y", "a", "b"]),
        (["a", "--", "--home", "x"], ["a", "--", "--home", "x"]),
        (["a", "--home"], ["a"]),
        (["--homely", "x"], ["--homely", "x"]),
    ],
)
def test_global_options_come_first(words: list[str], brought: list[str]) -> None:
    assert globals_first(words)[: len(brought)] == brought


def test_the_demo_is_handed_what_was_asked_for(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def run_demo(where: Path, **settings: Any) -> None:
        asked.append((where, settings))

    monkeypatch.setattr("modelless.controller.demo.run.run_demo", run_demo)
    assert run("demo", "--keep", "--seconds", 7, "--report", "there", "--port", 9000).code == 0
    settings = {"keep": True, "report_dir": Path("there"), "seconds": 7.0, "port": 9000}
    assert asked == [(home, settings)]
    assert run("demo", "--seconds", "nan").code == 2
    assert run("demo", "--port", "0").code == 2
