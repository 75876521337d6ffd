"""Keeps the feedback so far in a file of the home, so that it outlives the control process."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from modelless.common.files import write_whole
from modelless.controller.control.feedback import VariantFeedback

logger = logging.getLogger(__name__)

FEEDBACK: Final = "feedback.json"


def read_feedback(home: Path) -> dict[str, dict[str, Any]]:
    """Return the documents that ``write_feedback`` wrote, by variant id; none if there are none."""
    path = home / FEEDBACK
    try:
        documents: dict[str, dict[str, Any]] = json.loads(path.read_text())
        for document in documents.values():
            VariantFeedback.kept(document)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        logger.warning("what feedback said is not known: %s: %s", path, error)
        return {}
    return documents


def write_feedback(home: Path, documents: Mapping[str, Mapping[str, Any]]) -> None:
    """Keep documents of ``FeedbackAccuracies.documents``; OSError if they cannot be written."""
    write_whole(home / FEEDBACK, json.dumps(documents).encode(), mode=0o600)
