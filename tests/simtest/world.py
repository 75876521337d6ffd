"""The virtual clock, the processes on it, and the network between them.

Everything happens as an event on one heap. A process that has crashed loses its events, one that
hangs gets them when it goes on. Nothing here depends on the hash seed, the wall clock or a global
random generator, so a seed always gives the same run.
"""

from __future__ import annotations

import hashlib
import heapq
import random
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

EPOCH_S = 1_700_000_000.0
_KINDS = ("kind", "step", "reason")
_SETS = re.compile(r"(?:frozenset\()?\{([^{}:]*)\}\)?")


class Violation(Exception):
    """An invariant does not hold.

    Args:
        name: of the invariant.
        message: what was seen, with the virtual time.
    """

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class GoneError(Exception):
    """The process that was called is dead."""


class LateError(Exception):
    """No reply came in time."""


class Timer:
    """A planned event; ``cancel`` drops it."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], object]) -> None:
        self.action: Callable[[], object] | None = action

    def cancel(self) -> None:
        """Drop the event."""
        self.action = None


class Process:
    """One run of one process, from its start to its end; a restart makes a new one.

    Args:
        world: where it lives.
        name: that no other process has.

    Attributes:
        slow: how many times as long its engines take.
        offset_s: its monotonic clock less the world's.
        epoch_offset_s: its wall clock less the true one.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.is_alive, self.started_s, self.ended_s = True, world.now_s, 0.0
        self.slow = 1.0
        self.hung_until_s = self.hung_from_s = -1.0
        rng = world.rng("clock", name)
        self.offset_s = rng.uniform(0.0, 1e6) if world.clocks_differ else 0.0
        self.epoch_offset_s = rng.uniform(-30.0, 30.0) if world.clocks_differ else 0.0
        self.calls: dict[Call, None] = {}  # that it has to answer
        world.processes[name] = self

    @property
    def now_s(self) -> float:
        """Its monotonic clock."""
        return self.world.now_s + self.offset_s

    @property
    def epoch_s(self) -> float:
        """Its wall clock."""
        return EPOCH_S + self.world.now_s + self.epoch_offset_s

    def after(self, delay_s: float, action: Callable[[], object]) -> Timer:
        """Do it after a delay, unless the process is dead by then."""
        return self.world.plan(self.world.now_s + max(delay_s, 0.0), action, self)

    def hang(self, length_s: float) -> None:
        """Do nothing for some seconds."""
        now_s = self.world.now_s
        if self.hung_until_s <= now_s:
            self.hung_from_s = now_s
        self.hung_until_s = max(self.hung_until_s, now_s + length_s)

    @property
    def hangs_s(self) -> float:
        """For how long it has hung now; 0 if it does not."""
        now_s = self.world.now_s
        return now_s - self.hung_from_s if self.hung_until_s > now_s else 0.0

    def end(self) -> None:
        """Crash, or leave: callers learn of it, each after a while."""
        self.is_alive, self.ended_s = False, self.world.now_s
        del self.world.processes[self.name]
        for call in list(self.calls):
            call.break_off()
        self.calls.clear()

    def answer(self, method: str, arguments: tuple[Any, ...], respond: Respond) -> None:
        """Answer a call from another process, now or later."""
        raise NotImplementedError


Respond = Callable[[Any], None]


class World:
    """The clock, the trace and the random streams of one run.

    Args:
        seed: of all random streams.
        clocks_differ: whether each process has clocks of its own.
        keep: lines of the trace that are kept for people.
        hashes: whether the trace is hashed.
    """

    def __init__(self, seed: str, clocks_differ: bool, keep: int, hashes: bool) -> None:
        self.seed = seed
        self.clocks_differ = clocks_differ
        self.now_s = 0.0
        self.processes: dict[str, Process] = {}
        self.injected: Counter[str] = Counter()
        self.effects: Counter[str] = Counter()
        self.lines: deque[str] = deque(maxlen=keep)
        self._keep = keep
        self._hash = hashlib.blake2b(digest_size=16) if hashes else None
        self._events: list[tuple[float, int, Process | None, Timer]] = []
        self._count = 0
        self.network = Network(self)

    @property
    def trace(self) -> str:
        """The hash of all that has happened."""
        return self._hash.hexdigest() if self._hash is not None else ""

    def rng(self, *names: object) -> random.Random:
        """Return a random stream of its own."""
        return random.Random("/".join(map(str, (self.seed, *names))))

    def plan(
        self, at_s: float, action: Callable[[], object], process: Process | None = None
    ) -> Timer:
        """Do something at a time, in a process or outside all."""
        self._count += 1
        timer = Timer(action)
        heapq.heappush(self._events, (at_s, self._count, process, timer))
        return timer

    def run(self, until_s: float) -> None:
        """Let time pass."""
        events = self._events
        while events and events[0][0] <= until_s:
            at_s, count, process, timer = heapq.heappop(events)
            action = timer.action
            if action is None or (process is not None and not process.is_alive):
                continue
            if process is not None and process.hung_until_s > at_s:
                heapq.heappush(events, (process.hung_until_s, count, process, timer))
                continue
            self.now_s = at_s
            action()
        self.now_s = until_s

    def note(self, who: str, event: object, effects: Iterable[object] = ()) -> None:
        """Put an event and its effects into the trace."""
        done = [*effects]
        for effect in done:
            kinds = (getattr(effect, each, None) for each in _KINDS)
            more = next((kind for kind in kinds if isinstance(kind, Enum)), "")
            self.effects[f"{type(effect).__name__} {more}".strip()] += 1
        if not self._keep and self._hash is None:
            return
        text = f"{self.now_s:.6f} {who} {event!r} {done!r}"
        text = _SETS.sub(lambda found: f"{{{', '.join(sorted(found[1].split(', ')))}}}", text)
        if self._hash is not None:
            self._hash.update(text.encode())
        if self._keep:
            self.lines.append(text)

    def fail(self, name: str, message: str) -> None:
        """Raise a ``Violation``."""
        raise Violation(name, f"at {self.now_s:.3f} s: {message}")


