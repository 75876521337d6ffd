"""``modelless upgrade``: what runs is replaced by what is installed, one process after the other.

A process of the new release joins the cluster and does this. It replaces the control loop first,
which hands the variants of each old process to its successor (``control/succession``). Then it
replaces the pools' workers and the gateways by Ray Serve's rolling update, with one replica more
than usual. An old gateway answers what it has taken in. Ray, Ray Serve, HAProxy and the supervisor
stay as they are.

Each step is a wish that Serve or Ray keeps, and what is done already is not done again: interrupted
at any time, the cluster serves, and another run goes on.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelless.common.errors import EnvironmentUnfitError, InvalidInputError, ModellessError
from modelless.controller.config import (
    HttpSettings,
    PoolSettings,
    Settings,
    changed_by,
    parse_settings,
)
from modelless.controller.live.cluster.cluster import UpState, read_state
from modelless.controller.live.cluster.deployed import (
    AUTH_MODE,
    Deployed,
    read_deployed,
    write_deployed,
)
from modelless.controller.live.cluster.node_room import nodes_of, without_room
from modelless.controller.live.cluster.release import PROTOCOL, ProtocolError, release_of
from modelless.controller.live.cluster.run_folder import current_folder, token_path
from modelless.controller.live.settings_revisions import settings_in_force

# Which settings a cluster that serves goes on with, and whether there is room for one more.

_FIXED = (
    *(("http", key) for key in HttpSettings.model_fields if changed_by(f"http.{key}") == "up"),
    ("", "ingress"),
)
"""Sections and keys of what HAProxy and Ray Serve were started with."""


def settings_to_be(running: Mapping[str, Any], asked: Settings | None) -> Settings:
    """The settings after an upgrade.

    What cannot change while it serves stays as it is, where ``asked`` does not say otherwise.

    Args:
        running: the document of those it runs with.
        asked: new ones; None to keep them.

    Raises:
        InvalidInputError: this release does not understand the running ones, or what is asked for
            takes a new start.
    """
    now = parse_settings(running, "the running settings (a file for --config may replace them)")
    if asked is None:
        return now
    document = asked.model_dump(mode="json")
    for section, key in _FIXED:
        name = f"{section}.{key}".strip(".")
        before, after = (getattr(each, section) if section else each for each in (now, asked))
        value = getattr(before, key)
        if key in after.model_fields_set and getattr(after, key) != value:
            raise InvalidInputError.of(name, getattr(after, key), f"{value!r}, as now", _ANEW)
        (document[section] if section else document)[key] = value
    classes = {pool.device_class for pool in now.pools}
    if {pool.device_class for pool in asked.pools} != classes:
        told = ", ".join(pool.device_class for pool in asked.pools) or "none"
        allowed = f"pools of the same device classes as now ({', '.join(sorted(classes)) or '-'})"
        raise InvalidInputError.of("pools", told, allowed, _ANEW)
    return parse_settings(document, "modelless upgrade")


_ANEW = "What else takes a new start: 'modelless down', then 'modelless up'."


def has_resources(pool: PoolSettings, available: Mapping[str, float]) -> bool:
    """Whether one worker more finds what the pool's workers ask of Ray, such as a GPU."""
    return all(available.get(name, 0.0) >= amount for name, amount in pool.resources.items())


