"""Model-less inference serving: clients name a task and limits, modelless chooses what runs it.

The names below are the commands of the command line as functions. They are imported when they are
first used, so ``import modelless`` itself is quick. Each takes ``home``, the folder that holds the
store; the default is $MODELLESS_HOME, else ``~/.modelless``.

Examples:
    >>> import modelless
    >>> modelless.zoo_add("fashion-mnist")  # doctest: +SKIP
    >>> modelless.profile("fashion-mnist", budget_s=30)  # doctest: +SKIP
    >>> modelless.select("fashion-mnist", latency_ms=20).chosen  # doctest: +SKIP
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modelless.controller.usecases.client import AsyncClient, Client
    from modelless.controller.usecases.cluster import status, up
    from modelless.controller.usecases.measuring.profiling import profile
    from modelless.controller.usecases.offline import batch
    from modelless.controller.usecases.registry.making import make
    from modelless.controller.usecases.registry.registering import register
    from modelless.controller.usecases.registry.validating import validate
    from modelless.controller.usecases.registry.zoo import zoo_add
    from modelless.controller.usecases.selecting import select
    from modelless.controller.usecases.simulation.simulating import compare, simulate
    from modelless.controller.usecases.simulation.tuning import tune
    from modelless.controller.usecases.simulation.whatif import whatif
    from modelless.controller.usecases.taking_down import down

# ONNX Runtime reads it once, as it is imported, and everything of ours is imported after this.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

try:
    __version__ = version("modelless")
except PackageNotFoundError:  # a source tree on the path, not installed
    __version__ = "0+unknown"

__all__ = [
    "AsyncClient",
    "Client",
    "__version__",
    "batch",
    "compare",
    "down",
    "make",
    "profile",
    "register",
    "select",
    "simulate",
    "status",
    "tune",
    "up",
    "validate",
    "whatif",
    "zoo_add",
]

_MODULES = {
    "AsyncClient": "client",
    "Client": "client",
    "batch": "offline",
    "compare": "simulation.simulating",
    "down": "taking_down",
    "make": "registry.making",
    "profile": "measuring.profiling",
    "register": "registry.registering",
    "select": "selecting",
    "simulate": "simulation.simulating",
    "status": "cluster",
    "tune": "simulation.tuning",
    "up": "cluster",
    "validate": "registry.validating",
    "whatif": "simulation.whatif",
    "zoo_add": "registry.zoo",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"modelless.controller.usecases.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
