"""What the launcher makes of the configuration that Serve writes."""

import errno
import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from modelless.controller.live.cluster.loopback import write_haproxy_launcher
from modelless.controller.live.cluster.ports import HeldPorts
from modelless.controller.live.haproxy import keeper as keeper
from modelless.controller.live.haproxy import launcher as launcher
from modelless.controller.live.haproxy.configuration import (
    REFUSALS,
    Rules,
    hand_over_through,
    has_gateways,
    hold_to_host,
    hold_to_user,
    keep_console_apart,
    keep_keys_together,
    listen_nowhere,
    log_nothing,
    prefer_first,
    refusal,
    repeat_unanswered,
    route_through_sockets,
    say_refusals,
    stand_in,
)
from modelless.controller.live.haproxy.launcher import (
    RULES,
    Current,
    after,
    is_kept,
    is_running,
    read_current,
    write_current,
)

WRITTEN = """\
global
    log 127.0.0.1:514 local0 info
    stats socket /tmp/admin.sock
defaults
    option log-health-checks
    log global
    option httplog
    balance leastconn
frontend prometheus
    bind *:9101
    no log
frontend http_frontend
    bind 127.0.0.1:8000
    use_backend http-a if is_http-a
backend http-a
    log global
    server SERVE_REPLICA_a-Gateway-aaaaaaaa 127.0.0.1:30001 check observe layer4
    server SERVE_REPLICA_a-Gateway-bbbbbbbb 127.0.0.1:30000 check observe layer4
    server SERVE_PROXY-fallback 127.0.0.1:8500 check backup
backend http-b
    server SERVE_REPLICA_b-Gateway-cccccccc 127.0.0.1:30002 check observe layer4
listen stats
  bind :8404
"""
SOCKETS = {"aaaaaaaa": "/run/aaaaaaaa.sock", "bbbbbbbb": "/run/bbbbbbbb.sock"}


def test_every_bind_on_all_addresses_is_held_to_the_host():
    held = hold_to_host(WRITTEN, "127.0.0.1")
    binds = [line.split()[1] for line in held.splitlines() if line.strip().startswith("bind")]
    assert binds == ["127.0.0.1:9101", "127.0.0.1:8000", "127.0.0.1:8404"]


def test_servers_with_a_socket_go_through_it_and_are_checked_where_serve_listens():
    routed = route_through_sockets(WRITTEN, SOCKETS)
    assert (
        "server SERVE_REPLICA_a-Gateway-aaaaaaaa unix@/run/aaaaaaaa.sock "
        "check addr 127.0.0.1 port 30001 observe layer4"
    ) in routed
    assert "SERVE_REPLICA_b-Gateway-cccccccc 127.0.0.1:30002 check" in routed
    assert "SERVE_PROXY-fallback 127.0.0.1:8500 check backup" in routed


def test_the_console_has_a_backend_of_its_own_whose_servers_follow_those_of_queries():
    routed = route_through_sockets(WRITTEN, SOCKETS)
    apart = keep_console_apart(routed)
    backend = apart.partition("backend console\n")[2].partition("backend ")[0]
    assert [line.split() for line in backend.splitlines() if "server" in line] == [
        ["server", f"SERVE_REPLICA_a-Gateway-{name}", f"unix@/run/{name}.sock", "track",
         f"http-a/SERVE_REPLICA_a-Gateway-{name}", "on-marked-down", "shutdown-sessions"]
        for name in ("bbbbbbbb", "aaaaaaaa")
    ]  # fmt: skip
    rules = [line.split()[1] for line in apart.splitlines() if "use_backend" in line]
    assert rules == ["console", "http-a"]
    assert keep_console_apart(WRITTEN) == WRITTEN  # no gateway has a socket


def test_the_first_socket_is_preferred_while_idle_once_a_backend():
    lines = prefer_first(route_through_sockets(WRITTEN, SOCKETS)).splitlines()
    rules = [place for place, line in enumerate(lines) if "use-server" in line]
    assert [lines[place].strip() for place in rules] == [
        "use-server SERVE_REPLICA_a-Gateway-aaaaaaaa "
        "if { srv_conn(SERVE_REPLICA_a-Gateway-aaaaaaaa) eq 0 }"
    ]
    assert lines[rules[0] + 1].split()[1] == "SERVE_REPLICA_a-Gateway-aaaaaaaa"


