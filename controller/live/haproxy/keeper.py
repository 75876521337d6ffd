"""Keeps a HAProxy in front of the gateways whatever happens to the one that Ray Serve runs.

Serve takes 9 to 11 seconds to replace a HAProxy that was killed, or the actor that runs it
(measured), and until its gateways are known to the new one that answers 404. The supervisor's
thread here waits on the process that serves clients, and when that ends without a successor it
listens on the clients' port itself, at once, and starts a stand-in with the same configuration
that accepts from that socket some ten milliseconds later: who connects meanwhile waits and is not
refused. The stand-in has no administration socket at Serve's path, so that Serve still notices and
starts its own; once that knows the gateways it listens beside the stand-in, which then finishes
(``launcher``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import select
import signal
import subprocess
import threading
from pathlib import Path

from modelless.controller.live.cluster.ports import HeldPorts
from modelless.controller.live.haproxy.launcher import (
    CURRENT,
    KEEPER,
    NOT_FOR_CLIENTS,
    Current,
    is_running,
    read_current,
    write_current,
)

logger = logging.getLogger(__name__)

LOOK_S = 0.5
"""How often a successor is looked for; a death is known at once."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 5.0
_OF_SERVE = re.compile(
    r"^\s*(?:stats socket|server-state-base|server-state-file|load-server-state-from-file) .*\n",
    re.M,
)
_BIND = re.compile(r"^(\s*bind )\S+", re.M)
_NOT_FOR_CLIENTS = re.compile(rf"^\s*bind .*# {NOT_FOR_CLIENTS}\n", re.M)
_OTHER_PORTS = re.compile(r"^((?:frontend prometheus|listen stats)\n)\s*bind .*\n", re.M)


def stand_in(configuration: str, socket: str, listener: int) -> str:
    """The configuration without what belongs to Serve alone: only clients come in.

    Args:
        configuration: of the HAProxy that ended.
        socket: at which Serve's next HAProxy asks for ports; what is inherited is not handed over.
        listener: number of the inherited file that clients are accepted from.
    """
    text = _OTHER_PORTS.sub(r"\1", _OF_SERVE.sub("", configuration))
    text = _NOT_FOR_CLIENTS.sub("", text)
    text = _BIND.sub(rf"\g<1>fd@{listener}", text)
    own = f"    stats socket {socket} mode 600 level admin expose-fd listeners\n"
    return text.replace("global\n", f"global\n{own}", 1)


class HAProxyKeeper:
    """A thread that sees to it that clients find a HAProxy.

    Args:
        folder: the doors' folder, where the launcher notes which HAProxy serves.
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
        self._thread = threading.Thread(target=self._watch, name="haproxy-keeper", daemon=True)

    def start(self) -> None:
        """Begin to watch; before the first HAProxy is started."""
        (self._folder / CURRENT).unlink(missing_ok=True)
        (self._folder / KEEPER).write_text(str(os.getpid()))
        self._thread.start()

    def stop(self) -> None:
        """Watch no more: what ends from here on is meant to."""
        self._ending.set()
        (self._folder / KEEPER).unlink(missing_ok=True)
        self._thread.join()

    def close(self) -> None:
        """End the stand-ins."""
        for process in self._stand_ins:
            process.kill()
            process.wait()
        self._stand_ins.clear()

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
        own, socket = self._folder / "stand-in.cfg", str(self._folder / "stand-in.socket")
        try:
            with self._ports.listen(self._port) as listener:
                number = listener.fileno()
                own.write_text(stand_in(Path(ended.configuration).read_text(), socket, number))
                process = subprocess.Popen(
                    [self._binary, "-db", "-f", str(own)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    pass_fds=[number],
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
            write_current(self._folder, Current(process.pid, ended.configuration, socket))
        except OSError as error:
            logger.warning("it is not noted which HAProxy serves: %s", error)
            self._ending.wait(LONGEST_PAUSE_S)
        if process.poll() is None:
            self._pause_s = FIRST_PAUSE_S
