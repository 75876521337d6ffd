"""Parsing the command line: times, lists, limits, policies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Annotated, Any, Final

from typer import Argument, Option

from modelless.common.errors import InvalidInputError

LatencyMs = Annotated[
    float | None, Option("--latency-ms", help="Deadline, milliseconds from arrival.")
]
MinAccuracy = Annotated[float | None, Option("--min-accuracy", help="Minimum accuracy, per cent.")]
MaxCostUsd = Annotated[float | None, Option("--max-cost-usd", help="Highest price of one query.")]
TaskName = Annotated[
    str, Option("--task", "-t", help="Task, or task/model, or task/model/variant[@version].")
]
Scopes = Annotated[
    list[str] | None,
    Argument(metavar="SCOPE", help="task, task/model or task/model/variant; default: everything"),
]
DeviceClasses = Annotated[
    str,
    Option(
        "--device-class",
        metavar="NAME,...",
        help="Device classes, with commas: cpu-1, cpu-2, gpu-1; see 'modelless device'.",
    ),
]
ConfigFile = Annotated[
    Path | None, Option("--config", metavar="FILE", help="Settings, a YAML file.")
]
TaskFile = Annotated[
    Path | None, Option("--task-file", metavar="FILE", help="A new task, described in YAML.")
]
Framework = Annotated[
    str | None,
    Option(
        "--framework",
        help="Framework of SOURCE where it cannot be told: scikit-learn, pytorch, tensorflow or "
        "onnx.",
    ),
]
Url = Annotated[str | None, Option("--url", help="Server; default: the one that is up here.")]

_UNITS_S: Final = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|min|m|h|d)")

_YEARS: Final = (1970, 9998)
"""So that what is a few days before or after, or in another time zone, is a date, too."""


def seconds_of(field: str, text: str) -> float:
    """``60``, ``2m``, ``1m30s``, ``1d``, ``500ms`` in seconds; InvalidInputError if it is none."""
    bare = text.strip().lower()
    parts = _PART.findall(bare)
    if parts and "".join(number + unit for number, unit in parts) == bare:
        total_s = sum(float(number) * _UNITS_S[unit] for number, unit in parts)
    elif re.fullmatch(r"\d+(\.\d+)?", bare):
        total_s = float(bare)
    else:
        total_s = 0.0
    if not 0.0 < total_s <= 7 * 86400.0:
        raise InvalidInputError.of(field, text, "a time such as 60s, 1m30s, 2h or 1d, up to 7 days")
    return total_s


def days_of(field: str, text: str) -> float:
    """``90d``, ``12h`` or ``30m`` in seconds, up to ten years; InvalidInputError if it is none."""
    found = re.fullmatch(r"(\d{1,5})([dhm])", text.strip().lower())
    total_s = int(found[1]) * {"d": 86400.0, "h": 3600.0, "m": 60.0}[found[2]] if found else 0.0
    if not 0.0 < total_s <= 3660 * 86400.0:
        raise InvalidInputError.of(field, text, "a time such as 90d, 12h or 30m, up to 3660d")
    return total_s


def share_of(field: str, text: str) -> float:
    """``5%`` or ``5`` per cent as 0.05; InvalidInputError if it is not above 0 and up to 100.

    Below 1 the sign is required: 0.2 may mean a fifth.
    """
    number = text.strip().removesuffix("%").strip()
    try:
        percent = float(number)
    except ValueError:
        percent = 0.0
    if not 0.0 < percent <= 100.0:
        raise InvalidInputError.of(field, text, "per cent, above 0 and up to 100, such as 5%")
    if percent < 1.0 and "%" not in text:
        raise InvalidInputError.of(
            field, text, f"per cent with its sign: {percent:g}%, or {100 * percent:g}%"
        )
    return percent / 100.0


def batches_of(text: str) -> tuple[int, ...]:
    """``1,2,4,8`` as ascending numbers; InvalidInputError if it is no such list."""
    return tuple(counts_of("batches", text, 1, 1024, "whole numbers of 1 to 1024, with commas"))


def counts_of(field: str, text: str, least: int, most: int, allowed: str) -> list[int]:
    """``0,10`` as ascending numbers; InvalidInputError if it is no such list."""
    words = names_of(field, text)
    if not all(re.fullmatch(r"[0-9]{1,9}", word) and least <= int(word) <= most for word in words):
        raise InvalidInputError.of(field, text, allowed)
    return sorted({int(word) for word in words})


def shapes_of(texts: Sequence[str]) -> dict[str, list[tuple[int, ...]]]:
    """``image=48x320,48x640`` as sizes by input; InvalidInputError if one is no such list."""
    found: dict[str, list[tuple[int, ...]]] = {}
    for text in texts:
        name, _, sizes = text.rpartition("=")
        if not name or not re.fullmatch(r"[0-9]{1,7}([x,][0-9]{1,7})*", sizes):
            allowed = "an input and sizes such as image=48x320,48x640"
            raise InvalidInputError.of("shape", text, allowed)
        items = (each.split("x") for each in sizes.split(","))
        found.setdefault(name, []).extend(tuple(map(int, item)) for item in items)
    return found


def names_of(field: str, text: str) -> tuple[str, ...]:
    """``a,b`` as names, each once, in their order; InvalidInputError if there is none."""
    names = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not names:
        raise InvalidInputError.of(field, text, "names, with commas between them")
    return names


def policy_of(text: str) -> str | dict[str, Any]:
    """A policy's specification: a name, YAML such as ``{policy: NAME, quantile: p90}``, or a file.

    Raises:
        InvalidInputError: not YAML, or neither a name nor a mapping.
    """
    from modelless.common.yaml_files import parse_yaml, read_yaml

    if text.endswith((".yaml", ".yml")):
        found = read_yaml("policy", Path(text))
    elif text.lstrip().startswith("{"):
        found = parse_yaml(f"policy {text}", text)
    else:
        return text
    if isinstance(found, str):
        return found
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise InvalidInputError.of("policy", found, "a name, or a mapping with the key 'policy'")
    return found


def moment_of(field: str, text: str, now: datetime) -> datetime:
    """``18:30``, ``18:30:05`` (the last time it was that) or an ISO date and time, as UTC.

    Without a zone it is this machine's.

    Raises:
        InvalidInputError: it is neither.
    """
    written = text.strip()
    try:
        if "-" in written:
            found = datetime.fromisoformat(written).astimezone(UTC)
            if not _YEARS[0] <= found.year <= _YEARS[1]:
                raise ValueError(written)
            return found
        moment = datetime.combine(now.astimezone(), time.fromisoformat(written)).astimezone()
    except (ValueError, OverflowError):
        raise InvalidInputError.of(
            field, text, "a time such as 18:30:05, or a date and time such as 2026-03-01T18:30:05, "
            f"of the years {_YEARS[0]} to {_YEARS[1]}",
        ) from None  # fmt: skip
    if moment > now:
        moment -= timedelta(days=1)
    return moment.astimezone(UTC)