class Call:
    """A call from one process to another: it ends once at the caller, whatever the network does."""

    __slots__ = ("_caller", "_fail", "_network", "_reply", "_timer", "callee", "is_open")

    def __init__(
        self,
        network: Network,
        caller: Process,
        callee: str,
        reply: Respond,
        fail: Callable[[Exception], None],
        patience_s: float,
    ) -> None:
        self._network, self._caller, self.callee = network, caller, callee
        self._reply, self._fail = reply, fail
        self.is_open = True
        error = LateError(f"{callee} does not answer")
        self._timer = caller.after(patience_s, lambda: self.end(error))

    def end(self, result: object) -> None:
        """Hand the result to the caller, unless it has one."""
        if not self.is_open:
            return
        self.is_open = False
        self._timer.cancel()
        callee = self._network.world.processes.get(self.callee)
        if callee is not None:
            callee.calls.pop(self, None)
        if isinstance(result, Exception):
            self._fail(result)
        else:
            self._reply(result)

    def break_off(self) -> None:
        """The callee is dead: the caller learns of it after the time that this takes."""
        gone = GoneError(self.callee)
        self._caller.after(self._network.detect_s(), lambda: self.end(gone))

    def respond(self, result: object) -> None:
        """Send the result back."""
        network, caller = self._network, self._caller
        for delay_s in network.journeys(self.callee, caller.name):
            caller.after(delay_s, lambda: self.end(result))


class Network:
    """Carries calls and replies, each with a delay of its own, or not at all.

    Attributes:
        loss, repeat, spike: probabilities that a message is lost, comes twice, or is late.
        cut: pairs of processes that do not reach each other, by name.
        lost_s: when a message to or from a process was lost last, by its name.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self._rng = world.rng("network")
        self.loss = self.repeat = self.spike = 0.0
        self.hop_s = 0.001
        self.spike_s = 0.5
        self.cut: Counter[frozenset[str]] = Counter()
        self.lost_s: defaultdict[str, float] = defaultdict(lambda: -1e9)

    def detect_s(self) -> float:
        """Return the time until a caller learns that a process is dead."""
        return self._rng.choice((0.0, 0.01, 0.2, 1.0))

    def journeys(self, sender: str, receiver: str) -> list[float]:
        """Return the delay of each copy of a message that arrives, seconds."""
        rng, injected = self._rng, self.world.injected
        if self.cut[frozenset((sender, receiver))] or rng.random() < self.loss:
            injected["lost message"] += 1
            self.lost_s[sender] = self.lost_s[receiver] = self.world.now_s
            return []
        copies = 1
        if rng.random() < self.repeat:
            injected["repeated message"] += 1
            copies = 2
        delays = []
        for _ in range(copies):
            delay_s = self.hop_s * rng.uniform(0.5, 1.5)
            if rng.random() < self.spike:
                injected["late message"] += 1
                delay_s += rng.uniform(0.0, self.spike_s)
            delays.append(delay_s)
        return delays

    def call(
        self,
        caller: Process,
        callee: str,
        method: str,
        arguments: tuple[Any, ...],
        reply: Respond,
        fail: Callable[[Exception], None],
        patience_s: float,
    ) -> None:
        """Call another process: either ``reply`` or ``fail`` is called, once.

        A report arrives once at most, as Ray promises of an actor's methods that are not retried.
        """
        call = Call(self, caller, callee, reply, fail, patience_s)
        delays = self.journeys(caller.name, callee)
        for delay_s in delays[:1] if method == "exchange" else delays:
            self.world.plan(
                self.world.now_s + delay_s, lambda: self._arrive(call, method, arguments)
            )

    def _arrive(self, call: Call, method: str, arguments: tuple[Any, ...]) -> None:
        process = self.world.processes.get(call.callee)
        if process is None:
            call.break_off()
            return
        if call.is_open:
            process.calls[call] = None
        process.after(0.0, lambda: process.answer(method, arguments, call.respond))
