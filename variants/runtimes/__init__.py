"""The runtime seam: load, warm up, infer, unload, memory, threads. One module an engine."""

from modelless.variants.runtimes.base import LoadedVariant, Runtime, find_runtime

__all__ = ["LoadedVariant", "Runtime", "find_runtime"]
