"""Recipes are read strictly; the one that comes along is worth its name."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from modelless.common.errors import InvalidInputError, NotFoundError
from modelless.variants.making.lineage import tool_versions
from modelless.variants.making.recipe import default_recipe, load_recipe, parse_recipe


def test_the_default_makes_a_family() -> None:
    chains = default_recipe().chains
    assert len(chains) >= 10
    assert len({step.maker for chain in chains.values() for step in chain}) >= 5


def test_steps_are_names_or_mappings() -> None:
    text = "variants:\n  a: [fp16]\n  b: [resolution: {px: 192}, int8-static: ]\n  c: []\n"
    chains = parse_recipe(yaml.safe_load(text)).chains
    assert [step.maker for step in chains["b"]] == ["resolution", "int8-static"]
    assert chains["b"][0].settings == {"px": 192}
    assert chains["b"][1].settings["calibration"] == "min-max"
    assert chains["c"] == ()


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (None, "recipe: got None; allowed: a mapping of description, variants"),
        ({"variant": {}}, "recipe: variant: got {}"),
        ({}, "recipe: variants: got None"),
        ({"variants": {}}, "recipe: variants: got {}"),
        ({"variants": {"A b": ["fp16"]}}, "variants.A b: got 'A b'; allowed: 1 to 64 of a-z"),
        ({"variants": {"a": "fp16"}}, "variants.a: got 'fp16'; allowed: a list of steps"),
        ({"variants": {"a": [3]}}, r"variants.a\[0\]: got 3"),
        ({"variants": {"a": [{"fp16": {}, "bf16": {}}]}}, r"variants.a\[0\]: got"),
        ({"variants": {"a": [{"fp16": [1]}]}}, r"variants.a\[0\]: got"),
        (
            {"variants": {"a": ["fp16", {"int8-static": {"calibraton": "entropy"}}]}},
            r"variants.a\[1\]: calibraton: got 'entropy'; .*has the settings calibration, ",
        ),
        (
            {"variants": {"a": [{"int8-static": {"calibration": "kl"}}]}},
            r"variants.a\[0\]: calibration: got 'kl'; .*'min-max', 'percentile' or 'entropy'",
        ),
        ({"description": 3, "variants": {"a": []}}, "description: got 3"),
    ],
)
def test_what_is_wrong_is_named(document: object, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        parse_recipe(document)


def test_an_unknown_maker_is_named_with_its_place() -> None:
    with pytest.raises(NotFoundError, match=r"variants.a\[0\]: maker 'int8' does not exist"):
        parse_recipe({"variants": {"a": ["int8"]}})


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    with pytest.raises(InvalidInputError, match="a readable YAML file"):
        load_recipe(path)
    path.write_text("variants: [", encoding="utf-8")
    with pytest.raises(InvalidInputError, match="not YAML"):
        load_recipe(path)
    path.write_text("variants: {a: [bf16]}", encoding="utf-8")
    assert list(load_recipe(path).chains) == ["a"]


def test_what_does_not_say_its_version_is_unknown() -> None:
    found = tool_versions({"onnx", "bisect", "no_such_package"})
    assert found.keys() == {"modelless", "onnx", "bisect", "no_such_package"}
    assert (found["bisect"], found["no_such_package"]) == ("unknown", "absent")
