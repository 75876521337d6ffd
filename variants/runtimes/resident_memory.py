"""How much memory this process really holds, read from the kernel."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

_STATM: Final = Path("/proc/self/statm")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Resident memory of this process, bytes; 0 where the kernel has no ``/proc``."""
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


def give_back_freed() -> None:
    """Return freed memory to the kernel, so that a model loaded into it shows as growth.

    Garbage is not collected: in a serving process that would stop every query for its while.
    """
    if _malloc_trim is not None:
        _malloc_trim(0)


def _find_malloc_trim() -> ctypes._NamedFuncPointer | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library than glibc
        return None


_malloc_trim: Final = _find_malloc_trim()
