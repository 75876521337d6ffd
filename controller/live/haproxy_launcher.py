"""Starts HAProxy for Ray Serve with every port held to one host, and with the gateways' own doors.

Ray Serve writes HAProxy's configuration and runs the binary that it is told to run; this is that
binary. It edits the configuration in these ways and then becomes HAProxy (same process, so Serve's
supervision, reloads and health checks work as ever):

- Serve binds its metrics and statistics ports on every address: they are held to ``host``.
- A gateway that has opened a door (a Unix socket named after its replica) is reached through it
  instead of through Serve's own HTTP server in the same process, which costs about 0.5 ms of CPU a
  request. Health checks still go to Serve's port, so a replica that Serve takes out is out.
- While the first gateway has nothing to do it gets the next query; only then do the others share by
  least connections. A model that has just run answers sooner than one that slept (4.1 against 5.2
  ms, measured), so a trickle of queries should not be spread.
- Nothing is logged per query: Serve's configuration formats and sends a line for each.

Standard library only, so that starting it costs little.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1

_BIND = re.compile(r"^(\s*bind\s+)(?:\*|0\.0\.0\.0|\[::\])?:(\d+)", re.MULTILINE)
_SERVER = re.compile(
    r"^(\s*server\s+(\S*-(\w+))\s+)(127\.0\.0\.1|localhost):(\d+)\s+check\b(?!\s+backup)",
    re.MULTILINE,
)
_DOOR = re.compile(r"(\s*)server\s+(\S+)\s+unix@")


def hold_to_host(configuration: str, host: str) -> str:
    """The configuration with every bind on all addresses held to ``host``."""
    return _BIND.sub(rf"\g<1>{host}:\g<2>", configuration)


def route_through_doors(configuration: str, doors: dict[str, str]) -> str:
    """The configuration with servers that have a door reached through it.

    Args:
        doors: socket path by the replica's unique id, which ends the server's name.
    """

    def through_door(match: re.Match[str]) -> str:
        door = doors.get(match[3])
        if door is None:
            return match[0]
        return f"{match[1]}unix@{door} check addr {match[4]} port {match[5]}"

    return _SERVER.sub(through_door, configuration)


def prefer_first(configuration: str) -> str:
    """The configuration with an idle first door preferred in every backend that has doors."""
    lines = []
    has_rule = False
    for line in configuration.splitlines(keepends=True):
        door = _DOOR.match(line)
        if line.startswith("backend "):
            has_rule = False
        elif door and not has_rule:
            lines.append(f"{door[1]}use-server {door[2]} if {{ srv_conn({door[2]}) eq 0 }}\n")
            has_rule = True
        lines.append(line)
    return "".join(lines)


def log_nothing(configuration: str) -> str:
    """The configuration without access logs; HAProxy still prints what goes wrong."""
    return re.sub(r"^\s*(?:log\s|option\s+httplog\b).*\n", "", configuration, flags=re.MULTILINE)


def end_with_parent() -> None:
    """Have the kernel end this process when the one that started it ends, however it ends.

    Linux only, and kept across exec; elsewhere Serve alone sees to it.
    """
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    except (OSError, AttributeError):
        return
    if os.getppid() == 1:  # it ended before the call
        sys.exit(0)


def main() -> None:
    """Take HAProxy's arguments, edit the file that ``-f`` names into a sibling, become HAProxy."""
    host, binary, doors_folder, *arguments = sys.argv[1:]
    doors = {path.stem: str(path) for path in Path(doors_folder).glob("*.door")}
    place = arguments.index("-f") + 1
    written = Path(arguments[place])
    edited = written.with_name(written.name + ".held")
    text = route_through_doors(hold_to_host(written.read_text(), host), doors)
    edited.write_text(log_nothing(prefer_first(text)))
    arguments[place] = str(edited)
    end_with_parent()
    os.execv(binary, [binary, *arguments])  # noqa: S606  (a fixed binary, no shell)


if __name__ == "__main__":
    main()
