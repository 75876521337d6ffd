"""``modelless up``, ``down``, ``upgrade`` and ``demo``."""

from __future__ import annotations

import json
import math
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer import Option

from modelless.common.errors import InvalidInputError
from modelless.controller.cli.arguments import ConfigFile
from modelless.controller.cli.screen import Json, duration, emit, say, show_progress
from modelless.controller.cli.status import say_not_served
from modelless.variants.vocabulary import Task

if TYPE_CHECKING:
    from modelless.controller.config import Settings
    from modelless.controller.usecases.cluster import Up


_STOP: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MOST_ELEMENTS: Final = 64
"""Of the tensors of a request that is shown on one line."""

_FREE_AXIS: Final = 2
"""Length of an axis of any length in such a request."""


def up(
    ctx: typer.Context,
    config: ConfigFile = None,
    host: Annotated[str | None, Option(help="Address to listen on; loopback by default.")] = None,
    port: Annotated[int | None, Option(help="Port to listen on.")] = None,
    gateways: Annotated[int | None, Option(help="Gateways; default: one a CPU core.")] = None,
    record: Annotated[
        Path | None,
        Option(metavar="DIR", help="Record all decisions there, for 'modelless replay'."),
    ] = None,
    address: Annotated[
        str | None,
        Option(
            help="A Ray cluster to join: auto, HOST:PORT or ray://HOST:PORT; default: one of its "
            "own on this machine."
        ),
    ] = None,
    insecure: Annotated[
        bool,
        Option("--insecure", help="Listen on an address that others reach, even without keys."),
    ] = False,
    supervise: Annotated[
        bool,
        Option("--supervise", help="Start everything anew when a part dies that Ray cannot mend."),
    ] = False,
    detach: Annotated[
        bool, Option("--detach", "-d", help="Go on in the background once it is ready.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Start serving on this machine, or on an existing Ray cluster.

    Stays in the foreground until Ctrl-C or 'modelless down', and then takes everything down; with
    --detach it goes on in the background.

    Example: modelless up --port 8080 --detach
    """
    from modelless.controller.usecases import cluster

    home = ctx.obj
    options: dict[str, Any] = {
        "config": config, "host": host, "port": port, "gateways": gateways, "record": record,
        "insecure": insecure,
    }  # fmt: skip
    settings = cluster.read_settings(**options)
    if supervise and settings.record.folder is not None:
        raise InvalidInputError.of(
            "record.folder", settings.record.folder,
            "with --supervise: none, for a rebuilt cluster cannot go on with a recording",
        )  # fmt: skip
    if supervise and address is not None:
        raise InvalidInputError.of(
            "--address", address, "with --supervise: none, for it rebuilds a Ray of its own only"
        )
    if detach:
        with show_progress() as progress:
            running = cluster.up(
                **options, address=address, supervise=supervise, home=home, on_progress=progress
            )
        _announce(home, settings, running, as_json=as_json)
        say(
            f"process {running.pid} in the background; 'modelless down' ends it; log: {running.log}"
        )
        return
    if supervise:
        options["json"] = as_json
        raise typer.Exit(cluster.supervise(settings, options, say, home=home))
    with StopSignals() as signals:

        def on_stage(stage: str) -> None:
            signals.arm()  # Ray puts a handler of its own in place as it starts
            say(f"{stage} ...")

        def on_up(running: Up) -> None:
            _announce(home, settings, running, as_json=as_json)

        try:
            cluster.serve(settings, address, on_stage, on_up, signals.wait, home=home)
        except Stopped:
            pass
        except SystemExit as end:
            if end.code != signal.SIGTERM:  # Ray's own handler, for a moment in place of ours
                raise
    say("down")


def down(ctx: typer.Context, as_json: Json = False) -> None:
    """Stop the running modelless, and wait until it has stopped.

    Example: modelless down
    """
    from modelless.controller.usecases.taking_down import down as take_down

    found = take_down(home=ctx.obj)
    if as_json:
        emit(asdict(found))
    else:
        typer.echo(f"{found.url} is down" if found.was_up and found.url else "nothing was up")


def upgrade(
    ctx: typer.Context,
    config: ConfigFile = None,
    restart: Annotated[
        bool, Option("--restart", help="Replace processes that run this release already, too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Move the running cluster to the installed release while it serves.

    Replaces the control loop, the workers and the gateways one after the other. Each new process
    loads what the old one holds before the old one is drained; no query is lost. --config changes
    the settings too, except those that HAProxy and Ray Serve were started with. Processes that run
    the release already are left alone, so the command may be interrupted and run again.

    Examples: modelless upgrade; modelless upgrade --config settings.yaml
    """
    from modelless.controller.usecases.cluster import upgrade_cluster

    with show_progress() as progress:
        done = upgrade_cluster(config=config, restart=restart, home=ctx.obj, on_progress=progress)
    if as_json:
        emit(asdict(done))
        return
    if not done.replaced:
        typer.echo(f"{done.url} runs {done.release} already")
        return
    before = ", ".join(name for name in done.before if name != done.release)
    typer.echo(
        f"{done.url} runs {done.release}{f', before {before}' if before else ''}: "
        f"{done.replaced} gateways and workers replaced in {duration(done.took_s)}"
    )


def demo(
    ctx: typer.Context,
    keep: Annotated[
        bool, Option("--keep", help="Stay up afterwards, and say how to ask it more.")
    ] = False,
    report: Annotated[Path, Option(metavar="DIR", help="Where the report goes.")] = Path(
        "demo-report"
    ),
    seconds: Annotated[float, Option(help="How long the burst of queries lasts.")] = 120.0,
    port: Annotated[int, Option(help="Port to listen on; another one if it is taken.")] = 8080,
) -> None:
    """Add, profile and serve real photos under many limits and load, and write a report.

    The models are the zoo's EfficientNet-Lite. Everything is taken down again, unless you give
    --keep.

    Example: modelless demo --seconds 60 --report demo-report
    """
    if not 1.0 <= seconds <= 3600.0:
        raise InvalidInputError.of("seconds", seconds, "1 to 3600")
    if not 1 <= port <= 65_535:
        raise InvalidInputError.of("port", port, "1 to 65535")
    from modelless.controller.demo.run import run_demo

    run_demo(ctx.obj, keep=keep, report_dir=report, seconds=seconds, port=port)


class Stopped(BaseException):
    """A signal asks to stop. It is not an error, so ``except Exception`` does not catch it."""


class StopSignals:
    """Turns the first of the signals into an exception in the main thread, and ignores the rest.

    A second Ctrl-C while everything is being taken down would leave half of it behind.
    SIGINT raises KeyboardInterrupt, SIGTERM and SIGHUP raise Stopped. What was ignored before stays
    so, as ``nohup`` requires. Use as a context manager, in the main thread.
    """

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        self._told: BaseException | None = None

    def __enter__(self) -> StopSignals:
        self._before = {number: signal.getsignal(number) for number in _STOP}
        self.arm()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def arm(self) -> None:
        """Put the handlers in place, again if a library has put its own there.

        Raises again what was raised and is not being handled: Python itself drops what is raised
        in a callback, as while it imports, and so do libraries.
        """
        if self._told is not None:
            if sys.exception() is None:
                raise self._told
        else:
            for number, before in self._before.items():
                if before is not signal.SIG_IGN:
                    signal.signal(number, self._on_signal)

    def wait(self) -> None:
        """Wait for a signal. Never returns: it raises."""
        self.arm()
        threading.Event().wait()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._told = KeyboardInterrupt() if number == signal.SIGINT else Stopped()
        for each in _STOP:
            signal.signal(each, signal.SIG_IGN)
        raise self._told


def curl_line(url: str, task: Task) -> str:
    """A ``curl`` command that sends a query; for a large input, one that reads the signature."""
    where = f"{url}/v2/models/{task.name}"
    request = _tiny_request(task)
    if request is None:
        return f"curl -s {where}"
    return f"curl -s {where}/infer -d '{json.dumps(request, separators=(',', ':'))}'"


def _announce(home: Path, settings: Settings, running: Up, *, as_json: bool) -> None:
    """Say, as JSON or for people, that the server is up, with a command for each task."""
    if as_json:
        told = asdict(running)
        emit({name: told[name] for name in ("url", "pid", "ready", "not_served")})
        return
    from modelless.controller.usecases.cluster import served_tasks

    tasks = served_tasks(settings, running, home=home)
    tasks.sort(key=lambda task: _tiny_request(task) is None)
    typer.echo(f"ready: {running.url}")
    for task in tasks:
        typer.echo(curl_line(running.url, task))
    if tasks:
        from modelless.controller.usecases.inferring import file_for

        file = file_for(tasks[0].inputs)
        typer.echo(f"modelless infer {file} --task {tasks[0].name} --latency-ms 1000")
    say_not_served(running.not_served)


def _tiny_request(task: Task) -> Mapping[str, Any] | None:
    inputs = []
    for spec in task.inputs:
        shape = [1, *(_FREE_AXIS if size == -1 else size for size in spec.shape[1:])]
        count = math.prod(shape)
        if count > _MOST_ELEMENTS or spec.datatype == "BOOL":
            return None
        data = ["0" if spec.datatype == "BYTES" else 0] * count
        inputs.append({"name": spec.name, "shape": shape, "datatype": spec.datatype, "data": data})
    wanted = [
        {"name": spec.name, "parameters": {"classification": 3}}
        for spec in task.outputs
        if len(spec.shape) == 2
    ]
    request: dict[str, Any] = {"inputs": inputs, "parameters": {"latency_ms": 1000}}
    return {**request, "outputs": wanted} if wanted else request
