"""The policy that the manual writes, and the test it writes for it, run as they stand."""

from __future__ import annotations

from .pages import blocks

EXAMPLE = [block for block in blocks("python") if block.page == "docs/policies.md"]

for _block in EXAMPLE:
    exec(compile(_block.text, str(_block), "exec"))  # noqa: S102


def test_the_page_has_a_policy_and_its_test() -> None:
    assert {"LargestFirst", "TestLargestFirst"} <= globals().keys()
