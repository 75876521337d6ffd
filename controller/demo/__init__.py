"""``modelless demo``: the whole way on real photos, and a report of it.

Importing this costs nothing: what the demo needs is imported when it runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modelless.controller.demo.run import run_demo

__all__ = ["run_demo"]


def __getattr__(name: str) -> Any:
    if name == "run_demo":
        from modelless.controller.demo.run import run_demo

        return run_demo
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
