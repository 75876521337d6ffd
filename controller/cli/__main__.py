"""``python -m modelless.controller.cli``: how ``modelless up --detach`` starts itself again."""

from __future__ import annotations

from modelless.controller.cli import main

if __name__ == "__main__":
    main()
