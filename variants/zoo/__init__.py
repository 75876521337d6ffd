"""Models that install from a package registry, and how each becomes registered variants."""

from modelless.variants.zoo.catalog import ENTRIES, BuiltVariant, ZooEntry, find_entry
from modelless.variants.zoo.made import MadeEntry

__all__ = ["ENTRIES", "BuiltVariant", "MadeEntry", "ZooEntry", "find_entry"]
