"""Keys: who asks, for which tenant, and what the bearer may do.

A key is 256 random bits. Its SHA-256 is kept and not the key: nobody can guess so many bits, so a
slow hash, which is for passwords, would only cost each query milliseconds. A key is found by its
digest in a dictionary, and the digests are compared in constant time once more.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Final

from modelless.common.errors import InvalidInputError, ModellessError
from modelless.variants.vocabulary import check_name

SCOPES: Final = ("infer", "feedback", "operate", "admin")
"""What a key may be for: queries and metadata; feedback; status and metrics; all of these."""

_PREFIX: Final = "mk_"
_AUTHORIZATION: Final = b"authorization"


class UnauthorizedError(ModellessError):
    """No key, or none that is valid."""

    http_status: ClassVar[int] = 401
    exit_code = 11


class ForbiddenError(ModellessError):
    """A key that is valid, but not for this."""

    http_status: ClassVar[int] = 403
    exit_code = 11


@dataclass(frozen=True, slots=True)
class Key:
    """A key, without the key itself.

    Attributes:
        key_id: names it, for people.
        tenant: of its bearer.
        scopes: of ``SCOPES``.
        max_priority: the highest priority that its bearer's queries may have.
        sha256: of the key, in hexadecimal digits.
        created_at, expires_at, revoked_at: seconds since the epoch; None for never.
    """

    key_id: str
    tenant: str
    scopes: tuple[str, ...]
    max_priority: int
    sha256: str
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None

    def __post_init__(self) -> None:
        check_name("--tenant", self.tenant)
        for scope in self.scopes:
            if scope not in SCOPES:
                raise InvalidInputError.of("--scope", scope, ", ".join(SCOPES))
        if not self.scopes:
            raise InvalidInputError.of("--scope", "", ", ".join(SCOPES))
        if not 0 <= self.max_priority <= 9:
            raise InvalidInputError.of("--max-priority", self.max_priority, "0 to 9")

    @property
    def is_admin(self) -> bool:
        """Whether it is for everything."""
        return "admin" in self.scopes

    def allows(self, scope: str) -> bool:
        """Whether it is for this."""
        return self.is_admin or scope in self.scopes

    def problem(self, now: float) -> str:
        """Return why it does not count at this time, seconds since the epoch; empty if it does."""
        if self.revoked_at is not None:
            return "was revoked"
        return "has expired" if now >= (self.expires_at or math.inf) else ""

    def revoked(self, now: float) -> Key:
        """Return the key as revoked; a time of an earlier revocation stays."""
        return self if self.revoked_at is not None else replace(self, revoked_at=now)


def make_key(
    tenant: str, scopes: Sequence[str], max_priority: int, now: float, lasts_s: float | None
) -> tuple[Key, str]:
    """Return a new key, and the secret that its bearer sends. It is not kept anywhere.

    Args:
        tenant: of its bearer.
        scopes: of ``SCOPES``.
        max_priority: 0 to 9.
        now: seconds since the epoch.
        lasts_s: until it expires, seconds; None for never.

    Raises:
        InvalidInputError: an argument is out of range.
    """
    secret = _PREFIX + secrets.token_urlsafe(32)
    expires_at = None if lasts_s is None else now + lasts_s
    digest = hashlib.sha256(secret.encode()).hexdigest()
    key_id = secrets.token_hex(4)
    return Key(key_id, tenant, tuple(scopes), max_priority, digest, now, expires_at), secret


def secret_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the secret that a request bears.

    Raises:
        UnauthorizedError: it has none, or more than one.
    """
    given = [value for name, value in headers if name == _AUTHORIZATION]
    kind, _, secret = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
    if kind.lower() != b"bearer":
        raise UnauthorizedError(
            "authorization: got no key; allowed: one header 'Authorization: Bearer KEY'. "
            "'modelless key create' makes a key."
        )
    return secret.strip().decode("latin-1")


class KeyRing:
    """The keys of a home.

    Args:
        keys: all of them, also those that count no more. Once there was one, each request needs
            one: a home does not open again when its last key expires.
    """

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self.keys = tuple(keys)
        self._by_digest = {bytes.fromhex(key.sha256): key for key in self.keys}

    @property
    def is_needed(self) -> bool:
        """Whether requests need a key."""
        return bool(self.keys)

    def find(self, headers: Iterable[tuple[bytes, bytes]], now: float) -> Key:
        """Return the key that a request bears.

        Args:
            headers: of the request, names in lower case.
            now: seconds since the epoch.

        Raises:
            UnauthorizedError: it has none, or one that does not count.
        """
        digest = hashlib.sha256(secret_of(headers).encode("latin-1")).digest()
        key = self._by_digest.get(digest)
        if key is None or not hmac.compare_digest(digest, bytes.fromhex(key.sha256)):
            raise UnauthorizedError(
                "authorization: the key is unknown; 'modelless key list' shows all"
            )
        problem = key.problem(now)
        if problem:
            raise UnauthorizedError(
                f"authorization: the key {key.key_id} {problem}; 'modelless key create' makes one"
            )
        return key


def check_scope(key: Key, scope: str) -> None:
    """Raise ForbiddenError if the key is not for this."""
    if not key.allows(scope):
        raise ForbiddenError(
            f"scope: the key {key.key_id} is for {', '.join(key.scopes)}; this needs {scope}. "
            f"'modelless key create --tenant {key.tenant} --scope {scope}' makes one."
        )


def keys_document(keys: Iterable[Key]) -> dict[str, Any]:
    """The keys as plain data."""
    return {"version": 1, "keys": [asdict(key) for key in keys]}


def read_keys_document(document: Mapping[str, Any]) -> tuple[Key, ...]:
    """The keys of such a document.

    Raises:
        InvalidInputError: it is none.
    """
    try:
        if document["version"] != 1:
            raise ValueError("version")
        return tuple(Key(**{**each, "scopes": tuple(each["scopes"])}) for each in document["keys"])
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(f"keys: not a file of keys ({error!r})") from None
