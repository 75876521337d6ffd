"""The end of a receipt's id that nobody can guess, and that only its owner's key fits."""

from __future__ import annotations

import hashlib
import hmac
import secrets


class ReceiptTags:
    """Makes and checks the tags of one gateway's receipts.

    Args:
        secret: of the gateway; new ones are made for each process.
    """

    def __init__(self, secret: bytes = b"") -> None:
        self._secret = secret or secrets.token_bytes(32)

    def tag(self, query_id: int, owner: str) -> str:
        """Return the tag, 24 hexadecimal digits.

        Args:
            query_id: of the receipt.
            owner: the tenant whose key the query bore; empty where there are no keys.
        """
        text = f"{query_id}/{owner}".encode()
        return hashlib.blake2b(text, digest_size=12, key=self._secret).hexdigest()

    def fits(self, query_id: int, owner: str, tag: str) -> bool:
        """Whether it is the tag of this owner's receipt."""
        return hmac.compare_digest(self.tag(query_id, owner), tag)
