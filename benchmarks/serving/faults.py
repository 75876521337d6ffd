"""Faults that ``recovery.py`` and ``soak.py`` inject: what can die, hang, be slow, fail or go."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from under_test import SITES, WHOLE_S, Seen, UnderTest

HANG_S = 10.0
SLOW_S = 10.0
SLOW_PERIOD_S = 0.1
SLOW_SHARE = 0.8
"""Of each period a slowed worker stands still for this share: it takes five times as long."""

STORE_GONE_S = 60.0
NODE_GONE_S = 10.0
LOADS_FAIL_S = 20.0
STALL_S = 30.0
"""Loads that begin so long after the fault never end."""

Ender = Callable[[], None]
Mended = Callable[[UnderTest, Seen], bool]


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        inject: makes it happen; returns what ends it, if it does not end by itself.
        lasts_s: how long it lasts if nobody ends it; 0: it is over at once.
        after_s: how much longer it takes, at most, until all is as before: so long is looked.
        is_mended: whether what it broke has been replaced, given who was there before.
        on_nodes: whether it needs a Ray cluster of several nodes.
        is_outage: whether nothing can be answered meanwhile: all of modelless goes.
    """

    about: str
    inject: Callable[[UnderTest], Ender | None]
    lasts_s: float = 0.0
    after_s: float = 20.0
    is_mended: Mended = lambda _, __: True
    on_nodes: bool = False
    is_outage: bool = False


# -- what it takes to be mended ------------------------------------------------------------------


def _others_are_there(cluster: UnderTest, before: Seen) -> bool:
    """The status tells of one that died for some seconds more, and then of another."""
    return cluster.seen().members != before.members


def _control_is_new(cluster: UnderTest, before: Seen) -> bool:
    """While there is none, gateways repeat what the last one said."""
    return float(cluster.status().get("began_s", 0.0)) >= before.at_s


def _serve_has_the_port(cluster: UnderTest, before: Seen) -> bool:
    """A HAProxy that Serve started since is the only one."""
    now = cluster.seen()
    return now.processes["haproxy"] == len(now.proxies) == len(now.proxies - before.proxies) == 1


# -- kills and hangs -----------------------------------------------------------------------------


def _kill(role: str) -> Callable[[UnderTest], None]:
    def kill(cluster: UnderTest) -> None:
        os.kill(cluster.any_of(role), signal.SIGKILL)

    return kill


def _hang(role: str) -> Callable[[UnderTest], Ender]:
    def hang(cluster: UnderTest) -> Ender:
        victim = cluster.any_of(role)
        os.kill(victim, signal.SIGSTOP)
        return _after(HANG_S, lambda: _signal(victim, signal.SIGCONT))

    return hang


def _slow(cluster: UnderTest) -> Ender:
    victim = cluster.any_of("worker")
    ended = threading.Event()

    def stutter() -> None:
        end_s = time.monotonic() + SLOW_S
        while time.monotonic() < end_s and not ended.is_set():
            _signal(victim, signal.SIGSTOP)
            time.sleep(SLOW_PERIOD_S * SLOW_SHARE)
            _signal(victim, signal.SIGCONT)
            time.sleep(SLOW_PERIOD_S * (1.0 - SLOW_SHARE))

    thread = threading.Thread(target=stutter, daemon=True)
    thread.start()

    def end() -> None:
        ended.set()
        thread.join()

    return end


def _kill_node(cluster: UnderTest) -> Ender:
    nodes, site = cluster.nodes, cluster.chance.choice(SITES)
    assert nodes is not None
    nodes.kill(site)
    return _after(NODE_GONE_S, lambda: nodes.join(site))


# -- loads and the store -------------------------------------------------------------------------


def _loads_fail(cluster: UnderTest) -> Ender:
    """A worker dies, and what the one in its place is to load cannot be read."""
    victim = cluster.any_of("worker")
    back = _moved_away([cluster.home / "artifacts"])
    os.kill(victim, signal.SIGKILL)
    return _after(LOADS_FAIL_S, back)


def _loads_hang(cluster: UnderTest) -> Ender:
    """A worker dies, and the first load of the one in its place never ends."""
    victim, file = cluster.any_of("worker"), cluster.stall_file()
    file.touch()
    os.kill(victim, signal.SIGKILL)
    return _after(STALL_S, lambda: file.unlink(missing_ok=True))


def _store_gone(cluster: UnderTest) -> Ender:
    return _after(
        STORE_GONE_S, _moved_away([cluster.home / f"store.db{end}" for end in ("", "-wal", "-shm")])
    )


