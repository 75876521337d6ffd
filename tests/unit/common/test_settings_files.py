"""Mistakes in a settings file: each field with its value and what is allowed, once."""

from __future__ import annotations

import pytest

from modelless.common.errors import InvalidInputError
from modelless.controller.config import parse_settings


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"http": {"port": 99999}}, "http.port: got 99999; allowed: 1 to 65535"),
        ({"http": {"prot": 1}}, "http.prot: got 1; there is no such key. Did you mean 'port'?"),
        ({"http": {"zzz": 1}}, "there is no such key; allowed: host, port, max_body_bytes"),
        ({"polices": {}}, "polices: got {}; there is no such key. Did you mean 'policies'?"),
        ({"pools": [{}]}, "pools.0.device_class: got nothing; it must be given"),
        ({"tasks": "imagenet"}, "tasks: got 'imagenet'; allowed: a list"),
        (["a"], "(top): got ['a']; allowed: a mapping"),
        ({"gateways": {"labels": {"site": 1}}}, "gateways.labels.site: got 1; allowed: text"),
        ({"policies": {"explore": 7}}, "policies.explore: got 7; allowed: 0 to 0.5"),
        (
            {"slos": {"quick": {"latency_ms": -1}}},
            "slos.quick.latency_ms: got -1; allowed: greater than 0 and less than or "
            "equal to 3600000",
        ),
        ({"slos": {"quick": {"latenzy": 1}}}, "Did you mean 'latency_ms'?"),
        ({"seed": -1}, "seed: got -1; allowed: greater than or equal to 0"),
        ({"policies": {"selection": 5}}, "policies.selection: got 5; allowed: text, or a mapping"),
        (
            {"residency": {"preload": "last-runn"}},
            "residency.preload: got 'last-runn'; allowed: a list, or 'last-run'",
        ),
        (
            {"pools": [{"device_class": "cpu-1", "min_workers": 3, "max_workers": 2}]},
            "min_workers 3 are more than max_workers 2",
        ),
    ],
)
def test_a_field_is_named_once_with_what_is_allowed(document: object, says: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        parse_settings(document)
    assert says in str(refused.value)
    assert str(refused.value).count("got ") == 1
