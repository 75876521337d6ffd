"""``modelless up``, ``down`` and ``status``."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modelless.common.errors import EnvironmentUnfitError, InvalidInputError
from modelless.controller.cli.arguments import ConfigFile, Url
from modelless.controller.cli.screen import (
    Json,
    duration,
    emit,
    home_of,
    mebibytes,
    say,
    show_table,
)
from modelless.controller.cli.stopping import Stopped, StopSignals

if TYPE_CHECKING:
    from modelless.controller.config import Settings

UP_EPILOG = "Example: modelless up --port 8080 --detach"
DOWN_EPILOG = "Example: modelless down"
STATUS_EPILOG = "Example: modelless status --json"


def up(
    ctx: typer.Context,
    config: ConfigFile = None,
    host: Annotated[
        str | None, typer.Option("--host", help="Address to listen on; loopback by default.")
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port to listen on.")] = None,
    gateways: Annotated[
        int | None, typer.Option("--gateways", help="Gateways; default: one a CPU core.")
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            "--record", metavar="DIR", help="Record all decisions there, for 'modelless replay'."
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            help="A Ray cluster to join: auto, HOST:PORT or ray://HOST:PORT; default: one of its "
            "own on this machine.",
        ),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Go on in the background once it is ready.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Start serving on this machine, or on an existing Ray cluster.

    Stays in the foreground until Ctrl-C or 'modelless down', and then takes everything down; with
    --detach it goes on in the background.
    """
    home = home_of(ctx)
    settings = read_settings(config, host, port, gateways, record)
    check_new(settings)
    if detach:
        from modelless.controller.cli.detached import start_detached

        up, log = start_detached(home, _own_words(config, host, port, gateways, record, address))
        from modelless.controller.cli.server import get_json

        told: dict[str, Any] = {"url": up.url, "pid": up.pid, "ready": not up.awaits}
        ready = {} if up.awaits else get_json(up.url, "/v2/health/ready")
        told["not_served"] = ready.get("not_served", {})
        _announce(home, settings, told, as_json=as_json)
        say(f"process {up.pid} in the background; 'modelless down' ends it; log: {log}")
        return
    _serve(home, settings, address, as_json=as_json)


def down(ctx: typer.Context, as_json: Json = False) -> None:
    """Stop the running modelless, and wait until it has stopped."""
    from modelless.controller.live.cluster.cluster import read_state, take_down

    home = home_of(ctx)
    state = read_state(home)
    was_up = take_down(home)
    if as_json:
        emit({"was_up": was_up, "url": state.url if state else None})
    elif was_up and state is not None:
        typer.echo(f"{state.url} is down")
    else:
        typer.echo("nothing was up")


