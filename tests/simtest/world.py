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
from collections.abc import Callable, Generator, Iterable
from enum import Enum
from functools import partial
from typing import Any

EPOCH_S = 1_700_000_000.0
_SETS = re.compile(r"(?:frozenset\()?\{([^{}:]*)\}\)?")

Respond = Callable[[Any], None]
Task = Generator[Any, Any, None]


class Violation(Exception):
    """An invariant does not hold."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class GoneError(Exception):
    """The process that was called is dead."""


class LateError(Exception):
    """No reply came in time."""


class Timer:
    """A planned event; ``cancel`` drops it."""

    def __init__(self, action: Callable[[], object]) -> None:
        self.action: Callable[[], object] | None = action

    def cancel(self) -> None:
        self.action = None


class World:
    """The clock, the trace and the random streams of one run.

    Args:
        seed: of all random streams.
        clocks_differ: whether each process has clocks of its own.
        keep: lines of the trace that are kept for people.
        hashes: whether the trace is hashed.
    """

    def __init__(self, seed: str, clocks_differ: bool, keep: int, hashes: bool) -> None:
        self.seed, self.clocks_differ = seed, clocks_differ
        self.now_s = 0.0
        self.processes: dict[str, Process] = {}
        self.injected: Counter[str] = Counter()
        self.effects: Counter[str] = Counter()
        self.lines: deque[str] = deque(maxlen=keep)
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
        self, delay_s: float, action: Callable[[], object], process: Process | None = None
    ) -> Timer:
        """Do something after a delay, in a process or outside all."""
        self._count += 1
        timer = Timer(action)
        heapq.heappush(self._events, (self.now_s + delay_s, self._count, process, timer))
        return timer

    def spawn(self, task: Task, process: Process | None = None) -> None:
        """Run a task, which yields for how many seconds it sleeps, or what calls for a result."""

        def go_on(result: object = None) -> None:
            try:
                wanted = task.send(result)
            except StopIteration:
                return
            if callable(wanted):
                wanted(go_on)
            else:
                self.plan(wanted, go_on, process)

        go_on()

    def run(self, until_s: float) -> None:
        """Let time pass."""
        events = self._events
        while events and events[0][0] <= until_s:
            at_s, count, process, timer = heapq.heappop(events)
            if timer.action is None or (process is not None and not process.is_alive):
                continue
            if process is not None and process.hung_until_s > at_s:
                heapq.heappush(events, (process.hung_until_s, count, process, timer))
                continue
            self.now_s = at_s
            timer.action()
        self.now_s = until_s

    def note(self, who: str, event: object, effects: Iterable[object] = ()) -> None:
        """Put an event and its effects into the trace."""
        done = [*effects]
        for effect in done:
            kinds = (getattr(effect, each, None) for each in ("kind", "step", "reason"))
            more = next((kind for kind in kinds if isinstance(kind, Enum)), "")
            self.effects[f"{type(effect).__name__} {more}".strip()] += 1
        if not self.lines.maxlen and self._hash is None:
            return
        text = f"{self.now_s:.6f} {who} {event!r} {done!r}"
        text = _SETS.sub(lambda found: f"{{{', '.join(sorted(found[1].split(', ')))}}}", text)
        if self._hash is not None:
            self._hash.update(text.encode())
        self.lines.append(text)

    def fail(self, name: str, message: object) -> None:
        """Raise a ``Violation``."""
        raise Violation(name, f"at {self.now_s:.3f} s: {message}")


class Process:
    """One run of one process, from its start to its end; a restart makes a new one."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.is_alive, self.started_s, self.ended_s = True, world.now_s, 0.0
        self.slow = 1.0  # how many times as long its engines take
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
        return self.world.plan(max(delay_s, 0.0), action, self)

    def spawn(self, task: Task) -> None:
        """Run a task in the process."""
        self.world.spawn(task, self)

    def hang(self, length_s: float) -> None:
        """Do nothing for some seconds."""
        now_s = self.world.now_s
        if self.hung_until_s <= now_s:
            self.hung_from_s = now_s
        self.hung_until_s = max(self.hung_until_s, now_s + length_s)

    def end(self) -> None:
        """Crash, or leave: callers learn of it, each after a while."""
        self.is_alive, self.ended_s = False, self.world.now_s
        del self.world.processes[self.name]
        for call in self.calls:
            call.break_off()
        self.calls = {}


class Call:
    """A call of one process by another. It ends once at the caller, whatever the network does: with
    a result or an exception."""

    def __init__(
        self,
        caller: Process,
        callee: str,
        method: str,
        arguments: tuple[Any, ...],
        reply: Respond,
        patience_s: float,
    ) -> None:
        self._world = caller.world
        self._caller, self._callee, self._reply = caller, callee, reply
        self._is_open = True
        late = LateError(f"{callee} does not answer")
        self._timer = caller.after(patience_s, partial(self.end, late))
        delays = self._world.network.journeys(caller.name, callee)
        # A report arrives once at most, as Ray promises of an actor's methods that are not retried.
        for delay_s in delays[:1] if method == "exchange" else delays:
            self._world.plan(delay_s, partial(self._arrive, method, arguments))

    def _arrive(self, method: str, arguments: tuple[Any, ...]) -> None:
        process: Any = self._world.processes.get(self._callee)
        if process is None:
            self.break_off()
            return
        if self._is_open:
            process.calls[self] = None
        process.after(0.0, partial(process.answer, method, arguments, self.respond))

    def respond(self, result: object) -> None:
        """Send the result back."""
        for delay_s in self._world.network.journeys(self._callee, self._caller.name):
            self._caller.after(delay_s, partial(self.end, result))

    def break_off(self) -> None:
        """The callee is dead: the caller learns of it after the time that this takes."""
        delay_s = self._world.network.detect_s()
        self._caller.after(delay_s, partial(self.end, GoneError(self._callee)))

    def end(self, result: object) -> None:
        """Hand the result to the caller, unless it has one."""
        if not self._is_open:
            return
        self._is_open = False
        self._timer.cancel()
        callee = self._world.processes.get(self._callee)
        if callee is not None:
            callee.calls.pop(self, None)
        self._reply(result)


class Network:
    """Carries messages, each with a delay of its own, or not at all.

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
        self.cut: Counter[frozenset[str]] = Counter()
        self.lost_s: defaultdict[str, float] = defaultdict(lambda: -1e9)

    def detect_s(self) -> float:
        """Return the time until a caller learns that a process is dead."""
        return self._rng.choice((0.0, 0.01, 0.2, 1.0))

    def journeys(self, sender: str, receiver: str) -> list[float]:
        """Return the delay of each copy of a message that arrives, seconds."""
        rng, injected = self._rng, self.world.injected
        if self.cut[frozenset((sender, receiver))] > 0 or rng.random() < self.loss:
            injected["lost message"] += 1
            self.lost_s[sender] = self.lost_s[receiver] = self.world.now_s
            return []
        copies = 1 + (rng.random() < self.repeat)
        injected["repeated message"] += copies - 1
        delays = []
        for _ in range(copies):
            delay_s = self.hop_s * rng.uniform(0.5, 1.5)
            if rng.random() < self.spike:
                injected["late message"] += 1
                delay_s += rng.uniform(0.0, 0.5)
            delays.append(delay_s)
        return delays
