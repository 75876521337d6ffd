"""What each fault costs: queries without an answer, and seconds until 99 % are in time again.

Two gateways before a pool of two workers, Fashion-MNIST, an open-loop client in a process of its
own at about half of what they can serve, 300 ms deadlines. Each trial: a few quiet seconds, the
fault, and what follows. A node is killed in a Ray cluster of three, a gateway on its head and a
worker on each of the two others, under a fifth of the load: queries come in there by Ray Serve's
own proxies, not by HAProxy and a gateway's socket.

    modelless zoo add fashion-mnist; modelless profile --device-class cpu-1,cpu-2
    python benchmarks/serving/recovery.py --home HOME --times 3
    python benchmarks/serving/recovery.py --home HOME --faults worker-kill,node-kill --times 10

Every query is in exactly one column:

- in time, late: answered, before its deadline or after;
- refused: an HTTP error, by status;
- lost: no answer. Broken: the connection broke under the query; unreached: nobody accepted a
  connection; timed out: no reply until 12 s after the load's end.

And of each fault, median (worst) of the trials:

- 99 % again, s: from the fault to the first of three seconds in a row with 99 % in time, counted
  from the first second that was not so; 0: there was none. inf: not while it was looked;
- below, s: how many seconds were below 99 %;
- whole, s: from the fault until it is over, every gateway and worker is there again and holds
  something, none is in quarantine, and as many processes run of each kind as before.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from open_loop import GRACE_S, OpenLoop, is_in_time, outcomes
from under_test import SITES, WHOLE_S, Seen, UnderTest, running, running_on_nodes

from modelless.controller.demo.query_log import Row

IN_A_ROW = 3
GOOD_SHARE = 0.99
LOOK_S = 0.1
NODES_SHARE = 0.2
START_S = 40.0
"""What it takes to start a cluster and to take it down, about."""

Trial = dict[str, Any]


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
    """A new, empty one that somebody makes meanwhile must not win, though they may do so again."""
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


def main() -> None:
    arguments = read_arguments()
    names = arguments.faults.split(",")
    unknown = sorted(set(names) - FAULTS.keys())
    if unknown:
        raise SystemExit(f"--faults: {', '.join(unknown)}; allowed: {', '.join(FAULTS)}")
    about_s = takes_s(names, arguments)
    print(f"{len(names)} faults, {arguments.times} times: about {about_s / 60.0:.0f} minutes, "
          f"a trial that is not whole {WHOLE_S:.0f} s after its load ends it")  # fmt: skip
    print_head()
    kept: dict[str, list[Trial]] = {}
    for on_nodes, up in ((False, running), (True, running_on_nodes)):
        chosen = [name for name in names if FAULTS[name].on_nodes == on_nodes]
        if chosen:
            run_all(up(arguments.home.resolve(), arguments.port), chosen, arguments, kept)


def read_arguments() -> argparse.Namespace:
    described = "\n".join(f"  {name:22} {fault.about}" for name, fault in FAULTS.items())
    everything = argparse.Namespace(times=1, before_s=4.0)
    once_min = takes_s(list(FAULTS), everything) / 60.0
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"faults:\n{described}\n\nAll of them once take about {once_min:.0f} minutes.",
    )
    add = parser.add_argument
    add("--home", type=Path, required=True, help="with fashion-mnist, profiled")
    add("--faults", default=",".join(FAULTS), help="some of those below, with commas; default: all")
    add("--times", type=int, default=3, help="trials of each (%(default)s)")
    add("--per-s", type=float, default=150.0, help="queries a second (%(default)s)")
    add("--latency-ms", type=float, default=300.0, help="deadline (%(default)s)")
    add("--before-s", type=float, default=4.0, help="quiet seconds before a fault (%(default)s)")
    add("--port", type=int, default=8150, help="where clients go (%(default)s)")
    add("--json", type=Path, help="write the table's figures and every second of every trial here")
    return parser.parse_args()


def takes_s(names: list[str], arguments: argparse.Namespace) -> float:
    trials_s: float = sum(
        arguments.before_s + FAULTS[name].lasts_s + FAULTS[name].after_s + 3.0 for name in names
    )
    clusters = len({FAULTS[name].on_nodes for name in names})
    return int(arguments.times) * trials_s + clusters * START_S


def run_all(
    up: AbstractContextManager[UnderTest],
    names: list[str],
    arguments: argparse.Namespace,
    kept: dict[str, list[Trial]],
) -> None:
    with up as cluster:
        for name in names:
            kept[name] = [
                trial(cluster, FAULTS[name], seed, arguments) for seed in range(arguments.times)
            ]
            print_row(name, figures_of(kept[name]))
            if arguments.json:
                document = {
                    name: {"about": FAULTS[name].about, **figures_of(trials), "trials": trials}
                    for name, trials in kept.items()
                }
                text = json.dumps(document, indent=1).replace("Infinity", "null")
                arguments.json.write_text(text)


def trial(cluster: UnderTest, fault: Fault, seed: int, arguments: argparse.Namespace) -> Trial:
    """One load with one fault in it; what came of its queries."""
    cluster.wait_whole()
    before = cluster.seen()
    length_s = arguments.before_s + fault.lasts_s + fault.after_s
    per_s = arguments.per_s * (NODES_SHARE if fault.on_nodes else 1.0)
    with tempfile.TemporaryDirectory() as folder:
        steps = [(length_s, per_s)]
        load = OpenLoop(cluster.url, Path(folder), steps, arguments.latency_ms, seed)
        load.wait_until(arguments.before_s)
        fault_s = load.now_s()
        end_fault = fault.inject(cluster)
        try:
            most_s = length_s + GRACE_S + WHOLE_S
            while load.now_s() < fault_s + fault.lasts_s or not is_mended(cluster, fault, before):
                if load.now_s() > most_s:
                    raise SystemExit(f"not whole after {most_s:.0f} s: {cluster.status()}")
                time.sleep(LOOK_S)
            whole_s = load.now_s() - fault_s
            rows = load.finish()
        finally:
            if end_fault is not None:
                end_fault()
    shares = by_second([row for row in rows if row.due_s >= fault_s], fault_s, arguments.latency_ms)
    return {
        **outcomes(rows, arguments.latency_ms),
        "in_time_before": by_second(
            [row for row in rows if row.due_s < fault_s], 0.0, arguments.latency_ms
        ),
        "in_time_after": shares,
        "lost_at_s": [round(row.due_s - fault_s, 2) for row in rows if row.lost],
        "again_s": recovered_s(shares),
        "below_s": sum(share < GOOD_SHARE for share in shares),
        "whole_s": round(whole_s, 1),
    }


def is_mended(cluster: UnderTest, fault: Fault, before: Any) -> bool:
    try:
        return cluster.is_whole(before) and fault.is_mended(cluster, before)
    except (OSError, KeyError, ValueError):
        return False


def by_second(rows: list[Row], from_s: float, latency_ms: float) -> list[float]:
    """The share in time of the queries due in each second; a second without any is left out."""
    if not rows:
        return []
    shares: list[list[bool]] = [[] for _ in range(int(max(r.due_s for r in rows) - from_s) + 1)]
    for row in rows:
        shares[int(row.due_s - from_s)].append(is_in_time(row, latency_ms))
    return [sum(each) / len(each) for each in shares if each]


def recovered_s(shares: list[float]) -> float:
    """Seconds until the first of ``IN_A_ROW`` good ones after the first bad one; see the module."""
    good = [share >= GOOD_SHARE for share in shares]
    if all(good):
        return 0.0
    for second in range(good.index(False) + 1, len(good) - IN_A_ROW + 1):
        if all(good[second : second + IN_A_ROW]):
            return float(second)
    return math.inf


def figures_of(trials: list[Trial]) -> dict[str, Any]:
    """Of one fault's trials: sums of the queries, median and worst of the seconds."""
    figures: dict[str, Any] = {
        name: sum(trial[name] for trial in trials) for name in ("sent", "in_time", "late")
    }
    for name in ("refused", "lost"):
        figures[name] = dict(sum((Counter(trial[name]) for trial in trials), Counter[str]()))
    for name in ("again_s", "below_s", "whole_s"):
        values = [trial[name] for trial in trials]
        figures[name] = {"median": statistics.median(values), "worst": max(values)}
    return figures


def print_head() -> None:
    print(
        f"{'fault':22}{'sent':>7}{'in time':>9}{'late':>6}{'refused':>9}{'lost':>6}"
        f"{'99 % again, s':>15}{'below, s':>11}{'whole, s':>15}  refused, lost",
        flush=True,
    )


def print_row(name: str, figures: dict[str, Any]) -> None:
    def seconds(key: str, digits: int = 0) -> str:
        return f"{figures[key]['median']:.{digits}f} ({figures[key]['worst']:.{digits}f})"

    kinds = [
        f"{count} {kind}" for key in ("refused", "lost") for kind, count in figures[key].items()
    ]
    print(
        f"{name:22}{figures['sent']:>7}{figures['in_time']:>9}{figures['late']:>6}"
        f"{sum(figures['refused'].values()):>9}{sum(figures['lost'].values()):>6}"
        f"{seconds('again_s'):>15}{seconds('below_s'):>11}{seconds('whole_s', 1):>15}"
        f"  {', '.join(kinds)}",
        flush=True,
    )


if __name__ == "__main__":
    main()
