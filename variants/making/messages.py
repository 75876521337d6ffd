"""Messages of a maker that takes long, such as how many steps of training are done.

They go through a context variable, so that the seam of makers, most of which are quick, has no
argument for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_RECEIVER: Final[ContextVar[Callable[[str], None] | None]] = ContextVar("receiver", default=None)


@contextmanager
def receive_messages(receiver: Callable[[str], None]) -> Iterator[None]:
    """Call ``receiver`` with each message that a maker sends within the block."""
    token = _RECEIVER.set(receiver)
    try:
        yield
    finally:
        _RECEIVER.reset(token)


def send_message(message: str) -> None:
    """Send a message to the receiver, if there is one."""
    receiver = _RECEIVER.get()
    if receiver is not None:
        receiver(message)