def test_without_socket_no_server_is_preferred():
    assert prefer_first(WRITTEN) == WRITTEN


def test_queries_of_a_key_go_to_one_server_before_any_other_rule():
    for text in (WRITTEN, prefer_first(route_through_sockets(WRITTEN, SOCKETS))):
        lines = keep_keys_together(text).splitlines()
        names = [f"SERVE_REPLICA_a-Gateway-{letter * 8}" for letter in "ab"]
        rules = [line.strip() for line in lines if "use-server" in line]
        assert rules[:2] == [
            f"use-server {name} if "
            f"{{ req.fhdr(idempotency-key),field(1,.),crc32(1),mod(2) eq {number} }}"
            for number, name in enumerate(names)
        ]
        assert len(lines) == len(text.splitlines()) + 2


def test_one_server_needs_no_rule_for_keys():
    one = "backend http-a\n    server a 127.0.0.1:1 check\n    server b 127.0.0.1:2 check backup\n"
    assert keep_keys_together(one) == one


def test_nothing_is_logged_per_query_but_health_checks_are():
    kept = log_nothing(WRITTEN).splitlines()
    assert not [line for line in kept if line.split()[0] == "log" or "httplog" in line]
    assert "    option log-health-checks" in kept
    assert "    no log" in kept
    assert len(kept) == len(WRITTEN.splitlines()) - 4


RETRIED = """\
defaults
    retry-on conn-failure empty-response
    errorfile 502 /tmp/500.http
    errorfile 503 /tmp/500.http
frontend http_frontend
    bind 127.0.0.1:8000
    use_backend http-a if is_a
backend http-a
    default-server inter 1s check
    server SERVE_REPLICA_a-Gateway-aaaaaaaa 127.0.0.1:30001 check observe layer4
"""


NO_SERVER = RETRIED[: RETRIED.index("    server ")]


def test_a_query_is_taken_in_as_a_whole_and_a_server_that_is_down_gives_its_queries_back():
    text = repeat_unanswered(RETRIED)
    assert "    retry-on conn-failure empty-response\n    timeout http-request 30s\n" in text
    rule = "    http-request wait-for-body time 30s if !{ path /inference.GRPCInferenceService/"
    assert f"    bind 127.0.0.1:8000\n{rule}ModelStreamInfer }}\n" in text
    assert "    default-server inter 1s check on-marked-down shutdown-sessions\n" in text


def test_what_no_gateway_answers_is_answered_as_the_protocol_says():
    text = say_refusals(RETRIED, Path("/run"))
    files = [line.split()[1:] for line in text.splitlines() if "errorfile" in line]
    assert files == [[code, f"/run/{code}.http"] for code in ("400", "408")] + [
        [code, "/run/503.http"] for code in ("502", "503")
    ]
    assert "backup" not in say_refusals(WRITTEN, Path("/run"))
    for status in REFUSALS:
        head, _, body = refusal(status).partition(b"\r\n\r\n")
        assert b"content-length: %d" % len(body) in head
        assert set(json.loads(body)) == {"error", "code"}


def test_without_gateways_every_port_is_somebody_elses():
    assert has_gateways(RETRIED)
    assert not has_gateways(RETRIED.replace("backend http-a", "backend default_backend"))
    assert not has_gateways(NO_SERVER)
    fallback = "    server SERVE_PROXY-fallback 127.0.0.1:8500 check backup\n"
    assert not has_gateways(NO_SERVER + fallback)
    assert "bind" not in listen_nowhere(WRITTEN)


@pytest.mark.parametrize(
    ("given", "becomes"),
    [
        (["-db"], ["-db", "-sf", "7", "-x", "own"]),
        (["-sf", "5", "-x", "serves"], ["-sf", "7", "5", "-x", "own"]),
        (["-sf", "7"], ["-sf", "7", "-x", "own"]),
    ],
)
def test_who_served_before_hands_over_and_finishes(given: list[str], becomes: list[str]):
    assert after(given, Current(7, "", "own")) == becomes


