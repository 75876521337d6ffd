"""MkDocs' hook: links out of ``docs/`` lead to the repository; the site has only ``docs/``."""

from __future__ import annotations

import re
from typing import Any


def on_page_markdown(markdown: str, *, config: Any, **_: Any) -> str:
    """Return the page with ``](../NAME)`` as an address in the repository."""
    return re.sub(r"\]\(\.\./", f"]({config.extra['repository']}/blob/main/", markdown)
