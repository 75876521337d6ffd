"""Keys: made at random, kept as hashes, valid for what they say and as long as they say."""

from __future__ import annotations

import json

import pytest

from modelless.common.errors import InvalidInputError
from modelless.controller.api.keys import (
    ForbiddenError,
    Key,
    KeyRing,
    UnauthorizedError,
    check_scope,
    keys_document,
    make_key,
    read_keys_document,
)


def bearer(secret: str) -> list[tuple[bytes, bytes]]:
    return [(b"host", b"h"), (b"authorization", b"Bearer " + secret.encode())]


def made(tenant: str = "shop", *scopes: str, lasts_s: float | None = None) -> tuple[Key, str]:
    return make_key(tenant, scopes or ("infer",), 3, 1000.0, lasts_s)


def test_a_key_opens_and_is_not_kept() -> None:
    (key, secret), (other, other_secret) = made(), made()
    assert secret != other_secret
    assert len(secret) >= 43
    ring = KeyRing([key, other])
    assert ring.find(bearer(secret), 1000.0) is key
    assert ring.find([(b"authorization", b"bearer  " + secret.encode())], 1000.0) is key
    assert secret not in json.dumps(keys_document([key]))
    assert read_keys_document(json.loads(json.dumps(keys_document([key, other])))) == (key, other)


@pytest.mark.parametrize(
    "headers",
    [
        [],
        bearer(""),
        bearer("mk_wrong"),
        [(b"authorization", b"Basic abc")],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"\xff\xfe")],
    ],
)
def test_without_a_valid_one_nothing_opens(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(UnauthorizedError, match=r"^authorization: "):
        KeyRing([made()[0]]).find(headers, 1000.0)


def test_two_keys_are_none() -> None:
    key, secret = made()
    with pytest.raises(UnauthorizedError, match="one header"):
        KeyRing([key]).find(bearer(secret) * 2, 1000.0)


def test_it_ends_when_it_expires_or_is_revoked_and_the_home_stays_closed() -> None:
    key, secret = made(lasts_s=60.0)
    assert KeyRing([key]).find(bearer(secret), 1059.0) is key
    with pytest.raises(UnauthorizedError, match="has expired"):
        KeyRing([key]).find(bearer(secret), 1060.0)
    revoked = key.revoked(1010.0)
    assert revoked.revoked(1020.0) == revoked
    ring = KeyRing([revoked])
    assert ring.is_needed
    with pytest.raises(UnauthorizedError, match="was revoked"):
        ring.find(bearer(secret), 1011.0)


def test_where_there_never_was_one_none_is_asked_for() -> None:
    assert not KeyRing().is_needed


def test_a_key_is_for_what_it_says_and_admin_is_for_all() -> None:
    key, _ = made("shop", "infer", "feedback")
    check_scope(key, "feedback")
    with pytest.raises(ForbiddenError, match=r"is for infer, feedback; this needs operate"):
        check_scope(key, "operate")
    for scope in ("infer", "feedback", "operate"):
        check_scope(made("ops", "admin")[0], scope)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("Shop!", ("infer",), 0), "--tenant"),
        (("shop", ("root",), 0), "--scope: got 'root'; allowed: infer, feedback"),
        (("shop", (), 0), "--scope"),
        (("shop", ("infer",), 10), "--max-priority: got 10"),
    ],
)
def test_nonsense_is_refused(arguments: tuple[str, tuple[str, ...], int], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        make_key(*arguments, 0.0, None)


@pytest.mark.parametrize("document", [{}, {"version": 2, "keys": []}, {"version": 1, "keys": [{}]}])
def test_a_damaged_file_is_an_error_and_not_an_open_door(document: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError, match="not a file of keys"):
        read_keys_document(document)
