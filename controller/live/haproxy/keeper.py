"""Keeps a HAProxy in front of the gateways whatever happens to the one that Ray Serve runs.

Serve takes 9 to 11 seconds to replace a HAProxy that was killed, or the actor that runs it
(measured), and until its gateways are known to the new one that answers 404. The supervisor's
thread here waits on the process that serves clients, and when that ends without a successor it
starts a stand-in with the same configuration some ten milliseconds later. The stand-in has no
administration socket at Serve's path, so that Serve still notices and starts its own; once that
knows the gateways it accepts beside the stand-in, which then finishes (``launcher``).

All of them accept from one socket, which this process holds and another thread hands to them: who
connects while none of them runs waits and is not refused.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import subprocess
import threading
from pathlib import Path

from modelless.controller.live.cluster.ports import HeldPorts
from modelless.controller.live.cluster.running import send_signal
from modelless.controller.live.haproxy.configuration import stand_in
from modelless.controller.live.haproxy.launcher import (
    CURRENT,
    GIVER,
    KEEPER,
    Current,
    is_running,
    read_current,
    write_current,
)

logger = logging.getLogger(__name__)

LOOK_S = 0.5
"""How often a successor is looked for; a death is known at once."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 5.0


class HAProxyKeeper:
    """Threads that see to it that clients find a HAProxy.

    Args:
        folder: the sockets' folder, where the launcher notes which HAProxy serves; short enough for
            the path of a socket there.
        binary: HAProxy.
        ports: where the clients' port is held.
        port: the clients'.
    """

    def __init__(self, folder: Path, binary: str, ports: HeldPorts, port: int) -> None:
        self._folder = folder
        self._binary = binary
        self._ports = ports
        self._port = port
        self._ending = threading.Event()
        self._stand_ins: list[subprocess.Popen[bytes]] = []
        self._pause_s = FIRST_PAUSE_S
        self._giver: socket.socket
        self._threads = [
            threading.Thread(target=run, name="haproxy-keeper", daemon=True)
            for run in (self._watch, self._give)
        ]

    def start(self) -> None:
        """Begin to watch; before the first HAProxy is started."""
        (self._folder / CURRENT).unlink(missing_ok=True)
        (self._folder / KEEPER).write_text(str(os.getpid()))
        (self._folder / GIVER).unlink(missing_ok=True)
        self._giver = socket.socket(socket.AF_UNIX)
        self._giver.bind(str(self._folder / GIVER))
        self._giver.listen()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Watch no more: what ends from here on is meant to."""
        self._ending.set()
        (self._folder / KEEPER).unlink(missing_ok=True)

    def finish(self) -> None:
        """Have HAProxy accept nobody any more, answer what it has, and end.

        A HAProxy that is killed breaks its connections before it stops listening: a client may
        lose a query, connect again, and lose a second one.
        """
        for process in self._stand_ins:
            process.send_signal(signal.SIGUSR1)
        current = read_current(self._folder).process_id
        if is_running(current, "haproxy"):
            send_signal([current], signal.SIGUSR1)

    def close(self) -> None:
        """End the stand-ins, and give the clients' socket to nobody any more."""
        with contextlib.suppress(OSError):
            self._giver.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._giver.close()
        for process in self._stand_ins:
            process.kill()
            process.wait()
        self._stand_ins.clear()

    def _give(self) -> None:
        """Hand the clients' listening socket to each HAProxy that is being started."""
        while True:
            try:
                link, _ = self._giver.accept()
            except OSError:  # it is closed
                return
            with link, contextlib.suppress(OSError):
                socket.send_fds(link, [b"."], [self._ports.listen(self._port).fileno()])

    def _watch(self) -> None:
        while not self._ending.is_set():
            current = read_current(self._folder)
            if not current.process_id:
                self._ending.wait(LOOK_S)
            elif self._ended(current.process_id) and not (
                self._ending.is_set() or read_current(self._folder) != current
            ):
                self._stand_in_for(current)

    def _ended(self, process_id: int) -> bool:
        """Wait for the process to end, for a while; whether it has."""
        for process in self._stand_ins:
            process.poll()  # reaps it
        if not is_running(process_id, "haproxy"):  # a zombie has no command
            return True
        try:
            handle = os.pidfd_open(process_id)
        except ProcessLookupError:
            return True
        except OSError:  # there is no such call here, or no file is free: it is looked at again
            self._ending.wait(LOOK_S)
            return False
        try:
            ended, _, _ = select.select([handle], [], [], LOOK_S)
        finally:
            os.close(handle)
        return bool(ended)

    def _stand_in_for(self, ended: Current) -> None:
        self._stand_ins = [each for each in self._stand_ins if each.poll() is None]
        own, admin = self._folder / "stand-in.cfg", str(self._folder / "stand-in.socket")
        try:
            own.write_text(stand_in(Path(ended.configuration).read_text(), admin))
            process = self._ports.start(
                [self._port],
                [self._binary, "-db", "-f", str(own)],
                os.environ,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            logger.warning("no stand-in for HAProxy: %s", error)
            self._ending.wait(LONGEST_PAUSE_S)
            return
        for earlier in self._stand_ins:  # what ended was to take over from it
            earlier.send_signal(signal.SIGUSR1)
        self._stand_ins.append(process)
        logger.warning(
            "HAProxy (process %d) has ended: %d stands in", ended.process_id, process.pid
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(self._pause_s)
            self._pause_s = min(self._pause_s * 2.0, LONGEST_PAUSE_S)
            self._ending.wait(self._pause_s)
        if (
            read_current(self._folder) != ended
        ):  # Serve's next one has come, and knows nothing of it
            process.send_signal(signal.SIGUSR1)
            return
        try:
            write_current(self._folder, Current(process.pid, ended.configuration, admin))
        except OSError as error:
            logger.warning("it is not noted which HAProxy serves: %s", error)
            self._ending.wait(LONGEST_PAUSE_S)
        if process.poll() is None:
            self._pause_s = FIRST_PAUSE_S
