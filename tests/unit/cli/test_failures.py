"""Errors: one line on stderr, an exit code of its own, JSON for programs, no traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from modelless.common import errors
from modelless.common.errors import InfeasibleError, ModellessError, NotFoundError
from modelless.controller.cli.failures import Failed, ReportingGroup, report

from .conftest import Run


def command_line(error: BaseException) -> typer.Typer:
    """A command line whose one command raises ``error``."""
    app = typer.Typer(cls=ReportingGroup)

    @app.callback()
    def top() -> None: ...

    @app.command()
    def fail(as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
        raise error

    return app


def ending(error: BaseException, *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command that raises ``error``."""
    result = CliRunner().invoke(command_line(error), ["fail", *words])
    return result.exit_code, result.stdout, result.stderr


KINDS = sorted(
    (
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, ModellessError)
    ),
    key=lambda kind: kind.__name__,
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_of_error_has_its_exit_code(kind: Callable[[str], ModellessError]) -> None:
    error = kind("the field: got 1;\n  allowed: 2.")
    line = "error: the field: got 1; allowed: 2.\n"
    assert ending(error) == (error.exit_code, "", line)
    code, out, err = ending(error, "--json")
    assert (code, err) == (error.exit_code, line)
    assert json.loads(out) == {
        "error": "the field: got 1; allowed: 2.",
        "exit_code": error.exit_code,
    }


def test_exit_codes_tell_the_kinds_apart() -> None:
    codes = {kind.exit_code for kind in KINDS}
    assert codes == set(range(1, 10))
    assert not codes & {70, 130}


def test_an_error_may_bring_details_for_programs() -> None:
    code, out, err = ending(Failed(InfeasibleError("too slow"), {"candidates": [1]}), "--json")
    assert (code, err) == (4, "error: too slow\n")
    assert json.loads(out) == {"error": "too slow", "exit_code": 4, "candidates": [1]}


def test_an_error_of_the_operating_system_names_its_file() -> None:
    code, _, err = ending(OSError(28, "No space left on device", "/data/up.json"))
    assert (code, err) == (7, "error: /data/up.json: No space left on device\n")


def test_a_bug_is_called_one() -> None:
    code, out, err = ending(ZeroDivisionError("oh"), "--json")
    assert code == 70
    assert err.startswith("error: unexpected ZeroDivisionError: oh. This is a bug")
    assert json.loads(out)["exit_code"] == 70


def test_a_bugs_traceback_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELLESS_TRACEBACK", "1")
    result = CliRunner().invoke(command_line(ZeroDivisionError("oh")), ["fail"])
    assert isinstance(result.exception, ZeroDivisionError)
    assert ending(NotFoundError("no such task")) == (3, "", "error: no such task\n")


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), typer.Abort()])
def test_an_interrupted_command_ends_with_130(interrupt: BaseException) -> None:
    code, out, err = ending(interrupt)
    assert (code, out) == (130, "")
    assert err.endswith("interrupted\n")


def test_who_closes_our_output_early_hears_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert report(BrokenPipeError(), as_json=True) == 1
    assert capfd.readouterr() == ("", "")


GROUPS = ("zoo", "costmodel", "key", "store", "config")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["profil"], "No such command 'profil'. Did you mean 'profile'"),
        (["zoo", "addd"], "modelless zoo --help"),
        (["select"], "Missing option '--task'"),
        *(([group], f"Missing command. See: modelless {group} --help") for group in GROUPS),
        (["profile", "--batchs", "1"], "See: modelless profile --help"),
        (["select", "--task", "x", "--latency-ms", "soon"], "--latency-ms"),
        (["up", "--port", "http"], "--port"),
        (["register", "f", "--precision", "int9", "--model", "m", "--name", "n"], "int9"),
    ],
)
def test_wrong_usage_is_one_line(run: Run, words: list[str], said: str) -> None:
    ran = run(*words)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1
    ran = run(*words, "--json")
    assert ran.code == 2
    document: Any = ran.document
    assert document["exit_code"] == 2


def test_wrong_words_of_an_option_are_told_without_what_python_calls_them(run: Run) -> None:
    ran = run("register", "a.onnx", "--model", "m", "--precision", "fp99")
    assert ran.code == 2
    assert "Invalid value for '--precision': 'fp99' is not one of 'fp32'" in ran.err
