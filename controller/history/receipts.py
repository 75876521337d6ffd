"""Receipts as documents, and in files that never grow beyond a bound.

A gateway writes JSON lines into a file of its own, each batch compressed by itself (gzip members),
for candidates repeat themselves. When the file has half of the bytes it may, it becomes the older
of two and another is begun; what was the older goes.
"""

from __future__ import annotations

import gzip
import heapq
import json
import re
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from modelless.common.errors import InvalidInputError
from modelless.controller.dispatch.explanations import explain_receipt
from modelless.controller.dispatch.receipts import Receipt
from modelless.policies.scopes import base_of, in_scope

OLD_FILES_KEPT: Final = 32
"""Files of gateways that are gone: the newest stay."""

_OLD_S: Final = 3600.0
_TAG: Final = re.compile(r"[0-9a-f]{24}")
_NEWER: Final = ".receipts.gz"
_OLDER: Final = ".older.gz"


def receipts_folder(home: Path) -> Path:
    """Where the receipts of a home lie."""
    return home / "run" / "receipts"


def receipt_document(
    gateway_id: str, receipt: Receipt, now_s: float, time_s: float | None = None
) -> dict[str, Any]:
    """The receipt as plain JSON, with its id and the time of day.

    Args:
        receipt: of a query that is over, or not yet.
        now_s: on the driver's clock, to tell how long ago the query came in.
        time_s: the time of day at ``now_s``, seconds since 1970; default: now.
    """
    time_s = time.time() if time_s is None else time_s
    arrived_s = time_s - (now_s - receipt.query.arrival_s)
    return {
        "receipt_id": f"{gateway_id}-{receipt.query.query_id}",
        "gateway": gateway_id,
        "arrived_at": datetime.fromtimestamp(arrived_s, UTC).isoformat(timespec="milliseconds"),
        **explain_receipt(receipt),
    }


class ReceiptFiles:
    """A gateway's files. One writer.

    Args:
        folder: of all gateways' files; made if it is not there.
    """

    def __init__(self, folder: Path, gateway_id: str, max_bytes: int) -> None:
        self._path = folder / f"{gateway_id}{_NEWER}"
        self._older = folder / f"{gateway_id}{_OLDER}"
        self._max_bytes = max_bytes

    def write(self, documents: Iterable[Mapping[str, Any]]) -> None:
        """Append; OSError if it cannot be done."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(
            json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"
            for document in documents
        )
        with self._path.open("ab") as file:
            file.write(gzip.compress(text.encode(), compresslevel=1))
            size = file.tell()
        if 2 * size >= self._max_bytes:
            self._path.replace(self._older)


def drop_old_files(folder: Path, now_s: float) -> None:
    """Remove all but the newest files of gateways that have long ceased to write."""
    dated = sorted((path.stat().st_mtime, path) for path in folder.glob("*.gz"))
    old = [path for changed_s, path in dated if now_s - changed_s > _OLD_S]
    for path in old[: max(len(old) - OLD_FILES_KEPT, 0)]:
        path.unlink(missing_ok=True)


def find_receipt(folder: Path, receipt_id: str) -> dict[str, Any] | None:
    """The receipt of that id, from the files; None if it is not there.

    Raises:
        InvalidInputError: it is no receipt's id.
    """
    gateway_id = gateway_of(receipt_id)
    bare_id = receipt_id.partition(".")[0]
    wanted = json.dumps({"receipt_id": bare_id}, separators=(",", ":"))[:-1] + ","
    for path in (folder / f"{gateway_id}{_NEWER}", folder / f"{gateway_id}{_OLDER}"):
        for line in _lines(path):
            if line.startswith(wanted):
                found: dict[str, Any] = json.loads(line)
                return found
    return None


class WantedReceipts(NamedTuple):
    """Which receipts are asked for; None and () do not narrow.

    Attributes:
        since, until: from when to when the queries arrived, both included; with a time zone.
        tenant: of this tenant.
        task: for this scope or narrower: ``task[/model[/variant]]``.
        outcomes: ``served``, ``served-late``, ``refused`` or ``cancelled``.
        most: the newest so many.
    """

    since: datetime | None = None
    until: datetime | None = None
    tenant: str | None = None
    task: str | None = None
    outcomes: tuple[str, ...] = ()
    most: int = 1000


def read_receipts(folder: Path, wanted: WantedReceipts) -> list[dict[str, Any]]:
    """The newest receipts of all gateways that are wanted, oldest first."""
    since, until = _stamp(wanted.since), _stamp(wanted.until)
    # What a line must hold, before it is parsed: most of its text is candidates.
    tenant = "" if wanted.tenant is None else _member("tenant", wanted.tenant)
    outcomes = [_member("outcome", each) for each in wanted.outcomes] or [""]
    lines = (
        line
        for path in sorted(folder.glob("*.gz"))
        for line in _lines(path)
        if (since is None or _arrived(line) >= since)
        and (until is None or _arrived(line) <= until)
        and tenant in line
        and any(outcome in line for outcome in outcomes)
        and (wanted.task is None or in_scope(_scope_of(line), wanted.task))
    )
    return [json.loads(line) for line in heapq.nlargest(wanted.most, lines, key=_arrived)][::-1]


def gateway_of(receipt_id: str) -> str:
    """The gateway whose receipt it is.

    Raises:
        InvalidInputError: it is no receipt's id.
    """
    gateway_id, _, rest = receipt_id.rpartition("-")
    number, _, tag = rest.partition(".")
    plain = gateway_id.replace("-", "").replace("_", "").isalnum()
    if not (plain and number.isascii() and number.isdigit() and (not tag or _TAG.fullmatch(tag))):
        raise InvalidInputError.of(
            "receipt id", receipt_id, "a reply's parameters.receipt_id, such as k2j5h8-17.5e0c9a1b"
        )
    return gateway_id


def _arrived(line: str) -> str:
    """When the query of a line arrived, without reading all of it; such times sort as text."""
    return line.partition('"arrived_at":"')[2].partition('"')[0]


def _scope_of(line: str) -> str:
    return base_of(line.partition('"scope":"')[2].partition('"')[0])


def _member(name: str, value: str) -> str:
    return f'"{name}":{json.dumps(value)},'


def _stamp(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat(timespec="milliseconds")


def _lines(path: Path) -> Iterator[str]:
    """Whole lines; a batch that was not written to its end does not count."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            yield from (line for line in file if line.endswith("}\n"))
    except (FileNotFoundError, EOFError, gzip.BadGzipFile, zlib.error):
        return
