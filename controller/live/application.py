"""modelless as applications of a Serve config file, for a Ray cluster that somebody else runs.

``gateways`` is the ingress application and ``pool`` one pool's, each with the same settings;
``deploy/serve/config.yaml`` shows both. A pool's application bears the name that
``serve_app.pool_app_name`` gives it, and has ``external_scaler_enabled``.

Serve takes its arguments' types from the signatures as they stand, so annotations here are not
postponed.
"""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from modelless.common.errors import InvalidInputError
from modelless.common.files import default_home
from modelless.controller.config import Settings
from modelless.controller.live.cluster.deployment import start_control
from modelless.controller.live.cluster.serve_app import gateway_app, pool_app


class Arguments(BaseModel):
    """What the applications of one modelless have in common."""

    model_config = ConfigDict(extra="forbid")

    home: Path = Field(
        default_factory=default_home,
        description="home of artifacts and logs, at the same path on every node",
    )
    settings: Settings = Field(
        default_factory=Settings, description="as in the file that 'modelless up --config' reads"
    )


class PoolArguments(Arguments):
    """Which of the settings' pools it is."""

    device_class: str = Field(description="device class of one of the settings' pools")


def gateways(arguments: Arguments) -> Any:
    """The ingress application; starts the control loop too."""
    start_control(arguments.home, arguments.settings)
    count = arguments.settings.gateways.count or 1
    return gateway_app(arguments.home, arguments.settings, None, count)


def pool(arguments: PoolArguments) -> Any:
    """The application of one pool.

    Raises:
        InvalidInputError: the settings have no such pool.
    """
    pools = {one.device_class: one for one in arguments.settings.pools}
    if arguments.device_class not in pools:
        raise InvalidInputError.of("device_class", arguments.device_class, ", ".join(pools))
    return pool_app(arguments.home, arguments.settings, pools[arguments.device_class])