def test_ports_are_handed_over_through_a_socket_besides_serves():
    line = "    stats socket /tmp/admin.sock mode 666 level admin expose-fd listeners\n"
    text = hand_over_through(hold_to_user(f"global\n{line}defaults\n"), "/run/7.admin")
    assert text.count("stats socket /tmp/admin.sock ") == 1
    assert "    stats socket /run/7.admin mode 600 level admin expose-fd listeners\n" in text


def test_who_serves_now_is_noted(tmp_path: Path):
    assert read_current(tmp_path) == (0, "", "")
    write_current(tmp_path, Current(17, "/run/a.cfg", "/run/17.admin"))
    assert read_current(tmp_path) == (17, "/run/a.cfg", "/run/17.admin")
    (tmp_path / "haproxy.json").write_text("half a fi")
    assert read_current(tmp_path) == (0, "", "")


def test_it_is_kept_while_its_keeper_lives(tmp_path: Path):
    assert not is_kept(tmp_path)
    (tmp_path / "keeper.pid").write_text(str(os.getpid()))
    assert is_kept(tmp_path)
    (tmp_path / "keeper.pid").write_text("0")
    assert not is_kept(tmp_path)


def test_a_process_is_known_by_a_word_of_its_command():
    assert is_running(os.getpid(), "python")
    assert not is_running(os.getpid(), "haproxy-of-another")


