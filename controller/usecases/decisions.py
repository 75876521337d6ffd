"""Decisions: the history of the control plane, and the receipts of queries."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from modelless.common.errors import EnvironmentUnfitError, InvalidInputError, StoreError
from modelless.common.files import write_whole
from modelless.common.parquet import import_pyarrow
from modelless.controller.history.entries import Told, Wanted, check_kinds, loaded_at, read_entries
from modelless.controller.history.receipts import WantedReceipts, read_receipts, receipts_folder
from modelless.controller.history.why import context_of
from modelless.controller.live.receipt_lookup import look_up_receipt
from modelless.controller.usecases.home import Home, check_writable, home_folder, open_home
from modelless.controller.usecases.progress import Note, Progress, ignore

MOST_ENTRIES: Final = 1000
LISTED: Final = 20
"""Receipts in a list."""

_POLL_S: Final = 0.5


def read_history(
    *,
    back_s: float = 3600.0,
    until: datetime | None = None,
    kinds: Sequence[str] = (),
    task: str | None = None,
    home: Home = None,
) -> tuple[Sequence[Told], Mapping[str, Sequence[str]] | None]:
    """The control plane's decisions and their results, from the store.

    Args:
        back_s: how far back from ``until``, seconds.
        until: the end; default: now. With it, the variants loaded at that time are listed, too.
        kinds: of entries, such as ``load`` and ``scale``; none is all.
        task: ``task``, ``task/model`` or ``task/model/variant``.

    Returns:
        The entries, the newest last, at most ``MOST_ENTRIES``; and the variants that each worker
        held at ``until``, None without a time.

    Raises:
        InvalidInputError: an unknown kind.
        NotFoundError: an unknown task of which there is no entry.
    """
    begin = (until or datetime.now(UTC)) - timedelta(seconds=back_s)
    wanted = Wanted(begin, until, tuple(kinds), task, None, MOST_ENTRIES)
    with open_home(home) as registry:
        check_kinds(registry.store, wanted.kinds)
        if task is not None and not read_entries(registry.store, Wanted(task=task, most=1)):
            registry.resolve(task)  # there may be entries of variants that are gone
        entries = read_entries(registry.store, wanted)
        return entries, None if until is None else loaded_at(registry.store, until)


def follow_history(
    *, back_s: float = 3600.0, kinds: Sequence[str] = (), task: str | None = None, home: Home = None
) -> Iterator[Told]:
    """Entries as they happen, those of the last ``back_s`` seconds first; see ``read_history``."""
    (entries, _), last = read_history(back_s=back_s, kinds=kinds, task=task, home=home), 0
    begin = datetime.now(UTC) - timedelta(seconds=back_s)
    with open_home(home) as registry:
        while True:
            for told in entries:
                last = max(last, told.number)
                yield told
            time.sleep(_POLL_S)
            new = Wanted(begin, None, tuple(kinds), task, last, MOST_ENTRIES)
            entries = read_entries(registry.store, new)


def why(
    receipt_id: str, *, home: Home = None, on_progress: Progress = ignore
) -> tuple[Mapping[str, Any], Sequence[Told], Sequence[str]]:
    """Why a query got its answer, or why it was refused.

    A running gateway is asked first, then the receipts on disk.

    Args:
        on_progress: receives a note if the history cannot be read.

    Returns:
        The receipt; what the control plane had done before; and sentences on the variants that were
        not ready.

    Raises:
        NotFoundError: the receipt was not kept.
        InvalidInputError: it is no receipt's id.
    """
    folder = home_folder(home)
    found = look_up_receipt(folder, receipt_id)
    try:
        with open_home(home) as registry:
            entries, absent = context_of(registry.store, found)
    except StoreError as error:
        on_progress(Note(f"without history: {error}"))
        entries, absent = [], []
    return found, entries, absent


OUTCOMES: Final = ("served", "served-late", "refused", "cancelled")


def list_receipts(
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    tenant: str | None = None,
    task: str | None = None,
    outcomes: Sequence[str] = (),
    most: int = LISTED,
    home: Home = None,
) -> Sequence[Mapping[str, Any]]:
    """The newest receipts that were kept on this machine, oldest first; a row each.

    Args:
        since, until: from when to when the queries arrived.
        tenant: of this tenant.
        task: for ``task``, ``task/model`` or ``task/model/variant``.
        outcomes: some of ``OUTCOMES``; none is all.
        most: so many.
        home: see ``home_folder``.

    Raises:
        InvalidInputError: an unknown outcome.
    """
    for outcome in outcomes:
        if outcome not in OUTCOMES:
            raise InvalidInputError.of("outcome", outcome, ", ".join(OUTCOMES))
    wanted = WantedReceipts(since, until, tenant, task, tuple(outcomes), most)
    return read_receipts(receipts_folder(home_folder(home)), wanted)


def check_receipts_file(file: Path, option: str = "--output") -> tuple[Any, Any]:
    """Return pyarrow and pyarrow.parquet, if they can write the file; raises as below."""
    if file.suffix != ".parquet":
        raise InvalidInputError.of(option, str(file), "a name ending in .parquet")
    check_writable(option, file)
    return import_pyarrow()


def export_receipts(receipts: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Write receipts into a Parquet file, a row each; ``candidates`` is a list of structures.

    Raises:
        InvalidInputError: another ending, or no such file can be written.
        EnvironmentUnfitError: pyarrow is not installed, or writing fails.
    """
    arrow, parquet = check_receipts_file(file)
    names = dict.fromkeys(name for receipt in receipts for name in receipt)
    columns = {name: arrow.array([each.get(name) for each in receipts]) for name in names}
    buffer = BytesIO()
    parquet.write_table(arrow.table(columns), buffer)
    try:
        write_whole(file, buffer.getvalue(), mode=0o644)
    except OSError as error:
        raise EnvironmentUnfitError(f"{file} cannot be written: {error}") from None
