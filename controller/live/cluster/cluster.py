"""Bringing the cluster up on this machine, and down again, leaving nothing behind.

One process, the supervisor, owns everything: Ray's daemons and workers end with it, however it
ends. Its process id and address stand in ``run/up.json`` for the other commands.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from modelless.common.errors import EnvironmentUnfitError, ModellessError, NotFoundError
from modelless.common.files import write_whole
from modelless.controller.assembly import check_policies
from modelless.controller.config import Settings
from modelless.controller.live.cluster import reaper
from modelless.controller.live.cluster.deployed import write_deployed
from modelless.controller.live.cluster.lean_ray import start_less
from modelless.controller.live.cluster.loopback import (
    LOOPBACK,
    absolute_paths,
    check_authentication,
    joining_environment,
    ray_environment,
    set_environment,
    write_haproxy_launcher,
)
from modelless.controller.live.cluster.node_room import cpus_for, nodes_of, without_room
from modelless.controller.live.cluster.ports import HeldPorts, check_reachable
from modelless.controller.live.cluster.run_folder import (
    RAY,
    close_to_others,
    current_folder,
    empty_folder,
    empty_sockets,
    note_mark,
    only_one,
    remove_temporary,
    token_path,
)
from modelless.controller.live.cluster.running import (
    LEFT_OVER_S,
    UpState,
    answers,
    began_ticks,
    end_left_over,
    read_state,
)
from modelless.controller.live.haproxy.configuration import Rules
from modelless.controller.live.haproxy.keeper import HAProxyKeeper
from modelless.controller.live.logs import RAY_LOGS
from modelless.controller.live.store_lease import hold_store

logger = logging.getLogger(__name__)

OnStage = Callable[[str], None]

SERVE_PROCESSES = 3
"""The control loop, Serve's controller and what starts HAProxy."""


