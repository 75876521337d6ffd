"""The page *Policies*: settings that change while modelless serves, tried, applied, taken back."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final, NamedTuple

from modelless.common.errors import InvalidInputError, ModellessError, UnavailableError
from modelless.common.yaml_files import parse_yaml
from modelless.controller.api.request_limits import MOST_PICTURE_BYTES
from modelless.controller.config import PolicySettings, Settings, with_changes
from modelless.controller.live.settings_revisions import (
    Revision,
    change_settings,
    read_base,
    read_revision,
    read_revisions,
    roll_back,
)
from modelless.policies.discovery import POLICIES, find_policy
from modelless.policies.policy_settings import settings_of
from modelless.policies.systems import SEAMS
from modelless.variants.registry.registry import open_registry

KEYS: Final = (
    *(f"policies.{name}" for name in PolicySettings.model_fields),
    *("cache.scopes", "cache.max_bytes", "feedback.shadow_share", "limits.default_latency_ms"),
    *("slos", "tenants"),
)
"""The settings of the page, each a field of its form."""

_MOST_REVISIONS: Final = 20
_SIMULATED_RUNS: Final = 3
_SIMULATION_S: Final = 300.0
_INFER_S: Final = 60.0


class Field(NamedTuple):
    """A setting: its value as YAML, and what it is.

    Attributes:
        about: what the policy in force does.
        settings: of the policy in force: name, default and meaning.
        options: the policies that there are, and what each does.
    """

    key: str
    value: str
    meaning: str
    about: str = ""
    settings: Sequence[tuple[str, str, str]] = ()
    options: Sequence[tuple[str, str]] = ()


class Overview(NamedTuple):
    """What the page shows, or why it cannot."""

    fields: Sequence[Field]
    latest: int
    revisions: Sequence[Revision]
    problem: str = ""


def read_overview(home: Path) -> Overview:
    """The settings in force and the latest revisions. Blocks."""
    try:
        with closing(open_registry(home)) as registry:
            base, latest = read_base(registry.store), read_revision(registry.store)
            revisions = read_revisions(registry.store, _MOST_REVISIONS)
        document = with_changes(base, latest.changes).model_dump(mode="json")
    except ModellessError as error:
        return Overview((), 0, (), str(error))
    return Overview([_field(key, document) for key in KEYS], latest.number, revisions)


def changes_of(form: Mapping[str, str], fields: Sequence[Field]) -> dict[str, Any]:
    """The settings of a form that differ from those in force, by key; InvalidInputError."""
    found = {}
    for field in fields:
        text = form.get(field.key, field.value).strip()
        if text == field.value:
            continue
        value = parse_yaml(field.key, text, allows_aliases=False)
        try:
            json.dumps(value)
        except (TypeError, ValueError, RecursionError):  # dates, sets, very large numbers
            raise InvalidInputError.of(field.key, text, "a value that JSON has, too") from None
        found[field.key] = value
    return found


def act(home: Path, form: Mapping[str, str], by: str) -> Revision:
    """Apply a form, or roll back as it says; raises as ``change_settings``. Blocks."""
    reason = form.get("reason", "")[:200]
    if "rollback" in form:
        return roll_back(home, by, to=_number(form, "rollback"), reason=reason)
    overview = read_overview(home)
    changes = changes_of(form, overview.fields)
    if not changes:
        raise InvalidInputError("nothing differs from the settings in force: change a field first.")
    return change_settings(home, changes, by, reason=reason, expected=_number(form, "revision"))


def simulate(home: Path, form: Mapping[str, str]) -> dict[str, Any]:
    """What ``modelless config try`` says of a form's policies; a process that gives way. Blocks."""
    changes = changes_of(form, read_overview(home).fields)
    if not changes:
        raise InvalidInputError("nothing differs from the policies in force: change one first.")
    words = ["config", "try", f"--runs={_SIMULATED_RUNS}", "--json", "--"]
    words += [f"{key}={json.dumps(value)}" for key, value in changes.items()]
    return {**run_command(home, words, _SIMULATION_S), "changes": changes}


def infer(home: Path, form: Mapping[str, str], picture: bytes) -> dict[str, Any]:
    """The answer to a real query of one picture or text, with the limits of a form. Blocks."""
    if not 0 < len(picture) <= MOST_PICTURE_BYTES:
        allowed = f"1 to {MOST_PICTURE_BYTES}"
        raise InvalidInputError.of("file: bytes", len(picture), allowed)
    with NamedTemporaryFile() as file:  # for this user alone
        file.write(picture)
        file.flush()
        words = ["infer", file.name, "--json"]
        words += [f"--{name.replace('_', '-')}={form[name]}"
                  for name in ("task", "latency_ms", "min_accuracy") if form.get(name)]  # fmt: skip
        if (limit_usd := most_usd(form)) is not None:
            words.append(f"--max-cost-usd={limit_usd}")
        return run_command(home, words, _INFER_S, form.get("key", ""))


