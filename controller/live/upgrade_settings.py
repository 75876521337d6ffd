"""Which settings a cluster that serves goes on with, and whether there is room for one more."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modelless.controller.config import PoolSettings, Settings, parse_settings
from modelless.variants.errors import InvalidInputError

_FIXED = (("http", "host"), ("http", "port"), ("", "ingress"))
"""Sections and keys of what HAProxy and Ray Serve were started with."""


def settings_to_be(running: Mapping[str, Any], asked: Settings | None) -> Settings:
    """The settings after an upgrade.

    What cannot change while it serves stays as it is, where ``asked`` does not say otherwise.

    Args:
        running: the document of those it runs with.
        asked: new ones; None to keep them.

    Raises:
        InvalidInputError: this release does not understand the running ones, or what is asked for
            takes a new start.
    """
    now = parse_settings(running, "the running settings (a file for --config may replace them)")
    if asked is None:
        return now
    document = asked.model_dump(mode="json")
    for section, key in _FIXED:
        name = f"{section}.{key}".strip(".")
        before, after = (getattr(each, section) if section else each for each in (now, asked))
        value = getattr(before, key)
        if key in after.model_fields_set and getattr(after, key) != value:
            raise InvalidInputError.of(name, getattr(after, key), f"{value!r}, as now", _ANEW)
        (document[section] if section else document)[key] = value
    classes = {pool.device_class for pool in now.pools}
    if {pool.device_class for pool in asked.pools} != classes:
        told = ", ".join(pool.device_class for pool in asked.pools) or "none"
        allowed = f"pools of the same device classes as now ({', '.join(sorted(classes)) or '-'})"
        raise InvalidInputError.of("pools", told, allowed, _ANEW)
    return parse_settings(document, "modelless upgrade")


_ANEW = "What else takes a new start: 'modelless down', then 'modelless up'."


def has_resources(pool: PoolSettings, available: Mapping[str, float]) -> bool:
    """Whether one worker more finds what the pool's workers ask of Ray, such as a GPU."""
    return all(available.get(name, 0.0) >= amount for name, amount in pool.resources.items())


def available_bytes(root: Path = Path("/")) -> float:
    """Memory that a new process may take on this machine; infinite where nobody says."""
    try:
        text = (root / "proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return float("inf")
    found = re.search(r"^MemAvailable:\s*(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024.0 if found else float("inf")
