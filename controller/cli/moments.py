"""Moments as people write and read them: times of day, dates, and how long ago."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta

from modelless.common.errors import InvalidInputError


def moment_of(field: str, text: str, now: datetime) -> datetime:
    """``18:30``, ``18:30:05`` (the last time it was that) or an ISO date and time, as UTC.

    Without a zone it is this machine's.

    Raises:
        InvalidInputError: it is neither.
    """
    written = text.strip()
    try:
        if "-" in written:
            return datetime.fromisoformat(written).astimezone(UTC)
        moment = datetime.combine(now.astimezone(), time.fromisoformat(written)).astimezone()
    except ValueError:
        raise InvalidInputError.of(
            field, text, "a time such as 18:30:05, or a date and time such as 2026-03-01T18:30:05"
        ) from None
    if moment > now:
        moment -= timedelta(days=1)
    return moment.astimezone(UTC)


def clock_text(at: datetime, *, day: bool = False) -> str:
    """``18:30:05.123`` on this machine's clock, with the date if ``day``."""
    shown = at.astimezone()
    text = shown.strftime("%Y-%m-%d %H:%M:%S" if day else "%H:%M:%S")
    return f"{text}.{at.microsecond // 1000:03d}"
