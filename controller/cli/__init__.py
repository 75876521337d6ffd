"""The command line: ``modelless``. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import os
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; the exit code says how it ended (see ``failures``)."""
    try:
        from modelless.controller.cli.app import app

        app()
    except KeyboardInterrupt:  # before the command line itself could take care of it
        sys.exit(130)
    except SystemExit as end:
        if "ray" in sys.modules:
            # All is taken down by now. Ray's native threads, interrupted while it started, may
            # crash the interpreter as it ends, and the exit code would tell of that instead.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise
