"""Calls a policy in another process, to find dependence on hashes, addresses or globals."""

from __future__ import annotations

import atexit
import inspect
import pickle
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from modelless.policies.testing.plain import freeze, plain

Question = tuple[str, tuple[Any, ...]]
"""The name of a hook and the arguments of a call."""

# A test's own module may be importable in this process only. The folder that its dotted name starts
# from is added to the path.
_CHILD = """
import importlib, pathlib, pickle, sys, traceback
channel, sys.stdout = sys.stdout.buffer, sys.stderr
while True:
    try:
        path, name, file, question = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    try:
        sys.path[:] = path
        parts, found = tuple(name.split(".")), pathlib.Path(file).resolve()
        if found.with_suffix("").parts[-len(parts):] == parts:
            sys.path.append(str(found.parents[len(parts) - 1]))
        importlib.import_module(name)
        from modelless.policies.testing.process import answers
        reply = True, answers(*pickle.loads(question))
    except Exception:
        reply = False, traceback.format_exc()
    pickle.dump(reply, channel)
    channel.flush()
"""
_children: list[subprocess.Popen[bytes]] = []  # at most one, for all policies: it starts slowly


def answers(policy: Any, questions: Sequence[bytes]) -> list[Any]:
    """Returns the policy's answers to one call after the other, in plain form.

    Args:
        policy: the policy itself, not a copy of it.
        questions: pickled ``Question``s; each is unpickled anew, generators included.
    """
    told = []
    for question in questions:
        hook, arguments = pickle.loads(question)  # noqa: S301  (our own)
        told.append(plain(getattr(policy, hook)(*freeze(arguments))))
    return told


def answers_elsewhere(policy: Any, questions: Sequence[bytes]) -> list[Any]:
    """Returns the same answers from another interpreter, whose strings hash differently.

    Raises:
        RuntimeError: the policy cannot answer there; the message says why.
    """
    kind = type(policy)
    asked = pickle.dumps((policy, questions))
    child = _child()
    try:
        assert child.stdin is not None  # noqa: S101  (they are pipes)
        assert child.stdout is not None  # noqa: S101
        pickle.dump((sys.path, kind.__module__, inspect.getfile(kind), asked), child.stdin)
        child.stdin.flush()
        succeeded, told = pickle.load(child.stdout)  # noqa: S301  (our own)
    except (EOFError, BrokenPipeError):
        _stop()
        succeeded, told = False, "the other process died"
    if not succeeded:
        raise RuntimeError(
            f"{kind.__qualname__} could not answer in another process; its class must be "
            f"importable from {kind.__module__!r}:\n{told}"
        )
    answered: list[Any] = told
    return answered


def _child() -> subprocess.Popen[bytes]:
    if not _children:
        _children.append(
            subprocess.Popen(
                [sys.executable, "-I", "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        )
        atexit.register(_stop)
    return _children[0]


def _stop() -> None:
    while _children:
        child = _children.pop()
        child.communicate()  # its input ends, and so does it
