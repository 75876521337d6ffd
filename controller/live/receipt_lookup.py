"""Finds a query's receipt: asks the gateway that has it, then reads the receipts on disk."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from typing import Any, Final

from modelless.common.errors import NotFoundError
from modelless.controller.history.receipts import find_receipt, gateway_of, receipts_folder
from modelless.controller.live.haproxy.configuration import OF_SOCKET, OPERATORS_HEADER

_TIMEOUT_S: Final = 5.0


def look_up_receipt(home: Path, receipt_id: str) -> dict[str, Any]:
    """Return the receipt of a query, also of one that is not over. Blocks.

    Raises:
        NotFoundError: it was not kept.
        InvalidInputError: it is no receipt's id.
    """
    socket_path = home / "run" / "sockets" / f"{gateway_of(receipt_id)}.sock"
    found = _ask_gateway(socket_path, receipt_id) or find_receipt(receipts_folder(home), receipt_id)
    if found is None:
        raise NotFoundError(
            f"no receipt {receipt_id!r} was kept: of many queries a sample is "
            "(history.receipts_per_s), and the oldest go (history.receipts_max_bytes); "
            "'modelless why' lists the last ones"
        )
    return found


def _ask_gateway(socket_path: Path, receipt_id: str) -> dict[str, Any] | None:
    """The receipt that the gateway itself holds; None if it is gone or has none."""
    connection = http.client.HTTPConnection("localhost", timeout=_TIMEOUT_S)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(_TIMEOUT_S)
            link.connect(str(socket_path))
            connection.sock = link
            headers = {OPERATORS_HEADER: OF_SOCKET}
            connection.request("GET", f"/modelless/receipts/{receipt_id}", headers=headers)
            reply = connection.getresponse()
            found = json.loads(reply.read())
    except (OSError, ValueError, http.client.HTTPException):
        return None
    return found if reply.status == 200 else None
