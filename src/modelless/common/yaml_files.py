"""YAML files as people write them, read so that none can do harm or be misunderstood.

PyYAML takes the last of two equal keys, and an alias stands for all that it names: a few hundred
bytes of aliases to aliases are gigabytes to whoever walks them (the "billion laughs"). Here the
first is an error, and so is what would be too large written out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from modelless.common.errors import InvalidInputError

MOST_BYTES: Final = 16 * 2**20
"""Of a file; it takes PyYAML about a minute."""

MOST_NODES: Final = 1_000_000
"""Values in a file with every alias written out."""

_MERGE: Final = "tag:yaml.org,2002:merge"


class _Unfit(ValueError):
    """A fault that YAML parsers accept, and modelless refuses."""


def read_yaml(field: str, path: Path) -> Any:
    """The content of a YAML file; its fields are not checked.

    Args:
        field: what the file is, for errors: ``config``, ``recipe``, ``world``.

    Raises:
        InvalidInputError: no such file, not YAML, too large, the same key twice.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise InvalidInputError.of(field, str(path), "a readable YAML file", str(error)) from None
    if len(data) > MOST_BYTES:
        allowed = f"a YAML file of at most {MOST_BYTES // 2**20} MiB"
        raise InvalidInputError.of(field, str(path), allowed, "Put long lists into CSV files.")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{field} {path}: not YAML: {error}") from None
    return parse_yaml(f"{field} {path}", text)


def parse_yaml(source: str, text: str, *, allows_aliases: bool = True) -> Any:
    """The content of YAML text. ``source`` begins the errors, which are those of ``read_yaml``.

    Args:
        allows_aliases: false for a stranger's text: one long text that many aliases stand for is
            within ``MOST_NODES``, and gigabytes written out.
    """
    try:
        return _document(text, allows_aliases)
    except _Unfit as error:
        raise InvalidInputError(f"{source}: {error}") from None
    except (yaml.YAMLError, ValueError) as error:  # dates and whole numbers raise ValueError
        said = " ".join(str(error).split())
        raise InvalidInputError(f"{source}: not YAML: {said}") from None
    except (LookupError, AttributeError):  # what PyYAML raises of "!!bool maybe" or "!!int ''"
        raise InvalidInputError(f"{source}: not YAML: a value does not fit its tag") from None
    except RecursionError:
        raise InvalidInputError(f"{source}: lists or mappings nested too deep") from None


def _document(text: str, allows_aliases: bool) -> Any:
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        sizes: dict[int, int] = {}
        size = _size(node, sizes)
        if size > MOST_NODES:
            raise _Unfit(f"more than {MOST_NODES:,} values, aliases written out")
        if size > len(sizes) and not allows_aliases:  # a node was met again
            raise _Unfit("an alias; write out what it stands for")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Values in a node with aliases written out; each node is looked at once."""
    known = sizes.get(id(node))
    if known is not None:
        if not known:
            raise _Unfit(f"{_place(node)}: a value that contains itself")
        return known
    sizes[id(node)] = 0  # it is being looked at
    total = 1 + sum(_size(child, sizes) for child in _children(node))
    sizes[id(node)] = total
    return total


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        seen: dict[tuple[str, str], str] = {}
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:  # "<<" may be there again
                name = (key.tag, key.value)
                if name in seen:
                    raise _Unfit(f"{_place(key)}: {key.value!r} is there already, on {seen[name]}")
                seen[name] = _place(key)
            yield key
            yield value
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value


def _place(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}"