class FirstSignal:
    """The first Ctrl-C or SIGTERM raises KeyboardInterrupt; those that follow do nothing.

    Works in the main thread only, the one that Python gives signals to; elsewhere it does nothing.
    """

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        self._muted = False

    def install(self) -> None:
        """Take the signals over, or back from whoever took them since."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.signal(number, self._on_signal)
            self._before.setdefault(number, before)

    def mute(self) -> None:
        """From now on they do nothing."""
        self._muted = True

    def restore(self) -> None:
        """Give the signals back."""
        while self._before:
            signal.signal(*self._before.popitem())

    def _on_signal(self, number: int, frame: object) -> None:
        del number, frame
        if not self._muted:
            self._muted = True
            raise KeyboardInterrupt


class Cluster:
    """A cluster on this machine. Use as a context manager: leaving it takes everything down.

    Args:
        on_stage: told what is being done, for people.
        address: a Ray cluster to join, as ``ray.init`` takes it; None for one of its own. One that
            was joined goes on afterwards, and its Ray Serve listens where it listens.

    Attributes:
        not_served: tasks that are left out, once it is entered, and why.

    Raises (on entering):
        EnvironmentUnfitError: the port is taken, modelless is up already or being started, this
            process is connected to Ray, RAY_AUTH_MODE is not ``token``, or Ray does not start.
        NotFoundError: nothing is registered or profiled.
        StoreError: the store cannot be read.
    """

    def __init__(
        self,
        home: Path,
        settings: Settings,
        on_stage: OnStage | None = None,
        address: str | None = None,
        ports: HeldPorts | None = None,
    ) -> None:
        self._home = home.resolve()
        self._settings = settings
        self._on_stage = on_stage or (lambda _: None)
        self._address = address
        self._run = self._home / "run"
        self._signals = FirstSignal()
        self._reaper: subprocess.Popen[bytes] | None = None
        self._keeper: HAProxyKeeper | None = None
        self._ports = ports or HeldPorts()
        self._lacking: Mapping[str, str] = {}
        self._began_at = time.time()
        self._lock = ExitStack()
        self._connects = False
        self._operators_port = 0
        self.not_served: Mapping[str, str] = {}

    @property
    def url(self) -> str:
        """Where clients go."""
        return self._settings.http.url

    @property
    def operators_url(self) -> str:
        """Where operators go, on this machine; ``url`` if they have no port of their own."""
        return f"http://{LOOPBACK}:{self._operators_port}" if self._operators_port else self.url

    def __enter__(self) -> Cluster:
        from modelless.controller.live.knowledge import read_knowledge

        _check_unconnected()
        check_authentication(self._address)
        running = read_state(self._home)
        if running is not None:
            raise EnvironmentUnfitError(
                f"modelless is already up at {running.url} (process {running.pid}); "
                "'modelless down' takes it down"
            )
        # Built and read here too, to fail with a clear error, and not in a worker.
        check_policies(self._settings)
        knowledge = read_knowledge(self._home, self._settings)
        servable = knowledge.servable()
        self.not_served = servable.not_served
        if self.not_served.keys() == knowledge.catalog.tasks.keys():
            raise NotFoundError("nothing can be served: " + "; ".join(self.not_served.values()))
        if knowledge.catalog.left_out:
            names = ", ".join(sorted(knowledge.catalog.left_out))
            self._on_stage(f"leaving out what is dominated (see 'modelless variants'): {names}")
        unprofiled = [
            variant.id
            for variant in knowledge.catalog.variants
            if variant.id not in servable.variant_ids and variant.task not in self.not_served
        ]
        if unprofiled:
            names = ", ".join(sorted(unprofiled))
            self._on_stage(
                f"leaving out what has no profile ('modelless profile' makes it): {names}"
            )
        self._lock.enter_context(only_one(self._home))
        try:
            hold_store(self._home)
            self._signals.install()
            self._start()
        except BaseException as error:
            self._stop()
            if isinstance(error, Exception) and not isinstance(error, ModellessError):
                raise EnvironmentUnfitError(
                    f"Ray could not be started: {error}. Its logs are in "
                    f"{RAY_LOGS if self._address else self._run / RAY}, modelless's in "
                    f"{self._run / 'logs'}"
                ) from error
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def wait_ready(self, most_s: float = 120.0) -> bool:
        """Wait until every task that can be served is.

        Returns:
            Whether they are; if not, nodes are awaited that have room for what serves the others.

        Raises:
            EnvironmentUnfitError: they are not, after ``most_s``.
        """
        end_s = time.monotonic() + most_s
        while time.monotonic() < end_s:
            if answers(self.operators_url, "ready"):
                return True
            time.sleep(0.05)
        if self._lacking:
            awaits = "; ".join(self._lacking.values())
            self._on_stage(
                f"not every task is served yet: {awaits}. What else may be missing is in "
                f"{self.operators_url}/modelless/status"
            )
            self._note_up(awaits)
            return False
        raise EnvironmentUnfitError(
            f"modelless did not become ready within {most_s:.0f} s; "
            f"GET {self.operators_url}/modelless/status says what could not be loaded"
        )

    # -- parts --------------------------------------------------------------------------------

    def _start(self) -> None:
        settings = self._settings
        shutil.rmtree(self._run / "logs", ignore_errors=True)
        if self._address is None:
            end_left_over(self._home, LEFT_OVER_S)
            self._ports.hold(settings.http.host, settings.http.port)
            short = close_to_others(self._run)
            sockets = empty_sockets(self._run)
            self._reaper = _start_reaper(self._run, empty_folder(self._run / RAY))
            self._on_stage("starting Ray")
            self._start_ray(sockets, short)
        else:
            sockets = None  # HAProxy and the gateways may be on different machines
            self._on_stage(f"joining the Ray cluster at {self._address}")
            check_reachable(self._address)
            self._join_ray(self._address)
        import ray

        from modelless.controller.live.cluster import deployment
        from modelless.controller.live.cluster.serve_app import GATEWAY_APP, pool_app_name

        count = settings.gateways.count or _cores()
        self._lacking = without_room(settings, count, nodes_of(ray.nodes()))
        if self._lacking and self._address is None:
            raise EnvironmentUnfitError(
                f"{'; '.join(self._lacking.values())} in the Ray of one node that 'modelless up' "
                "starts; ask for less, or join a cluster whose nodes have that, with --address"
            )
        # Noted first: what was begun can be upgraded, to be seen through.
        address: str = ray.get_runtime_context().gcs_address
        write_deployed(self._home, address, settings, is_own=self._address is None)
        self._on_stage("starting the control loop and Ray Serve")
        deployment.begin_control(self._home, settings)  # all this starts at the same time
        listens = settings.http.host, settings.http.port
        if self._keeper is not None:  # HAProxy listens for clients, Serve asks it on loopback
            listens = LOOPBACK, self._operators_port
        deployment.begin_serve(*listens)
        pools = ", ".join(pool.device_class for pool in settings.pools)
        self._on_stage(f"starting the gateways{pools and f' and the pools of {pools}'}")
        for section, no_room in self._lacking.items():
            waiting = "waiting" if section == "gateways" else "not waiting"
            self._on_stage(f"{no_room} now; {waiting} for nodes that have more")
        deployment.begin_serving(self._home, settings, sockets, count)
        deployment.start_control(self._home, settings)  # gateways wait for what it has loaded
        deployment.await_app(GATEWAY_APP, "the gateways")
        for number, pool in enumerate(settings.pools):
            if f"pools[{number}]" not in self._lacking:
                name = pool_app_name(pool.device_class)
                deployment.await_app(name, f"the pool of {pool.device_class}")
        self._note_up()

    def _note_up(self, awaits: str = "") -> None:
        ticks = began_ticks(os.getpid())
        operators_url = self.operators_url if self._operators_port else ""
        state = UpState(os.getpid(), self.url, self._began_at, ticks, awaits, operators_url)
        write_whole(self._run / "up.json", json.dumps(asdict(state)).encode(), mode=0o644)

    def _start_ray(self, sockets: Path, short: Path) -> None:
        launcher = files = None
        if self._settings.ingress == "haproxy":
            sockets = short / sockets.name
            launcher, binary = write_haproxy_launcher(self._run, self._hold_ports(), sockets)
            self._keeper = HAProxyKeeper(sockets, binary, self._ports, self._settings.http.port)
            self._keeper.start()
            files = short / empty_folder(self._run / "serve").name
        environment = ray_environment(token_path(self._run), haproxy=launcher, files=files)
        for name in ("RAY_SERVE_HAPROXY_STATS_PORT", "RAY_SERVE_HAPROXY_METRICS_PORT"):
            environment[name] = str(self._ports.hold(LOOPBACK))
        set_environment(environment | absolute_paths(os.environ))
        start_less()
        gateways = self._settings.gateways.count or _cores()
        # Ray starts a process ahead for each CPU: here all that come, and they start together.
        processes = gateways + sum(pool.workers for pool in self._settings.pools) + SERVE_PROCESSES
        self._connect(
            address="local",
            _temp_dir=str(short / RAY),
            num_cpus=max(cpus_for(self._settings, gateways), processes),
            include_dashboard=False,
            object_store_memory=128 * 2**20,
        )

    def _hold_ports(self) -> Rules:
        """Hold the operators' port; returns where HAProxy listens, besides on loopback for Serve.

        The clients' port is held already.
        """
        http = self._settings.http
        operators_host = http.operators_host if http.operators_port else LOOPBACK
        self._operators_port = self._ports.hold(operators_host, http.operators_port or 0)
        return Rules(
            f"{http.host}:{http.port}",
            f"{operators_host}:{self._operators_port}",
            http.max_connections_per_source,
            http.max_requests_per_s_per_source,
            str(Path(http.tls_certificate).resolve()) if http.tls_certificate else "",
        )

    def _join_ray(self, address: str) -> None:
        os.environ.update(joining_environment(address))
        self._connect(address=address)

    def _connect(self, **arguments: Any) -> None:
        import ray

        _check_unconnected()
        self._connects = True
        with current_folder(self._run):
            ray.init(
                log_to_driver=False, logging_level=logging.ERROR, namespace="modelless", **arguments
            )
        self._signals.install()  # Ray has put its own handler in place

    def _stop(self) -> None:
        with self._lock:
            self._take_all_down()

    def _take_all_down(self) -> None:
        self._signals.mute()  # a second Ctrl-C must not leave half of it behind
        if self._keeper is not None:
            self._keeper.stop()
        (self._run / "up.json").unlink(missing_ok=True)
        if self._connects:  # else it is somebody else's, if there is any
            ray_module: Any = sys.modules["ray"]
            if ray_module.is_initialized():
                joined = self._address is not None
                self._on_stage("draining the gateways")
                try:
                    from modelless.controller.live.cluster import deployment

                    # Workers that are left are killed with Ray, which breaks their recordings off.
                    are_left = not joined and self._settings.record.folder is None
                    deployment.take_away(() if are_left else self._settings.pools)
                except Exception as error:  # noqa: BLE001  (Ray itself goes down next, whatever)
                    logger.warning("the gateways did not drain cleanly: %s", error)
                self._ports.close()  # nobody accepts any more: clients need not wait
                if self._keeper is not None:
                    self._keeper.finish()
                self._on_stage("leaving Ray" if joined else "stopping Ray")
            ray_module.shutdown()
            self._connects = False
        if self._keeper is not None:
            self._keeper.close()
        if self._reaper is not None:
            self._reaper.communicate()  # closes the pipe: what is left of the cluster ends now
            os.environ.pop(reaper.MARK, None)
        remove_temporary(self._run)
        self._ports.close()
        self._signals.restore()


def _check_unconnected() -> None:
    ray_module: Any = sys.modules.get("ray")
    if ray_module is not None and ray_module.is_initialized():
        raise EnvironmentUnfitError(
            "this process is already connected to a Ray cluster; modelless connects to one itself: "
            "call ray.shutdown() first, or run 'modelless up' as a process of its own"
        )


def _start_reaper(run: Path, ray_folder: Path) -> subprocess.Popen[bytes]:
    """Mark this process and all that it starts from here on, and have the mark watched."""
    cluster_id = uuid.uuid4().hex
    note_mark(run, cluster_id)
    command = [sys.executable, "-I", "-S", reaper.__file__, cluster_id, str(ray_folder.resolve())]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    os.environ[reaper.MARK] = cluster_id
    return process


def _cores() -> int:
    return len(os.sched_getaffinity(0))
