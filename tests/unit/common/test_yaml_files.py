"""YAML files that are wrong, ambiguous or meant to do harm are refused with their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelless.common import yaml_files
from modelless.common.errors import InvalidInputError
from modelless.common.yaml_files import parse_yaml, read_yaml

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def test_what_is_right_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("\ufeffa: &d {b: 1}\r\nc: {<<: *d, b: 2, e: *d}\r\n", encoding="utf-8")
    assert read_yaml("world", path) == {"a": {"b": 1}, "c": {"b": 2, "e": {"b": 1}}}
    assert parse_yaml("world", "a: {<<: {b: 1, c: 1}, <<: {c: 2}, d: 3}") == {
        "a": {"b": 1, "c": 2, "d": 3}
    }
    path.write_text("", encoding="utf-8")
    assert read_yaml("world", path) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3: 'a' is there already, on line 1"),
        ("a:\n  b: 1\n  b: 1\n", "line 3: 'b' is there already, on line 2"),
        (LAUGHS, "more than 1,000,000 values, aliases written out"),
        ("a: &a [*a]\n", "line 1: a value that contains itself"),
        ("[" * 5000, "nested too deep"),
        ("a: [", "not YAML"),
        ("a: \0", "not YAML"),
        ("a: 2024-13-45\n", "not YAML: month must be in 1..12"),
        (f"a: {'9' * 5000}\n", "not YAML"),
        ("a: !!bool maybe\n", "not YAML: a value does not fit its tag"),
        ('a: !!int ""\n', "not YAML: a value does not fit its tag"),
        ("a: !!timestamp x\n", "not YAML: a value does not fit its tag"),
        ("a: {<<: {b: 1}, '<<': 1, '<<': 2}\n", "line 1: '<<' is there already, on line 1"),
        ("a: !!python/object:os.system {}\n", "not YAML"),
        ("? [a]\n: 1\n", "not YAML"),
    ],
)
def test_what_is_not_says_where(text: str, says: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        parse_yaml("world w.yaml", text)
    assert str(refused.value).startswith("world w.yaml: ")
    assert says in str(refused.value)


def test_a_strangers_text_has_no_aliases() -> None:
    assert parse_yaml("s", "{a: [1, 1], b: {c: 1}}", allows_aliases=False) == {
        "a": [1, 1], "b": {"c": 1}
    }  # fmt: skip
    for text in ("[&a x, *a]", "[&a [], *a]", "{a: &a {b: 1}, c: {<<: *a}}", "{&a x: *a}"):
        with pytest.raises(InvalidInputError, match="s: an alias; write out"):
            parse_yaml("s", text, allows_aliases=False)


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInputError, match=r"recipe: got .*none\.yaml.*readable YAML"):
        read_yaml("recipe", tmp_path / "none.yaml")
    path = tmp_path / "a.yaml"
    path.write_bytes(b"a: \xff\xfe\xfa")
    with pytest.raises(InvalidInputError, match="not YAML"):
        read_yaml("recipe", path)
    monkeypatch.setattr(yaml_files, "MOST_BYTES", 2)
    with pytest.raises(InvalidInputError, match="at most 0 MiB"):
        read_yaml("recipe", path)
