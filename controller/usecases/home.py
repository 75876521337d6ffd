"""The home folder of a use case, and the variants and device classes that names stand for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from modelless.common.errors import InvalidInputError, NotFoundError
from modelless.common.files import default_home, expanded
from modelless.variants.registry.versions import name_of
from modelless.variants.vocabulary import Accuracy, DeviceClass, Variant

if TYPE_CHECKING:
    from modelless.variants.registry.catalog import Catalog
    from modelless.variants.registry.registry import Registry

Home = str | Path | None
"""A home folder; None is $MODELLESS_HOME, else ``~/.modelless``."""


AnyPath = str | Path


def path_or_none(path: AnyPath | None) -> Path | None:
    """A path given as text or ``Path``."""
    return None if path is None else Path(path)


@contextmanager
def writing(option: str, path: Path, what: str) -> Iterator[None]:
    """Raise InvalidInputError, which names the option, if the ``what`` there cannot be written."""
    try:
        yield
    except OSError as error:
        allowed = f"a {what} that can be written ({error.strerror})"
        raise InvalidInputError.of(option, str(path), allowed) from None


def check_writable(option: str, file: Path) -> None:
    """Raise InvalidInputError, which names the option, if no such file can be written."""
    with writing(option, file, "file"), TemporaryFile(dir=file.parent):
        if file.exists() and not file.is_file():
            raise InvalidInputError.of(option, str(file), "a file, or a name that is not there yet")


def home_folder(home: Home) -> Path:
    """The path of a home folder. InvalidInputError if it begins with ``~`` and no user's name."""
    return expanded("home", Path(home)) if home else default_home()


@contextmanager
def open_home(home: Home) -> Iterator[Registry]:
    """The registry of a home folder, closed at the end; raises as ``open_registry`` does."""
    # Not above: commands that open no registry begin sooner.
    from modelless.variants.registry.registry import open_registry

    with closing(open_registry(home_folder(home))) as registry:
        yield registry


def find_variants(
    catalog: Catalog, scopes: Sequence[str], *, every_version: bool = False
) -> tuple[Variant, ...]:
    """The variants of some scopes, each once; all variants if there are no scopes.

    Args:
        every_version: of each variant, not only the current one.

    Raises:
        NotFoundError: an unknown name, or nothing is registered.
    """
    names = list(scopes) or list(catalog.tasks)
    if not names:
        raise NotFoundError(
            "nothing is registered yet: 'modelless zoo list' shows what can be added"
        )
    found = {variant.id: variant for name in names for variant in catalog.resolve(name).variants}
    if not every_version:
        return tuple(found.values())
    wanted = {name_of(variant_id) for variant_id in found}
    return tuple(each for each in catalog.versions.values() if name_of(each.id) in wanted)


def pick_device_classes(
    names: Sequence[str], known: Sequence[DeviceClass]
) -> tuple[DeviceClass, ...]:
    """The device classes of those names; InvalidInputError says which this machine has."""
    by_name = {device.name: device for device in known}
    for name in names:
        if name not in by_name:
            raise InvalidInputError.of("device-class", name, ", ".join(by_name))
    return tuple(by_name[name] for name in names)


def accuracy_fields(accuracy: Accuracy) -> dict[str, Any]:
    """An accuracy and its provenance as plain data."""
    return {
        "accuracy": accuracy.percent,
        "accuracy_metric": accuracy.metric,
        "accuracy_provenance": accuracy.provenance.value,
        "accuracy_source": accuracy.source,
        "accuracy_low": accuracy.low_percent,
        "accuracy_high": accuracy.high_percent,
    }


def variant_fields(variant: Variant) -> dict[str, Any]:
    """A variant as plain data."""
    return {
        "variant": variant.id,
        "task": variant.task,
        "model": variant.model,
        "name": variant.name,
        "version": variant.version,
        "precision": variant.precision.value,
        "resolution_px": variant.resolution_px,
        "engine": variant.engine.value,
        "sha256": variant.artifact_sha256,
        "bytes": variant.artifact_bytes,
        "parameters": variant.parameter_count,
        "multiply_adds": variant.multiply_adds,
        **accuracy_fields(variant.accuracy),
    }


def group_names(reasons: Mapping[str, str]) -> dict[str, str]:
    """The names that share a reason, joined by commas, by reason; empty reasons are left out."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        if reason:
            names.setdefault(reason, []).append(name)
    return {reason: ", ".join(each) for reason, each in names.items()}
