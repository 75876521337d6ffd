"""The runtime seam: load, warm up, infer, unload, memory, threads. One table of engines."""

from modelless.variants.runtimes.engines import find_runtime
from modelless.variants.runtimes.runtime import LoadedVariant, Runtime

__all__ = ["LoadedVariant", "Runtime", "find_runtime"]
