"""Why an application of ours did not start, in the words of what its replicas raised.

Serve says of the application only which deployments failed. The cause stands in the deployment's
status message, as the traceback of a traceback.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelless.common.errors import EnvironmentUnfitError
from modelless.controller.live.logs import RAY_LOGS

if TYPE_CHECKING:
    from ray.serve.schema import DeploymentStatusOverview

_MOST_CHARACTERS = 600
FAILED = ("DEPLOY_FAILED", "UNHEALTHY")
_ERROR = "Error:\n"
_FRAME = '  File "'
_MODULE = re.compile(r"^(?:\w+\.)+(?=\w+(?::|$))")


def start_error(
    what: str, deployments: Mapping[str, DeploymentStatusOverview]
) -> EnvironmentUnfitError:
    """Return the error that says why an application of these deployments did not start.

    Args:
        what: its processes, for people.
    """
    return EnvironmentUnfitError(
        f"{what} did not start: {cause_of(deployments) or 'Ray Serve does not say why'}. The whole "
        f"of it is in {_logs()}/serve/controller_*.log, on the node of Serve's controller. Mend "
        "that, then 'modelless up' once more"
    )


def _logs() -> str:
    """Where this Ray writes: where several run, the latest session is another's."""
    import ray

    node: Any = ray._private.worker.global_worker.node
    return RAY_LOGS if node is None else str(Path(node.get_logs_dir_path()).resolve())


def cause_of(deployments: Mapping[str, DeploymentStatusOverview]) -> str:
    """``deployment: error`` of those that failed; empty if none did."""
    return "; ".join(
        f"{name}: {last_error(deployment.message)}"
        for name, deployment in deployments.items()
        if deployment.status in FAILED
    )


def last_error(message: str) -> str:
    """What was raised last, as Serve's status message has it: in one line, without its traceback.

    The whole message in one line where there is no traceback in it.
    """
    lines = message.partition(_ERROR)[2].strip().splitlines() or message.strip().splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith(_FRAME)]
    if frames:
        lines = lines[frames[-1] + 1 :]
        while lines and lines[0].startswith(" "):  # the frame's own line of code, and its carets
            del lines[0]
    text = _MODULE.sub("", " ".join(" ".join(lines).split())).rstrip(".")
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 3]}..."
