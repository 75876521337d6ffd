"""Starts HAProxy for Ray Serve, with the configuration as ``configuration`` edits it.

Ray Serve writes HAProxy's configuration and runs the binary that it is told to run; this is that
binary. It edits the configuration and then becomes HAProxy (same process, so Serve's supervision,
reloads and health checks work as ever).

- Serve has HAProxy share its port with nobody (``-dR``): then it could not listen beside a stand-in
  of ``keeper``, whose socket was inherited and is not handed over. That flag is left out.
- Clients' connections wait in a socket that outlives every HAProxy: ``keeper`` hands it to
  each. Until there are gateways it listens nowhere, so that a HAProxy that still serves gets the
  clients; once there are, that one hands its other ports over through a socket of its own and is
  asked to finish: no connection is refused meanwhile.

Standard library only, so that starting it costs little.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import NamedTuple

from modelless.controller.live.haproxy.configuration import (
    LISTENER,
    REFUSALS,
    Rules,
    edit,
    hand_over_through,
    has_application,
    has_gateways,
    listen_nowhere,
    refusal,
)

_PR_SET_PDEATHSIG = 1


NO_SHARING = "-dR"
KEEPER, CURRENT, RULES, GIVER = "keeper.pid", "haproxy.json", "rules.json", "listener"
"""In the sockets' folder: who keeps HAProxy alive, which HAProxy serves clients now, where clients
and operators come in, and the Unix socket that gives the clients' listening socket away."""


def read_rules(folder: Path) -> Rules | None:
    """The rules written for HAProxy; None if there are none."""
    try:
        return Rules(*json.loads((folder / RULES).read_text()))
    except OSError:
        return None


def fetch_listener(folder: Path) -> int:
    """Get the clients' listening socket; returns the number of the file, for HAProxy to inherit.

    Raises:
        OSError: nobody gives it away.
    """
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(str(folder / GIVER))
        _, numbers, _, _ = socket.recv_fds(link, 1, 1)
    if not numbers:
        raise OSError("the clients' port is given away no more")
    os.set_inheritable(numbers[0], True)
    return numbers[0]


def is_running(process_id: int, word: str) -> bool:
    """Whether the process lives and has ``word`` in its command: ids are used again."""
    try:
        command = Path(f"/proc/{process_id}/cmdline").read_bytes()
    except OSError:
        return False
    return word.encode() in command


class Current(NamedTuple):
    """The HAProxy that serves clients.

    Attributes:
        process_id: its own; 0 if there is none.
        configuration: path of what it was started with.
        socket: path through which it hands its ports over.
    """

    process_id: int
    configuration: str
    socket: str


def read_current(folder: Path) -> Current:
    """The HAProxy that serves clients, as far as is noted."""
    try:
        return Current(*json.loads((folder / CURRENT).read_text()))
    except (OSError, ValueError, TypeError):
        return Current(0, "", "")


def write_current(folder: Path, current: Current) -> None:
    """Note who serves clients from now on."""
    temporary = folder / f"{CURRENT}.{current.process_id}"
    temporary.write_text(json.dumps(current))
    temporary.replace(folder / CURRENT)


def after(arguments: list[str], before: Current) -> list[str]:
    """HAProxy's arguments with ``before``, which hands its ports over and then finishes."""
    process_id = before.process_id
    words = list(arguments)
    if "-x" in words:
        place = words.index("-x")
        del words[place : place + 2]
    if str(process_id) not in words:
        place = words.index("-sf") + 1 if "-sf" in words else len(words)
        words[place:place] = [str(process_id)] if "-sf" in words else ["-sf", str(process_id)]
    return [*words, "-x", before.socket]


def is_kept(folder: Path) -> bool:
    """Whether somebody watches over HAProxy: then it may outlive whoever started it."""
    try:
        return is_running(int((folder / KEEPER).read_text()), "")
    except (OSError, ValueError):
        return False


def outlive_parent() -> None:
    """Leave the process group of whoever started this: Ray ends all of it when that one dies."""
    with contextlib.suppress(OSError):  # it leads a group already
        os.setsid()


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
    folder = Path(doors_folder)
    sockets = {path.stem: str(path) for path in folder.glob("*.sock")}
    arguments = [word for word in arguments if word != NO_SHARING]
    place = arguments.index("-f") + 1
    written = Path(arguments[place])
    for status in REFUSALS:
        written.with_name(f"{status}.http").write_bytes(refusal(status))
    rules = read_rules(folder)
    text = edit(written.read_text(), host, sockets, rules, written.parent)
    # A name of its own: the one that serves now may have to be started again as it was.
    edited = written.with_name(f"{written.name}.{os.getpid()}.held")
    before = read_current(folder)
    for left_over in (*written.parent.glob(f"{written.name}.*.held"), *folder.glob("*.admin")):
        is_needed = str(left_over) == before.configuration  # by who stands in, if that ends, too
        if not is_needed and not is_running(int(left_over.name.split(".")[-2]), "haproxy"):
            left_over.unlink(missing_ok=True)
    # Until the first gateway comes clients wait; where all of them died, 503 says so.
    serves = has_gateways(text) or (bool(before.process_id) and has_application(text))
    if serves:
        if before.process_id and is_running(before.process_id, "haproxy"):
            arguments = after(arguments, before)
        if rules is not None:
            os.environ[LISTENER] = str(fetch_listener(folder))
        admin = str(folder / f"{os.getpid()}.admin")
        text = hand_over_through(text, admin)
        write_current(folder, Current(os.getpid(), str(edited), admin))
    else:
        text = listen_nowhere(text)
    edited.write_text(text)
    arguments[place] = str(edited)
    if serves and is_kept(folder):
        outlive_parent()
    else:
        end_with_parent()
    os.execv(binary, [binary, *arguments])  # noqa: S606  (a fixed binary, no shell)
