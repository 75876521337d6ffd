"""The steps of an upgrade in a Ray cluster that this process has joined.

Ray Serve carries out the rolling updates, and goes on with them when nobody watches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray
from ray import serve

from modelless.common.errors import EnvironmentUnfitError
from modelless.controller.config import PoolSettings, Settings
from modelless.controller.live.cluster import deployment, serve_app
from modelless.controller.live.cluster.deployed import Deployed
from modelless.controller.live.cluster.node_room import (
    available_bytes,
    has_resources,
    nodes_of,
    without_room,
)
from modelless.controller.live.cluster.release import release_of
from modelless.controller.live.cluster.start_failures import last_error

LOOK_S = 0.25
PATIENCE_S = 240.0
"""For one replica: its process, its loads, and the draining of the one before it."""
GATHER_S = 15.0
"""How long a new control loop may take to have heard from everybody."""


class ServeRollout:
    """The replicas of one deployment, and what becomes of them."""

    def __init__(self, app: str, deployment: str) -> None:
        self.app = app
        self._deployment = deployment

    def replicas(self) -> frozenset[str]:
        """Those that are there now, in whatever state."""
        return frozenset(str(replica["replica_id"]) for replica in self._details()["replicas"])

    def target(self) -> int:
        """How many Serve holds."""
        return int(self._details()["target_num_replicas"])

    def settle(self) -> None:
        """Wait until no update is under way; it may have failed.

        Raises:
            EnvironmentUnfitError: it does not end.
        """
        self._wait(lambda: self._status() != "DEPLOYING", PATIENCE_S * max(self.target(), 1))

    def see_through(
        self,
        before: frozenset[str],
        on_progress: Callable[[int, int], None],
        *,
        is_whole: bool = True,
    ) -> None:
        """Wait until none of the replicas before it is left.

        Args:
            on_progress: told how many are gone, and of how many.
            is_whole: else there is no room for all, and the last of the new ones do not come.

        Raises:
            EnvironmentUnfitError: the new ones do not start, or it does not end.
        """
        told = 0

        def is_done() -> bool:
            nonlocal told
            gone = len(before - self.replicas())
            if gone > told:
                told = gone
                on_progress(gone, len(before))
            status = self._status()
            if status == "DEPLOY_FAILED":
                cause = last_error(str(self._details()["message"]))
                raise EnvironmentUnfitError(
                    f"new processes of {self.app} do not start; those before them go on serving. "
                    f"{cause}. Mend that and upgrade once more, or install "
                    "the release before and upgrade to that"
                )
            return gone == len(before) and (status == "RUNNING" or not is_whole)

        self._wait(is_done, PATIENCE_S * max(len(before), 1))

    def _wait(self, is_done: Callable[[], bool], most_s: float) -> None:
        end_s = time.monotonic() + most_s
        while not is_done():
            if time.monotonic() > end_s:
                raise EnvironmentUnfitError(
                    f"{self.app} is not replaced after {most_s:.0f} s. Ray Serve goes on with it; "
                    "'modelless upgrade' once more sees it through"
                )
            time.sleep(LOOK_S)

    def _status(self) -> str:
        return str(serve.status().applications[self.app].status.value)

    def _details(self) -> dict[str, Any]:
        from ray.serve.context import _get_global_client

        client = _get_global_client()
        assert client is not None  # noqa: S101  (it raises if there is none)
        applications: dict[str, Any] = client.get_serve_details()["applications"]
        found: dict[str, Any] = applications[self.app]["deployments"][self._deployment]
        return found


class UpgradeSteps:
    """One upgrade's steps, each of which leaves out what is done."""

    def __init__(
        self, home: Path, settings: Settings, deployed: Deployed, on_stage: Callable[[str], None]
    ) -> None:
        self._home = home.resolve()
        self._settings = settings
        self._is_own = deployed.is_own
        self._on_stage = on_stage
        self._release = release_of(settings)

    def take(self, *, restart: bool) -> int:
        """Take them all; returns how many gateways and workers were replaced."""
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
        told = {
            member["id"]: member.get("release")
            for member in deployment.control_status().get("members", ())
        }
        return any(told.get(name) != self._release for name in replicas)

    def _replace_pool(
        self, pool: PoolSettings, rollout: ServeRollout, before: frozenset[str], *, is_whole: bool
    ) -> int:
        """Replace a pool's workers; it ``is_whole`` if there is room for all that are wanted."""
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

    def _replace_gateways(self, rollout: ServeRollout, before: frozenset[str]) -> int:
        surge = self._has_memory(before)
        self._announce("gateways", len(before), surge=surge)
        count = self._settings.gateways.count or rollout.target()
        sockets = self._home / "run" / "sockets" if self._is_own else None
        deployment.deploy_gateways(self._home, self._settings, sockets, count, surge=surge)
        rollout.see_through(before, self._progress("gateways"))
        return len(before)

    def _has_memory(self, replicas: frozenset[str]) -> bool:
        """Whether this machine, if they are all on it, has room for another of the largest."""
        members = deployment.control_status().get("members", ())
        taken = [m["resident_bytes"] for m in members if m["id"] in replicas]
        return not self._is_own or max(taken, default=0) < available_bytes()

    def _announce(self, what: str, count: int, *, surge: bool) -> None:
        self._on_stage(f"replacing {count} {what}, one after the other")
        if not surge:
            self._on_stage("there is no room for one more: each stops before the next one starts")

    def _progress(self, what: str) -> Callable[[int, int], None]:
        return lambda gone, count: self._on_stage(f"{gone} of {count} {what} replaced")


def releases(status: Mapping[str, Any]) -> tuple[str, ...]:
    """What the control loop and the members run."""
    told = [status.get("release"), *(m.get("release") for m in status.get("members", ()))]
    return tuple(sorted({str(name) for name in told if name}))


def check_releases(release: str) -> None:
    """See that nothing else runs, once those that ended are forgotten."""
    end_s = time.monotonic() + GATHER_S
    while others := [n for n in releases(deployment.control_status()) if n != release]:
        if time.monotonic() < end_s:
            time.sleep(0.5)
            continue
        raise EnvironmentUnfitError(
            f"after the upgrade {', '.join(others)} runs beside {release}: the nodes of the "
            "cluster have other code on disk than this one. Install the release on all of them"
        )
