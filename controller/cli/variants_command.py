"""``modelless variants``: what is registered, how good it is, and what nobody needs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import typer

from modelless.controller.cli.arguments import ConfigFile, Scopes
from modelless.controller.cli.register_command import variant_fields
from modelless.controller.cli.screen import (
    Json,
    accuracy_text,
    emit,
    home_of,
    mebibytes,
    show_table,
)
from modelless.variants.vocabulary import Variant

EPILOG = "Example: modelless variants imagenet"


def variants(
    ctx: typer.Context,
    scopes: Scopes = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """List the registered variants, and which variant dominates each on this machine.

    Dominated variants are not served, unless the settings say serve_dominated: true.
    """
    from modelless.controller.cli.profile_command import in_scopes
    from modelless.controller.config import load_settings
    from modelless.profiler.cost_model.dominated import dominated_by_device, dominated_everywhere
    from modelless.profiler.devices.host import read_facts
    from modelless.profiler.measure.records import Records
    from modelless.variants.registry.outcomes import latest_outcomes
    from modelless.variants.registry.registry import open_registry

    settings = load_settings(config)
    with closing(open_registry(home_of(ctx))) as registry:
        catalog = registry.catalog()
        found = in_scopes(catalog, scopes or [])
        rows = Records(registry.store).current(read_facts())
        outcomes = latest_outcomes(registry.store, [variant.id for variant in catalog.variants])
    victors = dominated_by_device(catalog.variants, rows, outcomes)
    left_out = {} if settings.serve_dominated else dominated_everywhere(
        victors, settings.device_classes
    )  # fmt: skip
    document = [
        {
            **variant_fields(variant),
            "profiled_on": sorted(victors.get(variant.id, {})),
            "dominated_by": {
                device: by
                for device, by in sorted(victors.get(variant.id, {}).items())
                if by != variant.id
            },
            "served": variant.id in victors and variant.id not in left_out,
        }
        for variant in found
    ]
    if as_json:
        emit({"variants": document})
    else:
        _show(found, document)


def _show(found: Sequence[Variant], document: Sequence[dict[str, Any]]) -> None:
    show_table(
        ["variant", "accuracy", "precision", "MiB", "profiled on", "dominated by", "served"],
        [
            (
                variant.id,
                accuracy_text(variant.accuracy),
                variant.precision.value,
                mebibytes(variant.artifact_bytes),
                ", ".join(row["profiled_on"]),
                ", ".join(f"{by} on {device}" for device, by in row["dominated_by"].items()),
                "yes" if row["served"] else "no",
            )
            for variant, row in zip(found, document, strict=True)
        ],
        right=[3],
        whole=0,
    )
