"""``modelless up --detach``: starts itself again in the background and waits until it is ready."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from modelless.common.errors import EnvironmentUnfitError, ModellessError
from modelless.controller.cli.screen import say

if TYPE_CHECKING:
    from modelless.controller.live.cluster.cluster import UpState

POLL_S: Final = 0.1
PATIENCE_S: Final = 300.0
_ERROR: Final = "error: "


class ChildError(ModellessError):
    """What the background process said before it ended, with its exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # of this one, not of the class


def start_detached(home: Path, words: Sequence[str]) -> tuple[UpState, Path]:
    """Run ``modelless WORDS`` in a session of its own; its state and its log, once it is up.

    What it says meanwhile is repeated on stderr. Interrupted, it takes the process down again.

    Raises:
        ModellessError: it ended before it was ready; its own words and exit code.
        EnvironmentUnfitError: modelless is up already or being started, or did not become ready.
    """
    from modelless.controller.live.cluster.cluster import read_state
    from modelless.controller.live.cluster.run_folder import only_one

    running = read_state(home)
    if running is not None:
        raise EnvironmentUnfitError(
            f"modelless is already up at {running.url} (process {running.pid}); "
            "'modelless down' takes it down"
        )
    with only_one(home.resolve()):
        pass  # refused here, for a new process would begin the log of the other one anew
    log = home.resolve() / "run" / "up.log"
    command = [sys.executable, "-P", "-m", "modelless.controller.cli"]
    command += ["--home", str(home.resolve())]
    with log.open("wb") as output:
        child = subprocess.Popen(
            [*command, *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    try:
        return _wait(home, child, log), log
    except BaseException:
        _end(child)
        raise


def last_error(text: str) -> str:
    """The last line of a log that reports an error, without the word; or the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(_ERROR)]
    return errors[-1].removeprefix(_ERROR) if errors else (lines[-1] if lines else "no word")


def _wait(home: Path, child: subprocess.Popen[bytes], log: Path) -> UpState:
    """Wait until the child serves all that it can; what it says of itself."""
    from modelless.controller.cli.server import get_json
    from modelless.controller.live.cluster.cluster import read_state

    end_s = time.monotonic() + PATIENCE_S
    repeated = 0
    while time.monotonic() < end_s:
        code = child.poll()
        text = log.read_text(encoding="utf-8", errors="replace")
        for line in text[repeated:].splitlines(keepends=True):
            if line.endswith("\n"):
                repeated += len(line)
                if line.rstrip().endswith("..."):
                    say(line.rstrip())
        if code is not None:
            raise ChildError(f"{last_error(text)} (log: {log})", code if code > 0 else 1)
        state = read_state(home)
        if state is not None and state.pid == child.pid:
            if state.awaits:
                say(f"not every task is served yet: {state.awaits}")
                return state
            try:
                get_json(state.url, "/v2/health/ready", 2.0)
            except ModellessError:
                pass
            else:
                return state
        time.sleep(POLL_S)
    raise EnvironmentUnfitError(f"it did not become ready within {PATIENCE_S:.0f} s; log: {log}")


def _end(child: subprocess.Popen[bytes]) -> None:
    """Take the child down, politely, then not."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(timeout=30.0)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
