"""``modelless why``: one query's decision, from its receipt and the history around it."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from modelless.common.errors import InvalidInputError, NotFoundError, StoreError
from modelless.controller.cli.moments import clock_text, moment_of
from modelless.controller.cli.screen import Json, emit, home_of, say, show_table

EPILOG = "Examples: modelless why k2j5h8-17; modelless why; modelless why --at 18:30:05"
_TIMEOUT_S: Final = 5.0
_LISTED: Final = 20
_SHOWN: Final = 12


def why(
    ctx: typer.Context,
    receipt_id: Annotated[
        str | None,
        typer.Argument(
            metavar="RECEIPT",
            help="A reply's receipt_id, also of a refusal; default: list the last that were kept.",
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="TIME",
            help="List the last that arrived up to then: 18:30:05, or a date and time.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Explain why a query got its answer, or why it was refused.

    Shows its limits, the candidates, the choice with its reason, the result, and what the control
    plane loaded and evicted around that time. Asks a running gateway first, then reads the
    receipts on disk: see history.receipts_per_s in the settings.
    """
    from modelless.controller.history.receipts import (
        newest_receipts,
        receipts_folder,
        receipts_until,
    )

    home = home_of(ctx)
    if at is not None:
        if receipt_id is not None:
            raise InvalidInputError.of("at", at, "a receipt or --at, not both")
        until = moment_of("at", at, datetime.now(UTC))
        _list(receipts_until(receipts_folder(home), until, _LISTED), as_json=as_json)
        return
    if receipt_id is None:
        _list(newest_receipts(receipts_folder(home), _LISTED), as_json=as_json)
        return
    receipt = _find(home, receipt_id)
    entries, absent = _context(home, receipt)
    if as_json:
        emit(
            {
                **receipt,
                "not_ready": absent,
                "before": [told.document() for told in entries],
            }
        )
        return
    from modelless.controller.history.why import entry_lines, words

    arrived = datetime.fromisoformat(receipt["arrived_at"])
    typer.echo(f"query {receipt_id}, {clock_text(arrived, day=True)}")
    for line in words(receipt):
        typer.echo(f"  {line}")
    if receipt.get("candidates"):
        _show_candidates(receipt["candidates"])
    for line in absent:
        typer.echo(line)
    if entries:
        typer.echo("what the control plane had done:")
        if len(entries) > _SHOWN:
            when = clock_text(arrived, day=True).replace(" ", "T")
            typer.echo(f"  {len(entries) - _SHOWN} entries more: modelless history --at {when}")
        for line in entry_lines(entries[-_SHOWN:], arrived):
            typer.echo(f"  {line}")


def _find(home: Path, receipt_id: str) -> dict[str, Any]:
    from modelless.controller.history.receipts import find_receipt, gateway_of, receipts_folder

    door = home / "run" / "doors" / f"{gateway_of(receipt_id)}.door"
    found = _ask_gateway(door, receipt_id) or find_receipt(receipts_folder(home), receipt_id)
    if found is None:
        raise NotFoundError(
            f"no receipt {receipt_id!r} was kept: of many queries a sample is "
            "(history.receipts_per_s), and the oldest go (history.receipts_max_bytes); "
            "'modelless why' lists the last ones"
        )
    return found


def _ask_gateway(door: Path, receipt_id: str) -> dict[str, Any] | None:
    """What the gateway itself remembers; None if it is gone or does not."""
    connection = http.client.HTTPConnection("localhost", timeout=_TIMEOUT_S)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(_TIMEOUT_S)
            link.connect(str(door))
            connection.sock = link
            connection.request("GET", f"/modelless/receipts/{receipt_id}")
            reply = connection.getresponse()
            found = json.loads(reply.read())
    except (OSError, ValueError, http.client.HTTPException):
        return None
    return found if reply.status == 200 else None


def _context(home: Path, receipt: Mapping[str, Any]) -> tuple[list[Any], list[str]]:
    from modelless.controller.history.why import context_of
    from modelless.variants.registry.registry import open_registry

    try:
        with closing(open_registry(home)) as registry:
            return context_of(registry.store, receipt)
    except StoreError as error:
        say(f"without history: {error}")
        return [], []


def _show_candidates(candidates: Sequence[Mapping[str, Any]]) -> None:
    show_table(
        ["candidate", "device", "accuracy", "p50 ms", "p99 ms", "wait ms", "USD", "it"],
        [
            (
                row["variant"],
                row["device_class"],
                f"{row['accuracy']:.1f}",
                _number(row["p50_ms"]),
                _number(row["p99_ms"]),
                _number(row["wait_ms"]),
                "-" if row["cost_usd"] is None else f"{row['cost_usd']:.3g}",
                "was chosen" if row["chosen"] else ", ".join(row["misses"]) or "would do",
            )
            for row in candidates
        ],
        title="what there was to choose from, as it was estimated then",
        right=range(2, 7),
        whole=0,
    )


def _list(receipts: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    if as_json:
        emit({"receipts": list(receipts)})
        return
    if not receipts:
        typer.echo("no receipts were kept yet, or none so old")
        return
    from modelless.controller.history.words import reason_text

    show_table(
        ["receipt", "asked at", "for", "outcome", "variant", "ms", "why"],
        [
            (
                row["receipt_id"],
                clock_text(datetime.fromisoformat(row["arrived_at"])),
                row["scope"],
                row["outcome"],
                row["variant"] or "",
                _number(row["observed_latency_ms"]),
                reason_text(row["reason"]),
            )
            for row in receipts
        ],
        right=[5],
        whole=0,
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