def _moved_away(paths: list[Path]) -> Ender:
    """Move files or folders away; returns what moves them back."""
    moved = [(path, path.with_name(f"away-{path.name}")) for path in paths if path.exists()]
    for path, away in moved:
        path.rename(away)

    def back() -> None:
        for path, away in moved:
            _put_back(path, away)

    return back


def _put_back(path: Path, away: Path) -> None:
    """Whoever has made a new, empty one meanwhile must not win, though they may do so again."""
    newer = path.with_name(f"new-{path.name}")
    while away.exists():
        with contextlib.suppress(OSError):
            if path.exists():
                path.rename(newer)
            away.rename(path)
        shutil.rmtree(newer, ignore_errors=True)
        newer.unlink(missing_ok=True)


# -- all of it -----------------------------------------------------------------------------------


def _crash(cluster: UnderTest) -> None:
    cluster.process.kill()
    cluster.process.wait()
    end_s = time.monotonic() + 30.0
    while cluster.processes() and time.monotonic() < end_s:
        time.sleep(0.05)
    cluster.start()


def _restart(cluster: UnderTest) -> None:
    cluster.stop()
    cluster.start()


def _upgrade(cluster: UnderTest) -> None:
    command = [*cluster.command[: cluster.command.index("up")], "upgrade", "--restart"]
    done = subprocess.run(
        command,
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=WHOLE_S,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(done.stderr)


def _after(delay_s: float, act: Ender) -> Ender:
    """Do it then, or when the returned function is called, whichever comes first; but once."""
    asked = threading.Event()

    def wait() -> None:
        asked.wait(delay_s)
        act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()

    def now() -> None:
        asked.set()
        thread.join()

    return now


def _signal(process_id: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process_id, number)


FAULTS: dict[str, Fault] = {
    "worker-kill": Fault(
        "a worker is killed, with queries in it", _kill("worker"), is_mended=_others_are_there
    ),
    "gateway-kill": Fault(
        "a gateway is killed, with queries in it", _kill("gateway"), is_mended=_others_are_there
    ),
    "haproxy-kill": Fault("HAProxy is killed", _kill("haproxy"), is_mended=_serve_has_the_port),
    "proxy-manager-kill": Fault(
        "Serve's manager of HAProxy is killed",
        _kill("proxy-manager"),
        is_mended=_serve_has_the_port,
    ),
    "control-kill": Fault(
        "the control loop is killed", _kill("control"), is_mended=_control_is_new
    ),
    "serve-controller-kill": Fault("Serve's controller is killed", _kill("serve-controller")),
    "worker-hang": Fault(
        f"a worker stands still for {HANG_S:g} s (SIGSTOP)", _hang("worker"), HANG_S
    ),
    "gateway-hang": Fault(
        f"a gateway stands still for {HANG_S:g} s (SIGSTOP)", _hang("gateway"), HANG_S
    ),
    "worker-slow": Fault(
        f"a worker takes five times as long for {SLOW_S:g} s", _slow, SLOW_S, after_s=25.0
    ),
    "loads-fail": Fault(
        f"a worker is killed, and artifacts cannot be read for {LOADS_FAIL_S:g} s",
        _loads_fail,
        LOADS_FAIL_S,
        after_s=35.0,
        is_mended=_others_are_there,
    ),
    "load-hangs": Fault(
        "a worker is killed, and the first load of the one in its place never ends",
        _loads_hang,
        STALL_S,
        after_s=100.0,
        is_mended=_others_are_there,
    ),
    "store-gone": Fault(
        f"the store's files are away for {STORE_GONE_S:g} s",
        _store_gone,
        STORE_GONE_S,
        after_s=10.0,
    ),
    "node-kill": Fault(
        f"a whole node dies, its daemons and workers; {NODE_GONE_S:g} s later another joins",
        _kill_node,
        NODE_GONE_S,
        after_s=30.0,
        is_mended=_others_are_there,
        on_nodes=True,
    ),
    "upgrade": Fault(
        "'modelless upgrade --restart' replaces every process, one after the other",
        _upgrade,
        after_s=90.0,
        is_mended=_others_are_there,
    ),
    "restart": Fault(
        "'modelless down', and 'modelless up' when it has ended",
        _restart,
        after_s=60.0,
        is_mended=_others_are_there,
        is_outage=True,
    ),
    "crash": Fault(
        "'modelless up' is killed, and everything with it; 'modelless up' again",
        _crash,
        after_s=60.0,
        is_mended=_others_are_there,
        is_outage=True,
    ),
}
