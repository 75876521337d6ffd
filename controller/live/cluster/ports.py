"""Ports that stay ours from the moment they are chosen until their listener has them.

Ray starts dozens of servers that take whatever port the system gives them. One of them can be given
the very port that clients were told of, between the check that it is free and HAProxy's start.

The clients' socket outlives who accepts from it: HAProxy inherits it, and while none runs, clients
wait in its queue.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from modelless.common.errors import EnvironmentUnfitError
from modelless.controller.live.haproxy.configuration import LISTENER

BACKLOG = 1024
"""Connections that may wait to be accepted; the kernel allows 4,096 unless told otherwise."""


def check_reachable(address: str, most_s: float = 5.0) -> None:
    """Whether anybody listens at ``HOST:PORT`` or ``ray://HOST:PORT``; ``auto`` and such pass.

    Ray itself would try for a minute and more.

    Raises:
        EnvironmentUnfitError: nobody does.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), most_s).close()
    except (OSError, OverflowError) as error:
        raise EnvironmentUnfitError(
            f"--address: got {address!r}; nobody answers there ({error}). Allowed: auto, HOST:PORT "
            "or ray://HOST:PORT of a Ray cluster that is up; 'ray status' shows one"
        ) from None


class HeldPorts:
    """Ports bound, and not listened on, by this process.

    The system gives such a port to no process that asks for any. A process that asks for this very
    one and says that it may be used again (``SO_REUSEADDR``, ``SO_REUSEPORT``: HAProxy and Serve's
    proxies do) gets it, and only one that listens gets connections.
    """

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    @classmethod
    def inherited(cls) -> HeldPorts:
        """With the sockets that whoever started this process handed down by ``start``, if any."""
        ports = cls()
        numbers = filter(None, os.environ.pop(LISTENER, "").split(","))
        ports._sockets += [socket.socket(fileno=int(number)) for number in numbers]
        return ports

    def hold(self, host: str, port: int = 0) -> int:
        """Hold ``port``, or any that is free; returns which.

        Raises:
            EnvironmentUnfitError: somebody else listens there.
        """
        if any(held.getsockname()[1] == port for held in self._sockets):
            return port
        # A process that listens and shares would share with us, too: so ask without first.
        try:
            with _bound(host, port, shared=False) as probe:
                chosen: int = probe.getsockname()[1]
            self._sockets.append(_bound(host, chosen, shared=True))
        except OSError as error:
            raise EnvironmentUnfitError(
                f"http: {host}:{port} cannot be listened on ({error.strerror}); "
                "free it, or choose another with --port, http.port or http.operators_port"
            ) from None
        return chosen

    def listen(self, port: int) -> socket.socket:
        """Listen on a held port from now on; connections wait for a process that accepts them.

        Raises:
            OSError: the port is not held, or somebody listens there without sharing.
        """
        held = self._held(port)
        held.listen(BACKLOG)
        return held

    def start(
        self,
        ports: Iterable[int],
        command: Sequence[str],
        environment: Mapping[str, str],
        **options: Any,
    ) -> subprocess.Popen[bytes]:
        """Start a process that inherits the sockets of held ports.

        Their numbers are in ``LISTENER``, in the order of ``ports``, with commas.

        Raises:
            OSError: one of the ports is not held, or there is no such command.
        """
        numbers = [self._held(port).fileno() for port in ports]
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=numbers,
            env={**environment, LISTENER: ",".join(map(str, numbers))},
            **options,
        )

    def _held(self, port: int) -> socket.socket:
        for held in self._sockets:
            if held.getsockname()[1] == port:
                return held
        raise OSError(f"port {port} is not held")

    def close(self) -> None:
        while self._sockets:
            self._sockets.pop().close()


def _bound(host: str, port: int, *, shared: bool) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound
