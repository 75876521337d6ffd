"""The end of a cluster. Apart, so that the command imports little: it takes less long."""

from __future__ import annotations

from dataclasses import dataclass

from modelless.controller.history.audit import note_act, user_name
from modelless.controller.live.cluster.run_folder import cluster_members, only_one
from modelless.controller.live.cluster.running import (
    LEFT_OVER_S,
    end_left_over,
    read_state,
    take_down,
)
from modelless.controller.live.cluster.supervisor import read_note
from modelless.controller.usecases.home import Home, home_folder


@dataclass(frozen=True, slots=True)
class Down:
    """The end of a cluster.

    Attributes:
        url: of what was up; None if nothing was.
    """

    was_up: bool
    url: str | None


def down(*, home: Home = None) -> Down:
    """Stop the running modelless, and wait until it has stopped.

    Examples:
        >>> modelless.down().was_up  # doctest: +SKIP
        True
    """
    folder = home_folder(home)
    state, note = read_state(folder), read_note(folder)
    supervisor = note.pid if note is not None and note.is_alive else 0
    if state is None and not supervisor:
        if cluster_members(folder / "run"):  # whoever had them was killed, with what watched it
            with only_one(folder.resolve()):
                end_left_over(folder, LEFT_OVER_S)
        return Down(was_up=False, url=None)
    url = state.url if state is not None else None
    note_act(folder, "down", user_name(), url=url)
    take_down(folder, supervisor or (state.pid if state is not None else 0))
    return Down(was_up=True, url=url)
