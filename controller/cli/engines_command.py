"""``modelless engines``: what can execute variants here, and what brings the rest."""

from __future__ import annotations

from modelless.controller.cli.screen import Json, emit, say, show_table

EPILOG = "Example: modelless engines --json"


def engines(as_json: Json = False) -> None:
    """Show which engines work on this machine, and what to install for the others.

    Each is tried: what is listed as available loads variants.
    """
    from modelless.variants.runtimes.engines import ENGINES, engine_status

    found = [engine_status(engine) for engine in ENGINES]
    if as_json:
        emit(
            {
                "engines": [
                    {
                        "engine": status.engine.value,
                        "available": status.available,
                        "version": status.version,
                        "device_kind": status.entry.device_kind,
                        "summary": status.entry.summary,
                        "install": status.entry.install,
                        "missing": status.missing or None,
                    }
                    for status in found
                ]
            }
        )
        return
    show_table(
        ["engine", "runs on", "version", "available", "what it is"],
        [
            (
                status.engine.value,
                status.entry.device_kind,
                status.version or "-",
                "yes" if status.available else "no",
                status.entry.summary,
            )
            for status in found
        ],
        caption="modelless register FILE.onnx ... --engine ENGINE names one",
    )
    for status in found:
        if not status.available:
            say(status.missing)
