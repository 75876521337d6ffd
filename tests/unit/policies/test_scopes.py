"""Scopes, and the arms that a trial deals queries out to."""

from __future__ import annotations

import pytest

from modelless.policies.scopes import arm_of, base_of, in_scope, scopes_of, task_of

OLD, NEW = "imagenet/lite0/int8@1", "imagenet/lite0/int8@2"


@pytest.mark.parametrize("scope", ["imagenet", "imagenet/lite0", "imagenet/lite0/int8", OLD])
def test_a_variant_is_in_its_scopes(scope: str) -> None:
    assert in_scope(OLD, scope)
    assert scope in scopes_of(OLD)


@pytest.mark.parametrize("scope", ["image", "imagenet/lite", "imagenet/lite0/int", NEW, "other"])
def test_and_in_no_other(scope: str) -> None:
    assert not in_scope(OLD, scope)


@pytest.mark.parametrize("base", ["imagenet", "imagenet/lite0", "imagenet/lite0/int8"])
def test_arms_part_the_versions_of_one_variant(base: str) -> None:
    tried = arm_of(base, NEW, on_trial=True)
    standing = arm_of(base, NEW, on_trial=False)
    assert tried == f"{base} with {NEW}"
    assert standing == f"{base} without {NEW}"
    assert (in_scope(NEW, tried), in_scope(OLD, tried)) == (True, False)
    assert (in_scope(NEW, standing), in_scope(OLD, standing)) == (False, True)
    assert base_of(tried) == base_of(standing) == base_of(base) == base
    assert task_of(tried) == "imagenet"


def test_arms_let_other_variants_be() -> None:
    for on_trial in (True, False):
        arm = arm_of("imagenet", NEW, on_trial=on_trial)
        assert in_scope("imagenet/lite0/int8-wide@1", arm)
        assert in_scope("imagenet/lite0/fp32@2", arm)
        assert not in_scope("fashion-mnist/lite0/fp32@2", arm)
