"""A rolling update as Ray Serve carries it out, watched: it goes on when nobody watches."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ray import serve

from modelless.common.errors import EnvironmentUnfitError
from modelless.controller.live.cluster.start_failures import last_error

LOOK_S = 0.25
PATIENCE_S = 240.0
"""For one replica: its process, its loads, and the draining of the one before it."""


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
