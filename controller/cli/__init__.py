"""The command line: ``modelless``. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; the exit code says how it ended (see ``failures``)."""
    try:
        from modelless.controller.cli.app import app

        app()
    except KeyboardInterrupt:  # before the command line itself could take care of it
        sys.exit(130)
