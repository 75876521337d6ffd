"""The runtime seam: load, warm up, infer, unload, memory, threads. One table of engines."""

from modelless.variants.runtimes.base import LoadedVariant, Runtime
from modelless.variants.runtimes.engines import find_runtime

__all__ = ["LoadedVariant", "Runtime", "find_runtime"]
