"""Starts HAProxy for Ray Serve with every port held to one host, and with the gateways' own doors.

Ray Serve writes HAProxy's configuration and runs the binary that it is told to run; this is that
binary. It edits the configuration in these ways and then becomes HAProxy (same process, so Serve's
supervision, reloads and health checks work as ever):

- Serve binds its metrics and statistics ports on every address: they are held to ``host``.
- Serve opens HAProxy's administration socket to every user of the machine, who could take servers
  out of service or fetch the listening sockets: it is held to this user, who is Serve's as well.
- A gateway that has opened a door (a Unix socket named after its replica) is reached through it
  instead of through Serve's own HTTP server in the same process, which costs about 0.5 ms of CPU a
  request. Health checks still go to Serve's port, so a replica that Serve takes out is out.
- While the first gateway has nothing to do it gets the next query; only then do the others share by
  least connections. A model that has just run answers sooner than one that slept (4.1 against 5.2
  ms, measured), so a trickle of queries should not be spread.
- Nothing is logged per query: Serve's configuration formats and sends a line for each.
- A query whose gateway dies before it answers is sent once more, to another gateway: inference may
  be repeated. HAProxy can only repeat what it has kept, so it takes a query in as a whole first.
- What no gateway answers is answered here: 503, as JSON, to be tried again. Serve would ask its own
  proxy, which says 404 once the gateways are being taken down.
- Serve has HAProxy share its port with nobody (``-dR``): then it could not listen beside a stand-in
  of ``haproxy_keeper``, whose socket was inherited and is not handed over. That flag is left out.
- Until there are gateways it listens nowhere, so that a HAProxy that still serves (see
  ``haproxy_keeper``) gets the clients; once there are, that one hands its open ports over through
  a socket of its own and is asked to finish: no connection is refused meanwhile.

Standard library only, so that starting it costs little.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import NamedTuple

_PR_SET_PDEATHSIG = 1

MOST_SENDING_S = 30
"""A client that takes longer to send its query, or the first 256 kB of it, is answered 408."""

_STATS_SOCKET = re.compile(r"^(\s*stats socket \S+)(.*)$", re.MULTILINE)
_MODE = re.compile(r"\s+mode\s+\S+")
_BIND = re.compile(r"^(\s*bind\s+)(?:\*|0\.0\.0\.0|\[::\])?:(\d+)", re.MULTILINE)
_SERVER = re.compile(
    r"^(\s*server\s+(\S*-(\w+))\s+)(127\.0\.0\.1|localhost):(\d+)\s+check\b(?!\s+backup)",
    re.MULTILINE,
)
_DOOR = re.compile(r"(\s*)server\s+(\S+)\s+unix@")
_ANY_BIND = re.compile(r"^\s*bind .*\n", re.MULTILINE)
_ADMIN = re.compile(r"^(\s*stats socket )\S+( .*\bexpose-fd listeners.*)$", re.MULTILINE)
_APPLICATION = re.compile(r"^backend http-", re.MULTILINE)
_FALLBACK = re.compile(r"^\s*server .* check backup\n", re.MULTILINE)
_ERROR_FILE = re.compile(r"^(\s*errorfile (?:502|503|504) )\S+", re.MULTILINE)

UNANSWERED = (
    b"HTTP/1.1 503 Service Unavailable\r\n"
    b"content-type: application/json\r\n"
    b"content-length: 61\r\n"
    b"retry-after: 1\r\n"
    b"\r\n"
    b'{"error":"no gateway could answer the query; try once again"}'
)
NO_SHARING = "-dR"
KEEPER, CURRENT = "keeper.pid", "haproxy.json"
"""In the doors' folder: who keeps HAProxy alive, and which HAProxy serves clients now."""


def hold_to_host(configuration: str, host: str) -> str:
    """The configuration with every bind on all addresses held to ``host``."""
    return _BIND.sub(rf"\g<1>{host}:\g<2>", configuration)


def hold_to_user(configuration: str) -> str:
    """The configuration with every administration socket open to this user alone."""
    return _STATS_SOCKET.sub(
        lambda match: f"{match[1]} mode 600{_MODE.sub('', match[2])}", configuration
    )


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


def repeat_unanswered(configuration: str) -> str:
    """The configuration with queries taken in as a whole, in time, and servers' downs seen at once.

    That a query is repeated at all is Serve's setting, RAY_SERVE_HAPROXY_RETRY_ON.
    """
    taken_in = rf"\1\2\n\1option http-buffer-request\n\1timeout http-request {MOST_SENDING_S}s"
    text = re.sub(r"^(\s*)(retry-on .*)$", taken_in, configuration, flags=re.M)
    return re.sub(
        r"^(\s*default-server .*)$", r"\1 on-marked-down shutdown-sessions", text, flags=re.M
    )


def has_gateways(configuration: str) -> bool:
    """Whether there is an application to send clients to."""
    return _APPLICATION.search(configuration) is not None


def listen_nowhere(configuration: str) -> str:
    """The configuration without any port."""
    return _ANY_BIND.sub("", configuration)


def hand_over_through(configuration: str, socket: str) -> str:
    """The configuration with a socket of its own besides Serve's, through which ports are got."""
    return _ADMIN.sub(rf"\g<0>\n\g<1>{socket}\g<2>", configuration)


def say_unavailable(configuration: str, file: str) -> str:
    """The configuration with ``file`` as the answer to what no server answered."""
    return _ERROR_FILE.sub(rf"\g<1>{file}", _FALLBACK.sub("", configuration))


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
    """Who serves clients, as far as is noted."""
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
    doors = {path.stem: str(path) for path in folder.glob("*.door")}
    arguments = [word for word in arguments if word != NO_SHARING]
    place = arguments.index("-f") + 1
    written = Path(arguments[place])
    text = hold_to_user(hold_to_host(written.read_text(), host))
    text = route_through_doors(text, doors)
    unanswered = written.with_name("unanswered.http")
    unanswered.write_bytes(UNANSWERED)
    text = say_unavailable(repeat_unanswered(log_nothing(prefer_first(text))), str(unanswered))
    # A name of its own: the one that serves now may have to be started again as it was.
    edited = written.with_name(f"{written.name}.{os.getpid()}.held")
    before = read_current(folder)
    for left_over in (*written.parent.glob(f"{written.name}.*.held"), *folder.glob("*.admin")):
        is_needed = str(left_over) == before.configuration  # by who stands in, if that ends, too
        if not is_needed and not is_running(int(left_over.name.split(".")[-2]), "haproxy"):
            left_over.unlink(missing_ok=True)
    serves = has_gateways(text)
    if serves:
        if before.process_id and is_running(before.process_id, "haproxy"):
            arguments = after(arguments, before)
        socket = str(folder / f"{os.getpid()}.admin")
        text = hand_over_through(text, socket)
        write_current(folder, Current(os.getpid(), str(edited), socket))
    else:
        text = listen_nowhere(text)
    edited.write_text(text)
    arguments[place] = str(edited)
    if serves and is_kept(folder):
        outlive_parent()
    else:
        end_with_parent()
    os.execv(binary, [binary, *arguments])  # noqa: S606  (a fixed binary, no shell)


if __name__ == "__main__":
    main()
