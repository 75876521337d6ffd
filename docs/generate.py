"""Write the tables that come from the code into the pages that hold them.

``python docs/generate.py`` writes them; with ``--check`` it only says which are out of date.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

import typer.main
from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

import modelless
from modelless.common import errors
from modelless.controller.api.keys import ForbiddenError, UnauthorizedError
from modelless.controller.cli.app import app
from modelless.controller.config import Settings
from modelless.controller.live.control.metrics import FAMILIES
from modelless.policies.discovery import BUILT_IN
from modelless.variants.making.maker import MAKERS, find_maker
from modelless.variants.runtimes.engines import ENGINES

ROOT: Final = Path(__file__).parents[1]
_BEGIN: Final = "<!-- begin generated: {} (make docs) -->"
_END: Final = "<!-- end generated -->"
_WORDS: Final = {"str": "text", "int": "whole number", "float": "number", "bool": "true or false"}


def settings_tables() -> str:
    """Every key of the settings file, a table a section."""
    return "\n".join(_sections(Settings, ""))


def policy_tables() -> str:
    """Every built-in policy with its settings, a table a seam."""
    parts = []
    for seam, known in BUILT_IN.items():
        lines = [f"### {seam.__name__}", "", _sentence(seam), ""]
        rows = (_policy_row(name, path) for name, path in sorted(known.items()))
        lines += _table(("policy", "what it does", "settings"), rows)
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def maker_table() -> str:
    """Every built-in maker of variants with its settings."""
    rows = (_maker_row(name) for name in MAKERS.built_in)
    return "\n".join(_table(("maker", "what it does", "settings"), rows))


def command_table() -> str:
    """Every command with the first sentence of its help."""
    rows = ((f"`modelless {name}`", _sentence(command)) for name, command in commands().items())
    return "\n".join(_table(("command", "what it does"), rows))


def option_tables() -> str:
    """Every command with its whole help, its arguments and its options."""
    lines: list[str] = []
    for name, command in commands().items():
        context = typer.Context(command)
        arguments = [param for param in command.params if param.param_type_name == "argument"]
        options = [param for param in command.params if "--help" not in param.opts]
        usage = [
            re.sub("[{}]", "", piece)
            for param in arguments
            for piece in param.get_usage_pieces(context)
        ]
        lines += [f"### {name}", "", f"`{' '.join(['modelless', name, *usage])}`", ""]
        lines += [command.help.replace("``", "`"), ""]
        rows = [
            (" ".join(f"`{each}`" for each in param.opts), _flat(param.help or ""))
            for param in options
            if param not in arguments
        ]
        lines += [*_table(("option", "meaning"), rows), ""] if rows else []
    return "\n".join(lines).rstrip()


def function_table() -> str:
    """Every name of the package with the first sentence of its docstring."""
    names = [name for name in modelless.__all__ if not name.startswith("_")]
    rows = ((f"`modelless.{name}`", _sentence(getattr(modelless, name))) for name in names)
    return "\n".join(_table(("name", "what it does"), rows))


def metrics_table() -> str:
    """Every exported metric."""
    rows = (
        (f"`{name}`", family.kind, ", ".join(f"`{label}`" for label in family.labels), family.help)
        for name, family in FAMILIES.items()
    )
    return "\n".join(_table(("metric", "kind", "labels", "what it is"), rows))


def engine_table() -> str:
    """Every engine, what it runs on and what brings it."""
    rows = (
        (f"`{engine.value}`", entry.device_kind, entry.summary, f"`{_extra(entry.install)}`")
        for engine, entry in ENGINES.items()
    )
    return "\n".join(_table(("engine", "runs on", "what it is", "extra"), rows))


def _extra(install: str) -> str:
    return install.partition("[")[2].partition("]")[0]


def exit_code_table() -> str:
    """Every exit code that an error of the package has."""
    common = [
        error
        for _, error in inspect.getmembers(errors, inspect.isclass)
        if error in errors.ModellessError.__subclasses__() and "exit_code" in vars(error)
    ]
    found: dict[int, list[str]] = {}
    for error in (*common, UnauthorizedError, ForbiddenError):
        first = _sentence(error).partition(". ")[0].removesuffix(".") + "."
        found.setdefault(error.exit_code, []).append(first)
    rows = ((str(code), " ".join(found[code])) for code in sorted(found))
    return "\n".join(_table(("exit code", "meaning"), rows))


def commands() -> dict[str, Any]:
    """Command objects by name, those of groups as ``group command``."""

    def walk(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
        is_plain = {name: not hasattr(each, "commands") for name, each in group.commands.items()}
        for name in sorted(is_plain, key=lambda name: is_plain[name]):
            command = group.commands[name]
            if hasattr(command, "commands"):
                yield from walk(command, f"{prefix}{name} ")
            elif not command.hidden:
                yield prefix + name, command

    return dict(walk(typer.main.get_command(app), ""))


BLOCKS: Final[Mapping[str, tuple[str, Callable[[], str]]]] = {
    "commands": ("docs/commands.md", command_table),
    "options": ("docs/commands.md", option_tables),
    "functions": ("docs/python.md", function_table),
    "metrics": ("docs/deploy.md", metrics_table),
    "engines": ("docs/engines.md", engine_table),
    "exit codes": ("docs/commands.md", exit_code_table),
    "settings": ("docs/configuration.md", settings_tables),
    "policies": ("docs/policies.md", policy_tables),
    "makers": ("docs/variants.md", maker_table),
}


def rewritten(page: str, name: str, body: str) -> str:
    """``page`` with the block ``name`` replaced; ValueError if it has no such block."""
    begin = _BEGIN.format(name)
    pattern = re.compile(re.escape(begin) + r"\n.*?" + re.escape(_END), re.DOTALL)
    if not pattern.search(page):
        raise ValueError(f"no block {begin!r} to fill")
    return pattern.sub(lambda _: f"{begin}\n\n{body}\n\n{_END}", page)


def stale() -> dict[str, str]:
    """New text by page, for pages that are out of date."""
    before = {page: (ROOT / page).read_text(encoding="utf-8") for page, _ in BLOCKS.values()}
    after = dict(before)
    for name, (page, render) in BLOCKS.items():
        after[page] = rewritten(after[page], name, render())
    return {page: text for page, text in after.items() if text != before[page]}


def main() -> None:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if out of date")
    check = parser.parse_args().check
    pages = stale()
    for page, text in pages.items():
        if not check:
            (ROOT / page).write_text(text, encoding="utf-8")
        print(f"{page}: {'out of date' if check else 'written'}")
    sys.exit(1 if check and pages else 0)


def _sections(section: type[BaseModel], prefix: str) -> Iterator[str]:
    """The plain keys of ``section`` as a table, then its subsections."""
    inner = {name: _section_in(field) for name, field in section.model_fields.items()}
    rows = [
        (f"`{prefix}{name}`", _default(field), _allowed(field), field.description or "")
        for name, field in section.model_fields.items()
        if inner[name] is None
    ]
    yield f"### {prefix.rstrip('.') or 'At the top'}\n"
    yield f"{_sentence(section)}\n"
    yield from _table(("key", "default", "allowed", "meaning"), rows)
    for name, found in inner.items():
        if found is not None:
            kind = get_origin(section.model_fields[name].annotation)
            place = {tuple: f"{name}[]", dict: f"{name}.NAME"}.get(kind, name)
            yield ""
            yield from _sections(found, f"{prefix}{place}.")


def _section_in(field: FieldInfo) -> type[BaseModel] | None:
    for part in (field.annotation, *get_args(field.annotation)):
        if isinstance(part, type) and issubclass(part, BaseModel):
            return part
    return None


def _default(field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True)
    if default is PydanticUndefined:
        return "(must be given)"
    if default is None:
        return "`null`"
    if default == "":
        return '`""`'
    if isinstance(default, tuple):
        default = list(default)
    return f"`{default}`"


def _allowed(field: FieldInfo) -> str:
    """A type and its bounds, in words."""
    words = str(field.annotation)
    if tuple[str, ...] in get_args(field.annotation):  # or one of some words
        literals = (each for each in get_args(field.annotation) if get_origin(each) is Literal)
        return ", or ".join(
            ["a list of names", *(f"`{word}`" for (word,) in map(get_args, literals))]
        )
    if "Literal" in words:
        parts = (field.annotation, *get_args(field.annotation))
        literals = [
            value for part in parts if get_origin(part) is Literal for value in get_args(part)
        ]
        return " or ".join(f"`{value}`" for value in literals) + ", or `null`" * (
            type(None) in get_args(field.annotation)
        )
    if "dict[str, typing.Any]" in words:
        return "a name, or a mapping of `policy` and its settings"
    if words.startswith(("tuple", "list")):
        return "a list of names"
    if words == "dict[str, str]":
        return "a mapping of names to text"
    if words.startswith("dict"):
        return "a mapping of names to numbers"
    kinds = [_WORDS[part] for part in re.findall(r"\b(str|int|float|bool)\b", words)]
    null = ["or `null`"] if type(None) in get_args(field.annotation) else []
    return ", ".join([*kinds, *map(_bound, field.metadata), *null])


def _bound(bound: object) -> str:
    """``Ge(ge=1)`` as ``at least 1``."""
    for kind, words in {Ge: "at least", Gt: "more than", Le: "at most", Lt: "less than"}.items():
        if isinstance(bound, kind):
            value = getattr(bound, kind.__name__.lower())
            return f"{words} {int(value) if value == int(value) else value}"
    raise TypeError(f"no words for {bound!r}")


def _policy_row(name: str, path: str) -> tuple[str, str, str]:
    module_name, _, attribute = path.partition(":")
    module = import_module(module_name)
    policy = getattr(module, attribute)
    meanings = _arguments(policy)
    settings = [
        f"`{parameter.name}` (`{_shown(parameter.default)}`): {meanings.get(parameter.name, '')}"
        for parameter in inspect.signature(policy).parameters.values()
    ]
    return f"`{name}`", _paragraph(module), "<br>".join(settings) or "none"


def _maker_row(name: str) -> tuple[str, str, str]:
    maker = find_maker(name)
    settings = [
        f"`{key}` ({_default(field).strip('()')}; {_allowed(field)}): {field.description}"
        for key, field in maker.model_fields.items()
    ]
    return f"`{name}`", _paragraph(import_module(maker.__module__)), "<br>".join(settings) or "none"


def _shown(default: object) -> str:
    """A default as YAML writes it."""
    return "null" if default is None else json.dumps(default)


def _arguments(documented: object) -> dict[str, str]:
    """Descriptions by name, from the ``Args:`` of a docstring."""
    text = inspect.getdoc(documented) or ""
    _, _, section = text.partition("Args:\n")
    found = re.findall(r"^ {4}(\w+(?:, \w+)*): (.*(?:\n {5,}.*)*)", section, re.MULTILINE)
    return {name: _flat(meaning) for names, meaning in found for name in names.split(", ")}


def _sentence(documented: object) -> str:
    """The first line of a docstring, or of a command's help."""
    help_text = getattr(documented, "help", None)
    text = help_text if isinstance(help_text, str) else inspect.getdoc(documented) or ""
    return _flat(text.partition("\n\n")[0])


def _paragraph(documented: object) -> str:
    """A docstring's first paragraph with the second, where the source is cited."""
    return _flat(" ".join((inspect.getdoc(documented) or "").split("\n\n")[:2]))


def _flat(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("``", "`")


def _table(head: tuple[str, ...], rows: Any) -> list[str]:
    lines = [head, ("---",) * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


if __name__ == "__main__":
    main()
