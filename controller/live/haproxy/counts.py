"""What HAProxy has refused itself, from its administration socket: no gateway sees it.

Each HAProxy counts from zero; the counts of one that was replaced stay in the sum.
"""

from __future__ import annotations

import csv
import socket
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from modelless.controller.live.haproxy.configuration import CONSOLE
from modelless.controller.live.haproxy.launcher import read_current

REASONS: Final = {
    "dcon": "connections",
    "dreq": "denied",
    "ereq": "malformed-or-slow",
    "unanswered": "unanswered",
}
"""HAProxy's name of a count, and the reason that it stands for: too many connections from one
address; too many requests from it, or another's path; 400 and 408; 503."""

_PATIENCE_S: Final = 1.0
_FRONTEND, _BACKENDS = "http_frontend", ("http-", CONSOLE)


class ProxyCounts:
    """Adds up what the HAProxies of one home refuse.

    Args:
        sockets: the folder where it is noted which HAProxy serves.
    """

    def __init__(self, sockets: Path) -> None:
        self._sockets = sockets
        self._process_id = 0
        self._now: Mapping[str, int] = {}
        self._before: Counter[str] = Counter()

    def read(self) -> dict[str, int]:
        """Return the refusals by reason; the last ones known while HAProxy does not answer."""
        current = read_current(self._sockets)
        if current.process_id:
            try:
                now = _refusals(_ask(current.socket))
            except OSError:
                now = None
            if now is not None:
                if current.process_id != self._process_id:
                    self._before.update(self._now)
                    self._process_id = current.process_id
                self._now = now
        return dict(self._before + Counter(self._now))


def _ask(path: str) -> str:
    """What ``show stat`` prints."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(_PATIENCE_S)
        link.connect(path)
        link.sendall(b"show stat\n")
        parts = []
        while part := link.recv(1 << 16):
            parts.append(part)
    return b"".join(parts).decode()


def _refusals(text: str) -> dict[str, int]:
    """Sum up the rows of the clients' frontend; 503 that no server sent are HAProxy's own."""
    found: Counter[str] = Counter()
    sent = 0
    for row in csv.DictReader(text.removeprefix("# ").splitlines()):
        if row["pxname"] == _FRONTEND and row["svname"] == "FRONTEND":
            found.update({name: int(row[name] or 0) for name in ("dcon", "dreq", "ereq")})
            found["unanswered"] += int(row["hrsp_5xx"] or 0)
        elif row["pxname"].startswith(_BACKENDS) and row["svname"] not in ("BACKEND", "FRONTEND"):
            sent += int(row["hrsp_5xx"] or 0)
    found["unanswered"] = max(found["unanswered"] - sent, 0)
    return {REASONS[name]: count for name, count in found.items()}
