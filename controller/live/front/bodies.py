"""Memory for request bodies: a bound on all that one gateway holds, however many clients come."""

from __future__ import annotations

from modelless.common.errors import OverloadedError


class BodyBudget:
    """Bytes that bodies may take together, from their first byte to the answer.

    Args:
        max_bytes: of all of them.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Set so many bytes aside.

        Raises:
            OverloadedError: there are none left.
        """
        if self.used_bytes + size_bytes > self.max_bytes:
            raise OverloadedError(
                f"{self.used_bytes} bytes of queries are being read, wait or run; with "
                f"{size_bytes} more that would be over {self.max_bytes}; try again"
            )
        self.used_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        """They are not needed any more."""
        self.used_bytes -= size_bytes
