"""Recipes: which variants to make of a model, each by a chain of makers; read from YAML.

    variants:
      int8-192: [resolution: {px: 192}, int8-static: {calibration: entropy}]

A step is a maker's name, or a mapping of the name to its settings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import yaml

from modelless.common.errors import InvalidInputError, NotFoundError
from modelless.common.yaml_files import read_yaml
from modelless.variants.making.maker import Maker, build_maker
from modelless.variants.vocabulary import check_name

_FIELDS: Final = ("description", "variants")
_STEP: Final = "a maker's name, or a mapping of one maker's name to its settings"


@dataclass(frozen=True, slots=True)
class Step:
    """One maker of a chain.

    Attributes:
        maker: the name by which it is found: a built-in one's, or ``module:Class``.
        with_settings: the maker, its settings checked.
    """

    maker: str
    with_settings: Maker

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting, defaults included, as JSON has it."""
        return self.with_settings.model_dump(mode="json")

    def __str__(self) -> str:
        return f"{self.maker} {json.dumps(self.settings, sort_keys=True)}"


@dataclass(frozen=True, slots=True)
class Recipe:
    """Chains by the name of the variant they make.

    Attributes:
        chains: steps in order; an empty chain is the model as it comes, written canonically.
        description: a sentence.
    """

    chains: Mapping[str, tuple[Step, ...]]
    description: str = ""


def load_recipe(path: Path) -> Recipe:
    """Read and check a recipe.

    Raises:
        InvalidInputError: no such file, not YAML, a field or setting that is unknown or out of
            range; names it.
        NotFoundError: a maker that does not exist.
    """
    return parse_recipe(read_yaml("recipe", path), source=str(path))


@cache
def default_recipe() -> Recipe:
    """The recipe that comes with the package: ``default_recipe.yaml``."""
    text = files("modelless.variants.making").joinpath("default_recipe.yaml")
    return parse_recipe(yaml.safe_load(text.read_text("utf-8")), source="default_recipe.yaml")


def parse_recipe(document: object, source: str = "recipe") -> Recipe:
    """Check a recipe already read; raises as ``load_recipe``."""
    if not isinstance(document, Mapping):
        raise InvalidInputError.of(source, document, "a mapping of " + ", ".join(_FIELDS))
    for key in document:
        if key not in _FIELDS:
            raise InvalidInputError.of(f"{source}: {key}", document[key], ", ".join(_FIELDS))
    description = document.get("description", "")
    if not isinstance(description, str):
        raise InvalidInputError.of(f"{source}: description", description, "text")
    variants = document.get("variants")
    if not isinstance(variants, Mapping) or not variants:
        raise InvalidInputError.of(
            f"{source}: variants", variants, "a mapping of variants' names to lists of steps"
        )
    chains = {}
    for name, steps in variants.items():
        place = f"{source}: variants.{name}"
        check_name(place, name)
        if not isinstance(steps, list):
            raise InvalidInputError.of(place, steps, "a list of steps")
        chains[name] = tuple(
            parse_step(step, f"{place}[{index}]") for index, step in enumerate(steps)
        )
    return Recipe(chains, description)


def parse_step(document: object, place: str = "step") -> Step:
    """Check one step; ``place`` begins the errors. Raises as ``load_recipe``."""
    if isinstance(document, str):
        document = {document: {}}
    if not isinstance(document, Mapping) or len(document) != 1:
        raise InvalidInputError.of(place, document, _STEP)
    ((name, settings),) = document.items()
    settings = {} if settings is None else settings
    if not isinstance(name, str) or not isinstance(settings, Mapping):
        raise InvalidInputError.of(place, document, _STEP)
    try:
        maker = build_maker(name, {str(key): value for key, value in settings.items()}, place)
    except NotFoundError as error:
        raise NotFoundError(f"{place}: {error}") from error
    return Step(name, maker)
