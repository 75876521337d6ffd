"""Keys by command: shown once, listed without themselves, revoked; and every act is noted."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from modelless.controller.live.key_file import read_keys

from .conftest import Run


def acts(home: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (home / "audit.jsonl").read_text().splitlines()]


def test_a_key_is_shown_once_and_kept_as_a_hash(run: Run, home: Path) -> None:
    made = run("key", "create", "--tenant", "shop", "--scope", "infer,feedback", "--expires", "90d")
    assert made.code == 0, made.err
    secret = made.out.strip()
    assert secret.startswith("mk_")
    (key,) = read_keys(home).keys
    assert read_keys(home).find([(b"authorization", f"Bearer {secret}".encode())], 0.0) == key
    assert (key.tenant, key.scopes, key.max_priority) == ("shop", ("infer", "feedback"), 0)
    assert key.expires_at == pytest.approx(key.created_at + 90 * 86_400)
    for name in ("keys.json", "audit.jsonl"):
        assert stat.S_IMODE((home / name).stat().st_mode) == 0o600
        assert secret not in (home / name).read_text()
    listed = run("key", "list")
    assert key.key_id in listed.out
    assert secret not in listed.out


def test_a_revoked_key_stays_in_the_list(run: Run, home: Path) -> None:
    made = run("key", "create", "--tenant", "shop", "--json").document
    revoked = run("key", "revoke", made["key_id"])
    assert revoked.out == f"key {made['key_id']} of shop is revoked\n"
    (told,) = run("key", "list", "--json").document["keys"]
    assert told["state"] == "was revoked"
    assert "sha256" not in told
    assert [act["act"] for act in acts(home)] == ["key-create", "key-revoke"]
    assert acts(home)[0]["tenant"] == "shop"
    assert all(act["user"] and act["at"] for act in acts(home))


def test_without_keys_the_list_says_what_that_means(run: Run) -> None:
    assert "everybody on this machine may do everything" in run("key", "list").out


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("create", "--tenant", "Shop!"), 2, "--tenant"),
        (("create", "--tenant", "a", "--scope", "root"), 2, "allowed: infer, feedback, operate"),
        (("create", "--tenant", "a", "--expires", "soon"), 2, "--expires"),
        (("create", "--tenant", "a", "--max-priority", "12"), 2, "--max-priority"),
        (("revoke", "nosuch"), 3, "'modelless key list' shows all"),
    ],
)
def test_what_makes_no_sense_is_refused(
    run: Run, home: Path, words: tuple[str, ...], code: int, says: str
) -> None:
    ran = run("key", *words)
    assert ran.code == code
    assert says in ran.err
    assert not read_keys(home).is_needed


def test_other_machines_are_served_with_keys_or_by_express_wish(run: Run, home: Path) -> None:
    for words in ((), ("--detach",)):
        ran = run("up", "--host", "192.0.2.1", *words)
        assert ran.code == 7
        assert "modelless key create" in ran.err
        assert "--insecure" in ran.err
    assert not (home / "audit.jsonl").exists()


def test_an_act_that_cannot_be_noted_is_not_done(run: Run, home: Path) -> None:
    home.mkdir()
    (home / "audit.jsonl").mkdir()
    ran = run("key", "create", "--tenant", "shop")
    assert ran.code == 6
    assert "audit log" in ran.err
    assert not read_keys(home).is_needed