def most_usd(form: Mapping[str, str]) -> float | None:
    """What a query may cost by a form, whose slider is logarithmic: 0 is for any price."""
    try:
        exponent = float(form.get("max_cost", "0"))
    except ValueError:
        raise InvalidInputError.of("max_cost", form["max_cost"], "an exponent of 10") from None
    if not -15.0 <= exponent <= 0.0:
        raise InvalidInputError.of("max_cost", exponent, "-15 to 0, an exponent of 10")
    return 10.0**exponent if exponent < 0.0 else None


def run_command(home: Path, words: Sequence[str], most_s: float, key: str = "") -> dict[str, Any]:
    """The answer of a command of modelless, in a process that gives way to all others. Blocks.

    Args:
        key: that it sends; empty for none, also where this process has one.

    Raises:
        InvalidInputError: the command's own error.
        UnavailableError: it took longer than ``most_s`` seconds.
    """
    environment = {name: each for name, each in os.environ.items() if name != "MODELLESS_KEY"}
    environment |= {"MODELLESS_KEY": key} if key else {}
    command = [sys.executable, "-P", "-m", "modelless.controller.cli", "--home", str(home), *words]
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=most_s, check=False,
            stdin=subprocess.DEVNULL, preexec_fn=_give_way,
            env=environment,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"it took more than {most_s:.0f} s, and was ended") from None
    if ran.returncode:
        raise InvalidInputError(ran.stderr.strip().removeprefix("error: ")[-1000:])
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def simulation_rows(found: Mapping[str, Any]) -> list[Sequence[str]]:
    """A row a figure: now, then, and the difference with its interval."""
    rows: list[Sequence[str]] = []
    for name, row in found["figures"].items():
        now, then, mean = (_short(row[each]["mean"]) for each in ("now", "then", "difference"))
        low, high = _short(row["difference"]["low"]), _short(row["difference"]["high"])
        rows.append((name.replace("_", " "), now, then, mean, f"{low} to {high}"))
    return rows


def _without_nulls(value: object) -> object:
    if not isinstance(value, dict):
        return value
    return {name: _without_nulls(each) for name, each in value.items() if each is not None}


def _give_way() -> None:
    os.nice(19)


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _number(form: Mapping[str, str], name: str) -> int:
    text = form.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidInputError.of(name, text, "the number of a revision")
    return int(text)


def _field(key: str, document: Mapping[str, Any]) -> Field:
    section, _, name = key.partition(".")
    value = document[section][name] if name else document[section]
    inner = Settings.model_fields[section].annotation if name else Settings
    told = inner.model_fields[name or section]  # type: ignore[union-attr]
    meaning = told.description or inspect.getdoc(told.annotation) or ""
    text = value if isinstance(value, str) else json.dumps(_without_nulls(value))
    seam = SEAMS.get(name) if section == "policies" else None
    if seam is None:
        return Field(key, text, meaning)
    policy: type = find_policy(seam, value if isinstance(value, str) else value["policy"])
    documented = inspect.getdoc(policy) or ""
    return Field(
        key,
        text,
        meaning,
        _sentence(inspect.getdoc(sys.modules[policy.__module__]) or ""),
        [
            (each.name, "" if each.default is each.empty else json.dumps(each.default, default=str),
             _argument(documented, each.name))
            for each in settings_of(policy).values()
        ],
        [(each, _about(path)) for each, path in POLICIES[seam].built_in.items()],
    )  # fmt: skip


@cache
def _about(path: str) -> str:
    """What a policy's module says of it; read and not imported: some need large libraries."""
    spec = find_spec(path.partition(":")[0])
    if spec is None or spec.origin is None:
        return ""
    return _sentence(Path(spec.origin).read_text(encoding="utf-8").split('"""')[1])


def _sentence(text: str) -> str:
    return " ".join(text.partition("\n\n")[0].split()).replace("``", "`")


def _argument(text: str, name: str) -> str:
    """What the section ``Args`` of a docstring says of an argument."""
    found = re.search(rf"^ +(?:\w+, )*{name}(?:, \w+)*: (.*(?:\n {{5,}}.*)*)", text, re.MULTILINE)
    return _sentence(found[1]) if found else ""
