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
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelless.common.errors import EnvironmentUnfitError, InvalidInputError, ModellessError
from modelless.controller.config import HttpSettings, Settings, changed_by, parse_settings
from modelless.controller.live.cluster.cluster import OnStage
from modelless.controller.live.cluster.deployed import (
    AUTH_MODE,
    Deployed,
    read_deployed,
    write_deployed,
)
from modelless.controller.live.cluster.release import PROTOCOL, ProtocolError, release_of
from modelless.controller.live.cluster.run_folder import current_folder, token_path
from modelless.controller.live.cluster.running import UpState, read_state
from modelless.controller.live.settings_revisions import settings_in_force

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
        from modelless.controller.live.cluster import deployment, upgrade_steps

        status = deployment.control_status()
        if status and status.get("protocol", 0) != PROTOCOL:
            raise ProtocolError.between(int(status.get("protocol", 0)))
        ran = upgrade_steps.releases(status)
        write_deployed(home, deployed.address, settings, is_own=deployed.is_own)
        steps = upgrade_steps.UpgradeSteps(home, settings, deployed, on_stage)
        replaced = steps.take(restart=restart)
        upgrade_steps.check_releases(release)
    took_s = time.monotonic() - began_s
    return Upgraded(state.url, release, ran, replaced, round(took_s, 1))


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