def available_bytes(root: Path = Path("/")) -> float:
    """Memory that a new process may take on this machine; infinite where nobody says."""
    try:
        text = (root / "proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return float("inf")
    found = re.search(r"^MemAvailable:\s*(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024.0 if found else float("inf")


OnStage = Callable[[str], None]
GATHER_S = 15.0
"""How long a new control loop may take to have heard from everybody."""


@dataclass(frozen=True, slots=True)
class Upgraded:
    """What an upgrade did.

    Attributes:
        before: what ran before; several, if an upgrade was interrupted.
        took_s: seconds.
    """

    url: str
    release: str
    before: tuple[str, ...]
    replaced: int
    took_s: float


def find_running(home: Path) -> tuple[UpState, Deployed]:
    """Returns the cluster that runs in this home.

    Raises:
        ModellessError: nothing is.
        EnvironmentUnfitError: it cannot be upgraded from here.
    """
    state = read_state(home)
    if state is None:
        raise ModellessError("nothing is up: start it with 'modelless up'")
    deployed = read_deployed(home)
    if deployed is None:
        raise ProtocolError.between(0)
    if deployed.python != sys.prefix:
        raise EnvironmentUnfitError(
            f"the cluster runs the modelless of {deployed.python}, this one is of {sys.prefix}: "
            f"install the new release there, and run {deployed.python}/bin/modelless upgrade"
        )
    return state, deployed


def upgrade(
    home: Path, asked: Settings | None, on_stage: OnStage, *, restart: bool = False
) -> Upgraded:
    """Replace what does not run the release on disk with the settings to be.

    Args:
        asked: new settings; None to keep them.
        on_stage: told what is being done, for people.

    Raises:
        ModellessError: nothing is up.
        InvalidInputError: settings that cannot change while it serves.
        EnvironmentUnfitError: it cannot be done, or new processes do not start: what is not
            replaced serves on.
    """
    began_s = time.monotonic()
    state, deployed = find_running(home)
    settings = settings_to_be(deployed.settings, asked)
    from modelless.controller.live.knowledge import read_knowledge

    settings_in_force(home, settings)  # to fail here, and not in every new process
    read_knowledge(home, settings)
    release = release_of(settings)
    with _joined(deployed, home, settings):
        from modelless.controller.live.cluster import deployment

        status = deployment.control_status()
        if status and status.get("protocol", 0) != PROTOCOL:
            raise ProtocolError.between(int(status.get("protocol", 0)))
        ran = _releases(status)
        write_deployed(home, deployed.address, settings, is_own=deployed.is_own)
        replaced = _Steps(home, settings, deployed, on_stage).take(restart=restart)
        _check(release)
    took_s = time.monotonic() - began_s
    return Upgraded(state.url, release, ran, replaced, round(took_s, 1))


class _Steps:
    """One upgrade's steps, each of which leaves out what is done."""

    def __init__(
        self, home: Path, settings: Settings, deployed: Deployed, on_stage: OnStage
    ) -> None:
        self._home = home.resolve()
        self._settings = settings
        self._is_own = deployed.is_own
        self._on_stage = on_stage
        self._release = release_of(settings)

    def take(self, *, restart: bool) -> int:
        """Take them all; returns how many gateways and workers were replaced."""
        import ray

        from modelless.controller.live.cluster import serve_app
        from modelless.controller.live.cluster.serve_rollout import ServeRollout

        rollouts = [
            ServeRollout(serve_app.pool_app_name(pool.device_class), serve_app.POOL_DEPLOYMENT)
            for pool in self._settings.pools
        ]
        as_scaled = [
            pool.model_copy(update={"workers": rollout.target()})
            for pool, rollout in zip(self._settings.pools, rollouts, strict=True)
        ]
        scaled = self._settings.model_copy(update={"pools": tuple(as_scaled)})
        lacking = without_room(scaled, 0, nodes_of(ray.nodes()))
        pools = [
            (pool, rollout, f"pools[{number}]" not in lacking)  # else not all of it can be there
            for number, (pool, rollout) in enumerate(
                zip(self._settings.pools, rollouts, strict=True)
            )
        ]
        gateways = ServeRollout(serve_app.GATEWAY_APP, "GatewayReplica")
        for rollout in (*(each for _, each, is_whole in pools if is_whole), gateways):
            rollout.settle()  # one that was begun and not seen through
        self._lead(restart=restart)
        replaced = 0
        for pool, rollout, is_whole in pools:
            before = rollout.replicas()
            if restart or self._is_behind(before) or not before:
                replaced += self._replace_pool(pool, rollout, before, is_whole=is_whole)
        before = gateways.replicas()
        if restart or self._is_behind(before):
            replaced += self._replace_gateways(gateways, before)
        return replaced

    def _lead(self, *, restart: bool) -> None:
        """Have a control loop of this release that knows everybody."""
        from modelless.controller.live.cluster import deployment

        status = deployment.control_status()
        if restart or status.get("release") != self._release:
            self._on_stage("replacing the control loop")
            members = {member["id"] for member in status.get("members", ())}
            deployment.end_control()
            deployment.start_control(self._home, self._settings)
            end_s = time.monotonic() + GATHER_S
            while time.monotonic() < end_s:
                now = deployment.control_status().get("members", ())
                if members <= {member["id"] for member in now}:
                    return
                time.sleep(0.2)

    def _is_behind(self, replicas: frozenset[str]) -> bool:
        """Whether one of them runs something else, as far as it says."""
        from modelless.controller.live.cluster import deployment

        told = {
            member["id"]: member.get("release")
            for member in deployment.control_status().get("members", ())
        }
        return any(told.get(name) != self._release for name in replicas)

    def _replace_pool(
        self, pool: PoolSettings, rollout: Any, before: frozenset[str], *, is_whole: bool
    ) -> int:
        """Replace a pool's workers; it ``is_whole`` if there is room for all that are wanted."""
        import ray

        from modelless.controller.live.cluster import deployment

        surge = has_resources(pool, ray.available_resources()) and self._has_memory(before)
        what = f"workers of {pool.device_class}"
        self._announce(what, len(before), surge=surge)
        count = rollout.target()
        deployment.deploy_pool(self._home, self._settings, pool, count, surge=surge)
        if not is_whole:
            self._on_stage(f"no node has room for all {what}: those to come are not waited for")
        rollout.see_through(before, self._progress(what), is_whole=is_whole)
        deployment.trim_pool(pool, count)
        return len(before)

    def _replace_gateways(self, rollout: Any, before: frozenset[str]) -> int:
        from modelless.controller.live.cluster import deployment

        surge = self._has_memory(before)
        self._announce("gateways", len(before), surge=surge)
        count = self._settings.gateways.count or rollout.target()
        sockets = self._home / "run" / "sockets" if self._is_own else None
        deployment.deploy_gateways(self._home, self._settings, sockets, count, surge=surge)
        rollout.see_through(before, self._progress("gateways"))
        return len(before)

    def _has_memory(self, replicas: frozenset[str]) -> bool:
        """Whether this machine, if they are all on it, has room for another of the largest."""
        from modelless.controller.live.cluster import deployment

        members = deployment.control_status().get("members", ())
        taken = [m["resident_bytes"] for m in members if m["id"] in replicas]
        return not self._is_own or max(taken, default=0) < available_bytes()

    def _announce(self, what: str, count: int, *, surge: bool) -> None:
        self._on_stage(f"replacing {count} {what}, one after the other")
        if not surge:
            self._on_stage("there is no room for one more: each stops before the next one starts")

    def _progress(self, what: str) -> Callable[[int, int], None]:
        return lambda gone, count: self._on_stage(f"{gone} of {count} {what} replaced")


def _releases(status: Mapping[str, Any]) -> tuple[str, ...]:
    """What the control loop and the members run."""
    told = [status.get("release"), *(m.get("release") for m in status.get("members", ()))]
    return tuple(sorted({str(name) for name in told if name}))


def _check(release: str) -> None:
    """See that nothing else runs, once those that ended are forgotten."""
    from modelless.controller.live.cluster import deployment

    end_s = time.monotonic() + GATHER_S
    while others := [n for n in _releases(deployment.control_status()) if n != release]:
        if time.monotonic() < end_s:
            time.sleep(0.5)
            continue
        raise EnvironmentUnfitError(
            f"after the upgrade {', '.join(others)} runs beside {release}: the nodes of the "
            "cluster have other code on disk than this one. Install the release on all of them"
        )


@contextmanager
def _joined(deployed: Deployed, home: Path, settings: Settings) -> Iterator[None]:
    """Joined to the Ray cluster, as the process was that started it."""
    from modelless.controller.live.cluster.loopback import (
        joining_environment,
        ray_environment,
        set_environment,
    )

    run = home.resolve() / "run"
    if deployed.is_own:
        launcher = run / "haproxy" if settings.ingress == "haproxy" else None
        set_environment(ray_environment(token_path(run), haproxy=launcher))
    else:
        os.environ.update(joining_environment(deployed.address))
        os.environ.pop("RAY_ADDRESS", None)
        if deployed.auth_mode:
            # Ray supposes none where an address is named.
            os.environ[AUTH_MODE] = deployed.auth_mode
    import ray
    from ray import serve  # noqa: F401  (it sets its logger's level as it is imported)

    try:
        with current_folder(run):
            ray.init(
                address=deployed.address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                namespace="modelless",
            )
    except (ConnectionError, RuntimeError) as error:
        raise EnvironmentUnfitError(
            f"the Ray cluster at {deployed.address} cannot be joined: {error}"
        ) from error
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    try:
        yield
    finally:
        ray.shutdown()
