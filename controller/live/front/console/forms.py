"""Forms of the console: their fields, and the token that only the console's own pages know.

A page that acts sets a cookie that no other site's page can read or send (``SameSite=Strict``), and
has the same token in its form (double submit). A form that some other page sends lacks one of them.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qs, urlsplit

from modelless.common.errors import InvalidInputError
from modelless.controller.api.keys import ForbiddenError
from modelless.controller.api.v2_headers import find_header
from modelless.controller.api.v2_reply import Headers

COOKIE: Final = "modelless-console"
MOST_FORM_BYTES: Final = 64 * 1024
_MOST_FIELDS: Final = 64


def read_form(text: bytes) -> dict[str, str]:
    """The first value of each field of a form, or of a query string.

    Raises:
        InvalidInputError: it is too large, or has too many fields.
    """
    if len(text) > MOST_FORM_BYTES:
        raise InvalidInputError.of("form: bytes", len(text), f"up to {MOST_FORM_BYTES}")
    try:
        found = parse_qs(text.decode("ascii", "replace"), keep_blank_values=True,
                         max_num_fields=_MOST_FIELDS)  # fmt: skip
    except ValueError:
        raise InvalidInputError.of("form", "", f"at most {_MOST_FIELDS} fields") from None
    return {name: values[0] for name, values in found.items()}


def with_key(headers: Headers, form: Mapping[str, str]) -> Headers:
    """The headers with the key that the form has, if it has one."""
    key = form.get("key", "").strip()
    if not key.isascii() or not key.isprintable() or not key:
        return headers
    return [*headers, (b"authorization", f"Bearer {key}".encode())]


def bearer_of(headers: Headers, form: Mapping[str, str]) -> str:
    """The key in the headers or the form; empty if there is none."""
    found = find_header(with_key(headers, form), b"authorization") or b""
    kind, _, key = found.partition(b" ")
    return key.strip().decode("latin-1") if kind.lower() == b"bearer" else ""


def token_of(headers: Headers) -> str:
    """The token of the browser that sends these headers; a new one if it has none."""
    found = _cookie(headers)
    return found if len(found) == 43 and found.isascii() else secrets.token_urlsafe(32)


def set_token(token: str) -> tuple[bytes, bytes]:
    """The header that gives the browser its token."""
    return b"set-cookie", f"{COOKIE}={token}; Path=/console; HttpOnly; SameSite=Strict".encode()


def check_token(headers: Headers, form: Mapping[str, str]) -> None:
    """Refuse a form that no page of this console has sent.

    Raises:
        ForbiddenError: the token is missing or another one, or the form is of another origin.
    """
    told = {name: value.decode("latin-1") for name, value in headers}
    origin, host = told.get(b"origin"), told.get(b"host", "")
    is_own = origin is None or urlsplit(origin).netloc == host
    cookie = _cookie(headers)
    if not is_own or not cookie or not hmac.compare_digest(
        cookie.encode(), form.get("token", "").encode()
    ):  # fmt: skip
        raise ForbiddenError("token: this form is not of a page of this console; load it again.")


def _cookie(headers: Headers) -> str:
    for name, value in headers:
        if name == b"cookie":
            for part in value.decode("latin-1").split(";"):
                key, _, text = part.strip().partition("=")
                if key == COOKIE:
                    return text
    return ""
