"""Model-less inference serving: clients name a task and limits, modelless chooses what runs it."""

import os
from importlib.metadata import PackageNotFoundError, version

# ONNX Runtime reads it once, as it is imported, and everything of ours is imported after this.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

try:
    __version__ = version("modelless")
except PackageNotFoundError:  # a source tree on the path, not installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