def test_a_stand_in_leaves_serves_own_socket_alone():
    given = WRITTEN + "    server-state-file /tmp/x\n    load-server-state-from-file global\n"
    text = stand_in(given, "/run/own.socket")
    assert "admin.sock" not in text
    assert "state" not in text
    assert "stats socket /run/own.socket" in text
    assert [line.strip() for line in text.splitlines() if "bind" in line] == ["bind 127.0.0.1:8000"]


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Runs the launcher up to where it becomes HAProxy: the command, and what is to end with it."""

    def run(text: str) -> list[str]:
        (tmp_path / "haproxy.cfg").write_text(text)
        words = ["-db", "-f", str(tmp_path / "haproxy.cfg"), "-dR"]
        became: list[str] = []
        monkeypatch.setattr(sys, "argv", ["launcher", "127.0.0.1", "proxy", str(tmp_path), *words])
        monkeypatch.setattr(os, "execv", lambda _, command: became.extend(command))
        monkeypatch.setattr(launcher, "outlive_parent", lambda: became.append("outlives"))
        monkeypatch.setattr(launcher, "end_with_parent", lambda: became.append("ends"))
        launcher.main()
        return became

    return run


def test_it_may_listen_beside_another(launch: Callable[[str], list[str]]):
    command = launch(RETRIED)
    assert "-dR" not in command
    assert command[1:4] == ["proxy", "-db", "-f"]


def test_who_serves_outlives_serve_while_somebody_watches(
    launch: Callable[[str], list[str]], tmp_path: Path
):
    assert launch(RETRIED)[0] == "ends"
    (tmp_path / "keeper.pid").write_text(str(os.getpid()))
    assert launch(RETRIED)[0] == "outlives"
    assert launch(RETRIED.replace("backend http-a", "backend none"))[0] == "ends"


def test_clients_wait_for_the_first_gateway_and_get_503_where_all_of_them_died(
    launch: Callable[[str], list[str]], tmp_path: Path
):
    launch(NO_SERVER)
    assert read_current(tmp_path).process_id == 0
    assert "bind" not in held_by(tmp_path)
    launch(RETRIED)
    assert read_current(tmp_path).process_id == os.getpid()
    launch(NO_SERVER)
    assert "bind 127.0.0.1:8000" in held_by(tmp_path)


def held_by(folder: Path) -> str:
    return (folder / f"haproxy.cfg.{os.getpid()}.held").read_text()


def test_what_the_dead_left_over_goes_but_for_what_may_be_started_again(
    launch: Callable[[str], list[str]], tmp_path: Path
):
    gone = 2**22 + 1  # no such process
    noted, other = (tmp_path / f"haproxy.cfg.{number}.held" for number in (gone, gone + 1))
    for file in (noted, other):
        file.write_text("")
    write_current(tmp_path, Current(0, str(noted), ""))
    launch(RETRIED.replace("backend http-a", "backend none"))
    assert noted.exists()
    assert not other.exists()


def test_each_haproxy_gets_the_socket_that_clients_wait_in(tmp_path: Path):
    with closing(HeldPorts()) as ports:
        port = ports.hold("127.0.0.1")
        kept = keeper.HAProxyKeeper(tmp_path, "proxy", ports, port)
        kept.start()
        for _ in range(2):
            with socket.socket(fileno=launcher.fetch_listener(tmp_path)) as listener:
                assert os.get_inheritable(listener.fileno())
                with socket.create_connection(("127.0.0.1", port), timeout=5):
                    listener.accept()[0].close()
        ports.close()
        with pytest.raises(OSError, match="given away no more"):
            launcher.fetch_listener(tmp_path)
        kept.stop()
        kept.close()
    with pytest.raises(OSError, match="refused"):
        launcher.fetch_listener(tmp_path)


@pytest.mark.parametrize(
    ("error", "has_ended"), [(ProcessLookupError(), True), (OSError(errno.ENOSYS, "none"), False)]
)
def test_only_a_process_that_is_gone_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, has_ended: bool
):
    def refuse(_: int) -> int:
        raise error

    monkeypatch.setattr(keeper, "is_running", lambda *_: True)
    monkeypatch.setattr(keeper, "LOOK_S", 0.01)
    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert keeper.HAProxyKeeper(tmp_path, "proxy", HeldPorts(), 1)._ended(7) is has_ended


@pytest.mark.parametrize(
    ("given", "becomes"),
    [
        ("/a.sock mode 666 level admin", "/a.sock mode 600 level admin"),
        ("/a.sock level admin expose-fd listeners mode 0666", None),
        ("/a.sock level admin expose-fd listeners", None),
        ("/a.sock", "/a.sock mode 600"),
    ],
)
def test_administration_is_for_this_user_alone(given: str, becomes: str | None):
    becomes = becomes or "/a.sock mode 600 level admin expose-fd listeners"
    text = f"global\n    stats socket {given}\n    stats timeout 30s\n\ndefaults\n    mode http\n"
    assert hold_to_user(text) == text.replace(given, becomes)


def test_haproxy_is_started_with_nothing_that_another_user_could_reach(tmp_path: Path):
    """The launcher as Serve runs it, with a HAProxy that shows what it was given."""
    folder, sockets = tmp_path / "node", tmp_path / "sockets"
    for each in (folder, sockets):
        each.mkdir()
    rules = Rules("127.0.0.1:1", "127.0.0.1:2", 1, 1)
    started, binary = write_haproxy_launcher(tmp_path, rules, sockets)
    (sockets / RULES).unlink()
    shown = tmp_path / "shown"
    started.write_text(started.read_text().replace(binary, str(shown)))
    shown.write_text('#!/bin/sh\necho "$@"\ncat "$3"\n')
    shown.chmod(0o700)
    written = folder / "haproxy.cfg"
    line = "    stats socket /tmp/admin.sock mode 666 level admin expose-fd listeners\n"
    written.write_text(WRITTEN.replace("    stats socket /tmp/admin.sock\n", line))
    (folder / "haproxy.cfg.0.held").touch()
    done = subprocess.run(
        [str(started), "-db", "-f", str(written), "-dR"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    arguments, _, configuration = done.stdout.partition("\n")
    (held,) = folder.glob("*.held")
    assert shlex.split(arguments) == ["-db", "-f", str(held)]
    lines = configuration.splitlines()
    admin = [each.split()[2:5] for each in lines if each.strip().startswith("stats socket")]
    own = read_current(sockets).socket
    assert admin == [["/tmp/admin.sock", "mode", "600"], [own, "mode", "600"]]
    binds = [each.split()[1] for each in lines if each.strip().startswith("bind")]
    assert [bind for bind in binds if not bind.startswith("127.0.0.1:")] == []
