"""What the pages tell a reader to type exists, and what they link to is there."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import typer.main
import yaml
from packaging.requirements import Requirement

from modelless.controller.api.batches import parse_batch
from modelless.controller.api.feedback import parse_feedback
from modelless.controller.api.quotes import parse_quote
from modelless.controller.api.request_limits import DEFAULT_LIMITS
from modelless.controller.api.v2_request import parse_infer
from modelless.controller.api.v2_routes import Endpoint, route
from modelless.controller.cli.app import app
from modelless.controller.config import HttpSettings, parse_settings
from modelless.variants.making.recipe import parse_recipe

from .pages import PAGES, ROOT, Block, blocks, read

SHELL = blocks("bash", "sh", "console")
PYTHON = blocks("python")


def commands_in(text: str) -> Iterator[list[str]]:
    """The words of each simple command of a shell block."""
    for line in text.replace("\\\n", " ").splitlines() if "'{" not in text else [text]:
        words = shlex.split(line, comments=True)
        while words:
            end = next((i for i, word in enumerate(words) if word in ("&&", "||", "|", ";")), None)
            yield words[:end]
            words = [] if end is None else words[end + 1 :]


def without_blocks(text: str) -> str:
    """A page's text without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def every_command(program: str) -> list[Any]:
    """Uses of ``program`` in shell blocks, and in inline code, as parameters of a test."""
    found = [(str(block), words) for block in SHELL for words in commands_in(block.text)]
    for page in PAGES:
        codes = re.findall(rf"`({program} [^`\n]+)`", without_blocks(read(page)))
        found += [(page, words) for code in codes for words in commands_in(code)]
    return [
        pytest.param(words, id=f"{where} {' '.join(words)}"[:100])
        for where, words in found
        if words and words[0] == program
    ]


@pytest.mark.parametrize("words", every_command("modelless"))
def test_command_exists_with_these_options(words: list[str]) -> None:
    command: Any = typer.main.get_command(app)
    options = {name: param for param in command.params for name in param.opts}
    rest = words[1:]
    while hasattr(command, "commands") and rest:
        if rest[0].startswith("-"):
            assert rest[0] in options, f"no option {rest[0]}"
            rest = rest[1 if options[rest[0]].is_flag else 2 :]
            continue
        pair = " ".join(rest[:2])
        name, rest = (pair, rest[2:]) if pair in command.commands else (rest[0], rest[1:])
        assert name in command.commands, f"no command {name!r}"
        command = command.commands[name]
        options |= {name: param for param in command.params for name in param.opts}
    takes_words = any(param.param_type_name == "argument" for param in command.params)
    while rest:
        word, rest = rest[0], rest[1:]
        if word in ("--help", "-h", "--"):
            continue
        if word.startswith("-"):
            assert word in options, f"no option {word}"
            rest = rest if options[word].is_flag else rest[1:]
        else:
            assert takes_words, f"takes no {word!r}"


@pytest.mark.parametrize("words", every_command("make"))
def test_make_target_exists(words: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for word in words[1:]:
        name, is_variable, _ = word.partition("=")
        assert re.search(
            rf"^{name} \?= |\$\({name}\)" if is_variable else rf"^{name}:", makefile, re.M
        )


@pytest.mark.parametrize("words", every_command("pip"))
def test_what_is_installed_is_ours_with_extras_it_has(words: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    named = {Requirement(line).name for lines in extras.values() for line in lines}
    assert words[1] == "install"
    if "--requirement" in words or "-r" in words:
        assert words[2:-1] == ["--no-deps", "--require-hashes", "-r"]
        assert (ROOT / words[-1]).is_file()
        return
    for word in words[2:]:
        place, _, rest = word.rstrip("]").partition("[")
        assert place in {".", *named}
        assert place != "." or set(rest.split(",")) <= extras.keys()


@pytest.mark.parametrize("words", every_command("curl"))
def test_curl_asks_for_something_that_is_there(words: list[str]) -> None:
    (url,) = (urlsplit(word) for word in words if word.startswith("http"))
    defaults = HttpSettings()
    assert (url.hostname, url.port) in {
        (defaults.host, defaults.port),
        ("localhost", defaults.port),
    }
    body = words[words.index("-d") + 1] if "-d" in words else None
    is_post = body is not None or "POST" in words
    endpoint = route("POST" if is_post else "GET", url.path).endpoint
    assert endpoint not in {Endpoint.NOT_FOUND, Endpoint.METHOD_NOT_ALLOWED}
    if endpoint is Endpoint.FEEDBACK:
        assert body
        assert parse_feedback(body.encode())
    elif endpoint is Endpoint.QUOTE:
        assert body
        assert parse_quote(body.encode(), DEFAULT_LIMITS, {}, {}).task
    elif endpoint is Endpoint.BATCHES:
        assert body
        assert parse_batch(body.encode(), DEFAULT_LIMITS).task
    elif body:
        assert endpoint is Endpoint.INFER
        assert parse_infer(body.encode()).tensors


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_compiles_and_imports_what_exists(block: Block) -> None:
    compile(block.text, str(block), "exec")
    nodes = ast.walk(ast.parse(block.text))
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    exec(compile(ast.Module([*imports], []), str(block), "exec"), {})  # noqa: S102


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_yaml_is_a_settings_file_or_a_recipe(block: Block) -> None:
    parse = parse_recipe if block.page == "docs/variants.md" else parse_settings
    parse(yaml.safe_load(block.text))


def test_the_main_ways_in_are_shown() -> None:
    shown = {tuple(words[:2]) for block in SHELL for words in commands_in(block.text) if words}
    ways = ("zoo", "profile", "up", "infer", "select")
    assert {("make", "demo"), ("make", "test")} | {("modelless", way) for way in ways} <= shown


def anchors_of(text: str) -> set[str]:
    """What may follow the ``#`` of a link to a page: its headings, written as GitHub does."""
    headings = re.findall(r"^#+ (.+)$", without_blocks(text), re.MULTILINE)
    bare = (re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)
    return {
        f"{anchor}-{number}" if number else anchor
        for anchor, count in Counter(bare).items()
        for number in range(count)
    }


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_headings_that_are_there(page: str) -> None:
    links = re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", without_blocks(read(page)))
    here = [(path, anchor) for path, anchor in links if not urlsplit(path).scheme]
    lost = []
    for path, anchor in here:
        target = (ROOT / page).parent / path if path else ROOT / page
        if anchor not in anchors_of(target.read_text(encoding="utf-8")):
            lost.append(f"{path}#{anchor}")
    assert lost == []


def test_a_heading_makes_an_anchor() -> None:
    assert anchors_of("# A `b`: c, d\n\n## Two\n\n## Two\n") == {"a-b-c-d", "two", "two-1"}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", without_blocks(read(page)))
    here = [link for link in links if not urlsplit(link).scheme]
    assert [link for link in here if not (ROOT / page).parent.joinpath(link).exists()] == []


def test_the_readme_leads_to_every_page() -> None:
    linked = {"docs/index.md", *re.findall(r"\]\((docs/[\w-]+\.md)\)", read("README.md"))}
    assert [page for page in PAGES if page.startswith("docs/") and page not in linked] == []
