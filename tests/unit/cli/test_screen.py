"""Progress and tables: a bar for people at a terminal, a line now and then for everyone else."""

from __future__ import annotations

import subprocess
import sys

import pytest

from modelless.controller.cli.screen import Steps, accuracy_text, show_table
from modelless.variants.vocabulary import Accuracy, Provenance


class Clock:
    """A clock that moves only when told to."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_without_a_terminal_there_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    with Steps("measuring", clock) as steps:
        for done in range(101):
            steps.at(done, 100, f"thing {done}")
            clock.now_s += 0.25
        steps.at(100, 100, "thing 100")
        steps.note("that was it")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "measuring 0/100: thing 0",
        "measuring 20/100: about 20 s left: thing 20",
        "measuring 40/100: about 15 s left: thing 40",
        "measuring 60/100: about 10 s left: thing 60",
        "measuring 80/100: about 5 s left: thing 80",
        "measuring 100/100: thing 100",
        "that was it",
    ]


def test_who_knows_better_says_how_long_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with Steps("measuring", Clock()) as steps:
        steps.at(1, 2, "x", 75.0)
    assert capsys.readouterr().err == "measuring 1/2: about 1 min 15 s left: x\n"


def test_a_terminal_gets_a_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with Steps("measuring [x]", Clock()) as steps:
        steps.at(1, 2, "thing [1]", 75.0)
        steps.note("a note [bold]")
    out, err = capsys.readouterr()
    assert out == ""
    assert all(part in err for part in ("measuring [x]", "1/2", "1 min 15 s left", "thing [1]"))
    assert "a note [bold]" in err


def test_a_table_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(["a", "b"], [("[red]x[/red]", ":smile:"), ("y" * 90, "1")], right=[1], title="[t]")
    out = capsys.readouterr().out
    assert "[red]x[/red]" in out
    assert ":smile:" in out
    assert "y" * 90 in out
    assert "[t]" in out


def test_what_stands_above_and_below_a_table_is_not_folded_to_its_width(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_table(["a"], [("b",)], title="a title " * 40, caption="a caption " * 40)
    out = capsys.readouterr().out
    assert ("a title " * 40).rstrip() in out
    assert ("a caption " * 40).rstrip() in out


def test_an_accuracy_says_how_it_is_known() -> None:
    measured = Accuracy(91.25, "top-1", Provenance.MEASURED, "a set", 90.6, 91.8, 10_000)
    assert accuracy_text(measured) == "91.2 % measured (90.6 to 91.8)"
    assert accuracy_text(Accuracy(75.1, "top-1", Provenance.PUBLISHED, "x")) == "75.1 % published"


def test_what_others_print_is_no_part_of_the_answer_nor_what_native_code_prints() -> None:
    code = (
        "import ctypes, subprocess, sys\n"
        "from modelless.controller.cli.screen import others_print_to_stderr\n"
        "print('before')\n"
        "with others_print_to_stderr():\n"
        "    print('python')\n"
        "    ctypes.CDLL(None).puts(b'native')\n"
        "    subprocess.run([sys.executable, '-c', 'print(1)'], check=True)\n"
        "print('after')\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["before", "after"]
    assert sorted(ran.stderr.splitlines()) == ["1", "native", "python"]
