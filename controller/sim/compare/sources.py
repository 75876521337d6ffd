"""A digest of the code and the files of data on which a run's figures depend.

A kept run must not outlive the code that made it, or somebody tunes a policy and is shown the
figures of the one before. Hashing the whole package would be safe, but then a change to one policy
would throw away the runs of all others. So a module counts if it is imported, however indirectly,
by what is named.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from modelless.controller.sim.worlds.arrivals import TRACES
from modelless.policies.discovery import POLICIES


class Sources:
    """Digests of code and data, each reckoned once in the life of this object."""

    def __init__(self) -> None:
        self._module, self._content = cache(_read), cache(_content)
        self._known = cache(self._digest)

    def digest(self, modules: Iterable[str], data: Iterable[Path] = ()) -> str:
        """Of the source of ``modules``, of all they import from their own packages, and of
        ``data``. A module that cannot be found counts by its name."""
        return self._known(frozenset(modules), frozenset(data))

    def _digest(self, modules: frozenset[str], data: frozenset[Path]) -> str:
        hashed = hashlib.sha256()
        for name in sorted(self._closure(modules)):
            module = self._module(name)
            hashed.update(f"{name}\0{module[1] if module else ''}\0".encode())
        for path in sorted(data):
            hashed.update(f"{path.name}\0{self._content(path)}\0".encode())
        return hashed.hexdigest()[:16]

    def _closure(self, roots: frozenset[str]) -> set[str]:
        packages = {name.partition(".")[0] for name in roots}
        seen: set[str] = set()
        left = list(roots)
        while left:
            name = left.pop()
            module = self._module(name)
            if name not in seen and module is not None:
                seen.add(name)
                left += [each for each in module[0] if each.partition(".")[0] in packages]
        return seen | roots


def policy_modules(document: Any) -> set[str]:
    """The modules of the policies named anywhere in a document, such as a world's ``policies``."""
    if isinstance(document, dict):
        return {module for value in document.values() for module in policy_modules(value)}
    if isinstance(document, list | tuple):
        return {module for value in document for module in policy_modules(value)}
    return _homes(document) if isinstance(document, str) else set()


def arrival_modules(queries: Iterable[Any]) -> set[str]:
    """The modules of the kinds of arrivals in a world's ``queries``."""
    return {TRACES.path(each["arrivals"]["kind"]).partition(":")[0] for each in queries}


def data_files(document: Any, folder: Path) -> set[Path]:
    """The files that a world's document names under ``path``, relative to its ``folder``."""
    if isinstance(document, list | tuple):
        return {path for value in document for path in data_files(value, folder)}
    if not isinstance(document, dict):
        return set()
    found = set()
    for key, value in document.items():
        if key == "path":
            names = value if isinstance(value, list | tuple) else [value]
            found |= {folder / name for name in names if isinstance(name, str)}
        else:
            found |= data_files(value, folder)
    return found


def _homes(name: str) -> set[str]:
    """The modules of every policy of that name."""
    paths = {known.path(name) for known in POLICIES.values()}
    return {path.partition(":")[0] for path in paths if ":" in path}


def _read(name: str) -> tuple[tuple[str, ...], str] | None:
    """The imports of a module, and its digest; None if it is no module in Python."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError, AttributeError):  # (an attribute, not a module)
        return None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    text = Path(spec.origin).read_bytes()
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return (), hashlib.sha256(text).hexdigest()
    package = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
    return tuple(_imports(tree, package)), hashlib.sha256(text).hexdigest()


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    """Names that a module imports, wherever it does; some are modules, others what is in them."""
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            left += node.orelse  # what only type checkers read does not run
            continue
        left += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: 1 - node.level or None] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _content(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
