"""Clients that keep a cluster under load and note what came of every query."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException

import numpy as np
import pytest

from modelless.controller.usecases.client import encode_infer
from modelless.variants.vocabulary import SLO

from .running import Running

PINNED = "fashion-mnist/cnn-xl/int8-28"
"""What both gateways of the shared cluster hold from the beginning."""
IMAGE = np.random.default_rng(0).integers(0, 255, (1, 28, 28), np.uint8)
QUERY = encode_infer("fashion-mnist", {"image": IMAGE}, SLO(latency_ms=8000.0, min_accuracy=90.0))


def wait_until(condition: Callable[[], bool], most_s: float) -> None:
    """Until it is so; a server that does not answer yet is not there yet."""
    end_s = time.monotonic() + most_s
    while time.monotonic() < end_s:
        try:
            if condition():
                return
        except (OSError, HTTPException):
            pass
        time.sleep(0.1)
    pytest.fail(f"not so after {most_s:.0f} s")


def ask(
    running: Running, name: str, patience_s: float = 30.0, latency_ms: float = 20_000.0
) -> None:
    """Have one query answered; what nothing holds is loaded meanwhile, where the policy does so."""
    query = encode_infer(name, {"image": IMAGE}, SLO(latency_ms=latency_ms))
    connection = HTTPConnection(running.address, timeout=patience_s)
    connection.request("POST", query.path, query.body, dict(query.headers))
    reply = connection.getresponse()
    assert reply.status == 200, reply.read()
    connection.close()


class Clients:
    """A few clients that ask one query after another; a broken connection is opened anew.

    Attributes:
        outcomes: HTTP statuses; ``broken`` for a query whose connection broke, ``closed`` for one
            that could not be sent: nobody listened.
    """

    def __init__(self, running: Running, count: int = 3) -> None:
        self.outcomes: Counter[str] = Counter()
        self._address = running.address
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._ask_on) for _ in range(count)]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        wait_until(lambda: self.outcomes["200"] > 20, 30.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(30.0)
            assert not thread.is_alive(), "a query hangs"

    def answered_again(self, more: int = 30, most_s: float = 30.0) -> None:
        """Wait until that many further queries are answered."""
        wanted = self.outcomes["200"] + more
        wait_until(lambda: self.outcomes["200"] >= wanted, most_s)

    def _ask_on(self) -> None:
        connection = HTTPConnection(self._address, timeout=25)
        while not self._stopping.is_set():
            try:
                connection.request("POST", QUERY.path, QUERY.body, dict(QUERY.headers))
                reply = connection.getresponse()
                reply.read()
                self.outcomes[str(reply.status)] += 1
            except ConnectionRefusedError:
                self.outcomes["closed"] += 1
                connection.close()
                time.sleep(0.01)
            except (OSError, HTTPException):
                self.outcomes["broken"] += 1
                connection.close()
                time.sleep(0.1)  # a dying process closes its connections before it stops listening
        connection.close()
