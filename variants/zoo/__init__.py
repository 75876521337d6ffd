"""Models that install from a package registry, and how each becomes registered variants."""

from modelless.variants.zoo.catalog import ENTRIES, BuiltVariant, MadeEntry, ZooEntry, find_entry

__all__ = ["ENTRIES", "BuiltVariant", "MadeEntry", "ZooEntry", "find_entry"]