def status(
    ctx: typer.Context,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show gateways and workers, their loaded variants, memory and load.

    Also shows waiting queries, how good the predictions of latency were, and the outcomes of
    queries. Exit code 1 if nothing is up.
    """
    from modelless.controller.cli.server import find_url, get_json

    address = find_url(home_of(ctx), url)
    found = get_json(address, "/modelless/status")
    if as_json:
        emit({"url": address, **found})
    else:
        _show_status(address, found)


def read_settings(
    config: Path | None,
    host: str | None,
    port: int | None,
    gateways: int | None,
    record: Path | None = None,
) -> Settings:
    """The settings file with what the command line says put over it, all checked.

    Raises:
        InvalidInputError: an unknown key, or a value out of range.
    """
    from modelless.controller.config import load_settings, parse_settings

    document = load_settings(config).model_dump()
    folder = record or document["record"]["folder"]
    for section, key, value in (
        ("http", "host", host),
        ("http", "port", port),
        ("gateways", "count", gateways),
        ("record", "folder", str(Path(folder).resolve()) if folder else None),  # read elsewhere
    ):
        if value is not None:
            document[section][key] = value
    return parse_settings(document, "modelless up")


def check_new(settings: Settings) -> None:
    """Make the folder of a recording.

    Raises:
        InvalidInputError: there is one in it already.
        EnvironmentUnfitError: it cannot be written.
    """
    from modelless.controller.replay.tape import SUFFIX

    if settings.record.folder is None:
        return
    folder = Path(settings.record.folder)
    if any(folder.glob(f"*{SUFFIX}")):
        raise InvalidInputError.of("record.folder", str(folder), "a folder without a recording")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentUnfitError(f"record.folder: {error}; name another one") from None
    if not os.access(folder, os.W_OK):
        raise EnvironmentUnfitError(f"record.folder: {folder} cannot be written; name another one")


def _rate_devices(home: Path) -> None:
    """Measure what this machine's device classes do in a second, where that is not known yet."""
    from modelless.profiler.devices.device import default_device_classes
    from modelless.profiler.devices.device_records import DeviceRecords, describe_devices
    from modelless.profiler.devices.host import read_facts
    from modelless.variants.registry.registry import open_registry

    facts = read_facts()
    with closing(open_registry(home)) as registry:
        describe_devices(
            default_device_classes(facts), facts, DeviceRecords(registry.store), accept_noise=True
        )


def _serve(home: Path, settings: Settings, address: str | None, *, as_json: bool) -> None:
    """Bring it up, wait for a signal, take it down."""
    from modelless.controller.live.cluster.cluster import Cluster

    if settings.serve_unmeasured:
        _rate_devices(home)
    with StopSignals() as signals:

        def on_stage(stage: str) -> None:
            signals.arm()  # Ray puts a handler of its own in place as it starts
            say(f"{stage} ...")

        try:
            with Cluster(home, settings, on_stage, address) as cluster:
                signals.arm()
                say("loading variants ...")
                is_ready = cluster.wait_ready()
                told = {
                    "url": cluster.url,
                    "pid": os.getpid(),
                    "ready": is_ready,
                    "not_served": dict(cluster.not_served),
                }
                _announce(home, settings, told, as_json=as_json)
                signals.wait()
        except Stopped:
            pass
        except SystemExit as end:
            if end.code != signal.SIGTERM:  # Ray's own handler, for a moment in place of ours
                raise
        except Exception as error:
            if not _is_rays(error):
                raise
            raise EnvironmentUnfitError(
                f"Ray could not start or serve: {error}; its logs lie in "
                "session_latest/logs of its temporary folder. Usually the machine is short of "
                "memory, or too busy with something else: try again."
            ) from error
    say("down")


def _is_rays(error: Exception) -> bool:
    """Whether it is one of Ray's own, or the RuntimeError with which Serve gives a start up."""
    return type(error) is RuntimeError or type(error).__module__.partition(".")[0] == "ray"


def _announce(home: Path, settings: Settings, told: dict[str, Any], *, as_json: bool) -> None:
    """Say, as JSON or for people, that it is up, and where."""
    if as_json:
        emit(told)
        return
    from modelless.controller.cli.greeting import greeting

    for line in greeting(home, settings, told["url"], told["not_served"]):
        typer.echo(line)
    _say_not_served(told["not_served"])


def _say_not_served(not_served: Mapping[str, str]) -> None:
    for reason in not_served.values():
        say(f"not served: {reason}")


def _own_words(
    config: Path | None,
    host: str | None,
    port: int | None,
    gateways: int | None,
    record: Path | None,
    address: str | None,
) -> list[str]:
    words = ["up"]
    for option, value in (
        ("--config", config.resolve() if config is not None else None),
        ("--host", host),
        ("--port", port),
        ("--gateways", gateways),
        ("--record", record.resolve() if record is not None else None),
        ("--address", address),
    ):
        if value is not None:
            words += [option, str(value)]
    return words


def _show_status(url: str, found: Mapping[str, Any]) -> None:
    members = found.get("members", [])
    queued = sum(member["queued"] for member in members if member["role"] == "gateway")
    arrivals = sum(member["arrivals_per_s"] for member in members)
    up_for = f", up for {duration(found['up_s'])}" if "up_s" in found else ""
    typer.echo(f"{url}{up_for}: {arrivals:.1f} queries/s, {queued} waiting")
    show_table(
        ["member", "role", "device", "loaded", "loading", "MiB used / may", "process MiB",
         "waiting", "queries/s"],
        [
            (
                member["id"],
                member["role"] + (", starting" if member.get("is_starting") else ""),
                " to ".join(filter(None, [member["device_class"], member.get("resizing_to")])),
                str(len(member["loaded"])),
                str(len(member["loading"])),
                f"{mebibytes(member['memory_bytes'])} / {mebibytes(member['memory_budget_bytes'])}",
                mebibytes(member["resident_bytes"]),
                str(member["queued"]),
                f"{member['arrivals_per_s']:.1f}",
            )
            for member in members
        ],
        right=range(3, 9),
    )  # fmt: skip
    for pool in found.get("pools", []):
        typer.echo(
            f"pool {pool['pool']}: {pool['asked']} workers asked for, "
            f"of {pool['min_workers']} to {pool['max_workers']}"
        )
    served = found.get("served_by_variant", {})
    holders: dict[str, int] = dict.fromkeys(served, 0)
    for member in members:
        for variant in member["loaded"]:
            holders[variant] = holders.get(variant, 0) + 1
    if holders:
        show_table(
            ["variant", "loaded in", "queries served"],
            [(name, str(holders[name]), str(served.get(name, 0))) for name in sorted(holders)],
            right=[1, 2],
            whole=0,
        )
    predictions = found.get("predictions", [])
    if predictions:
        _show_predictions(predictions)
    outcomes = found.get("outcomes", {})
    if outcomes:
        typer.echo(
            "queries: " + ", ".join(f"{count} {name}" for name, count in sorted(outcomes.items()))
        )
    for member in members:
        for variant, reason in member.get("failed_loads", {}).items():
            say(f"{member['id']} could not load {variant}: {reason}")
        if member.get("quarantine"):
            say(f"{member['id']} is in quarantine: {member['quarantine']}")
    _say_not_served(found.get("not_served", {}))
    drifted = found.get("drifted", [])
    for row in drifted:
        say(
            f"{row['variant']} on {row['device_class']} takes {row['factor']:.2f} times what was "
            "measured"
        )
    if drifted:
        say("to measure just that again: modelless profile --drifted")


def _show_predictions(rows: Sequence[Mapping[str, Any]]) -> None:
    show_table(
        ["device", "outcomes", "within p90", "within p99", "median error", "ignored"],
        [
            (
                row["device_class"],
                str(row["outcomes"]),
                _percent(row["within_p90_percent"]),
                _percent(row["within_p99_percent"]),
                _percent(row["median_error_percent"]),
                str(row["ignored"]),
            )
            for row in rows
        ],
        title="predictions",
        caption="lately; the goals are 90 % within p90 and 99 % within p99; ignored is what cannot "
        "be true by the profile",
        right=range(1, 6),
    )


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} %"
