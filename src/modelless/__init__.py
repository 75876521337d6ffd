"""Model-less inference serving: clients name a task and limits, modelless chooses what runs it."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("modelless")
except PackageNotFoundError:  # a source tree on the path, not installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
