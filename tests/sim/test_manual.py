"""The manual's page on the simulator: its tables are the code's, its worlds run."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from modelless.controller.config import PolicySettings
from modelless.controller.sim.log import QUERY_COLUMNS
from modelless.controller.sim.run import simulate
from modelless.controller.sim.worlds.world import World, parse_world

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "simulator.md"
BLOCK = re.compile(r"(<!-- begin: fields of a world -->\n).*?(<!-- end -->)", re.DOTALL)


def sections(kind: Any) -> Iterator[type[BaseModel]]:
    """The sections that a field's type holds, however deep."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    elif get_origin(kind) in (Annotated, Union, types.UnionType, tuple):
        for part in get_args(kind):
            yield from sections(part)


def tables(section: type[BaseModel], place: str, seen: set[type[BaseModel]]) -> Iterator[str]:
    """A table of the section's fields, and those of the sections in it."""
    if section in seen or section is PolicySettings:
        return
    seen.add(section)
    fields = section.model_fields
    kind = fields.get("kind")
    if kind is not None and kind.is_required():
        place += f" of kind `{get_args(kind.annotation)[0]}`"
    yield f"### {place}\n\n{' '.join((section.__doc__ or '').split())}\n"
    yield "| field | default | meaning |\n|---|---|---|"
    for name, field in fields.items():
        if not (name == "kind" and kind is not None and kind.is_required()):
            yield f"| `{name}` | {default(field)} | {field.description or ''} |"
    yield ""
    for name, field in fields.items():
        for inner in sections(field.annotation):
            yield from tables(inner, f"`{name}`", seen)


def default(field: FieldInfo) -> str:
    """A field's default, in short."""
    if field.default_factory is not None:
        return "see there" if list(sections(field.annotation)) else "none"
    if field.default is PydanticUndefined:
        return "**needed**"
    value: Any = field.default
    if value is None or value in ((), ""):
        return "none"
    if isinstance(value, tuple):
        value = list(value)
    return (
        "one of the defaults"
        if isinstance(value, list) and list(sections(field.annotation))
        else f"`{str(value).replace(chr(39), '')}`"
    )


def written() -> str:
    """The page as it should be."""
    text = "\n".join(tables(World, "The world", set()))
    return BLOCK.sub(lambda m: f"{m[1]}{text}\n{m[2]}", PAGE.read_text(encoding="utf-8"))


def test_the_tables_are_the_code_s() -> None:
    assert PAGE.read_text(encoding="utf-8") == written(), "run: python -m tests.sim.test_manual"


def test_every_field_says_what_it_means() -> None:
    bare = [line for line in written().splitlines() if line.startswith("| `") and "|  |" in line]
    assert bare == []


def test_every_column_of_the_log_is_told() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in QUERY_COLUMNS if f"`{name}`" not in text] == []


WORLDS = re.findall(r"^```yml\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.parametrize("text", WORLDS)
def test_worlds_of_the_page_run(text: str, tmp_path: Path) -> None:
    file = parse_world(yaml.safe_load(text), tmp_path)
    short = file.world.model_copy(update={"duration_s": 2.0})
    assert simulate(type(file)(short, tmp_path)).figures()["good"] > 0


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")
