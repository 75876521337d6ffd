"""The cluster that the demo, or a benchmark, brings up for itself."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from modelless.controller.live.cluster.cluster import FirstSignal
from modelless.controller.usecases.cluster import Up, up
from modelless.controller.usecases.progress import Progress, ignore
from modelless.controller.usecases.taking_down import down

HOST = "127.0.0.1"


def free_port(wanted: int) -> int:
    """``wanted`` if it can be listened on, else one that can."""
    try:
        with socket.create_server((HOST, wanted)) as probe:
            return int(probe.getsockname()[1])
    except OSError:
        if not wanted:
            raise
        return free_port(0)


@contextmanager
def running_cluster(
    home: Path,
    port: int,
    *,
    config: Path | None = None,
    keep: bool = False,
    on_progress: Progress = ignore,
) -> Iterator[Up]:
    """A cluster that serves every task that it can; taken down at the end, whatever happens.

    A second Ctrl-C does not interrupt that. SIGTERM is like Ctrl-C.

    Args:
        config: settings file; None for the defaults.
        keep: leave it up after an end without an error.
        on_progress: receives the stages of the start.

    Raises:
        EnvironmentUnfitError: it cannot be started, or is up already.
    """
    signals = FirstSignal()
    signals.install()
    try:
        running = up(config=config, port=port, home=home, on_progress=on_progress)
        is_well = False
        try:
            yield running
            is_well = True
        finally:
            signals.mute()
            if not (keep and is_well):
                down(home=home)
    finally:
        signals.restore()
