"""What the launcher makes of the configuration that Serve writes."""

import json
import os
from pathlib import Path

import pytest

from modelless.controller.live.haproxy_keeper import stand_in
from modelless.controller.live.haproxy_launcher import (
    UNANSWERED,
    Current,
    after,
    hand_over_through,
    has_gateways,
    hold_to_host,
    is_kept,
    is_running,
    listen_nowhere,
    log_nothing,
    prefer_first,
    read_current,
    repeat_unanswered,
    route_through_doors,
    say_unavailable,
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
DOORS = {"aaaaaaaa": "/run/aaaaaaaa.door", "bbbbbbbb": "/run/bbbbbbbb.door"}


def test_every_bind_on_all_addresses_is_held_to_the_host():
    held = hold_to_host(WRITTEN, "127.0.0.1")
    binds = [line.split()[1] for line in held.splitlines() if line.strip().startswith("bind")]
    assert binds == ["127.0.0.1:9101", "127.0.0.1:8000", "127.0.0.1:8404"]


def test_servers_with_a_door_go_through_it_and_are_checked_where_serve_listens():
    routed = route_through_doors(WRITTEN, DOORS)
    assert (
        "server SERVE_REPLICA_a-Gateway-aaaaaaaa unix@/run/aaaaaaaa.door "
        "check addr 127.0.0.1 port 30001 observe layer4"
    ) in routed
    assert "SERVE_REPLICA_b-Gateway-cccccccc 127.0.0.1:30002 check" in routed
    assert "SERVE_PROXY-fallback 127.0.0.1:8500 check backup" in routed


def test_the_first_door_is_preferred_while_idle_once_a_backend():
    lines = prefer_first(route_through_doors(WRITTEN, DOORS)).splitlines()
    rules = [place for place, line in enumerate(lines) if "use-server" in line]
    assert [lines[place].strip() for place in rules] == [
        "use-server SERVE_REPLICA_a-Gateway-aaaaaaaa "
        "if { srv_conn(SERVE_REPLICA_a-Gateway-aaaaaaaa) eq 0 }"
    ]
    assert lines[rules[0] + 1].split()[1] == "SERVE_REPLICA_a-Gateway-aaaaaaaa"


def test_without_doors_no_server_is_preferred():
    assert prefer_first(WRITTEN) == WRITTEN


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
"""


def test_a_query_is_taken_in_as_a_whole_and_a_server_that_is_down_gives_its_queries_back():
    text = repeat_unanswered(RETRIED)
    assert "    retry-on conn-failure empty-response\n    option http-buffer-request\n" in text
    assert "    timeout http-request 30s\n" in text
    assert "    default-server inter 1s check on-marked-down shutdown-sessions\n" in text


def test_what_no_gateway_answers_is_answered_as_the_protocol_says():
    assert say_unavailable(RETRIED, "/run/x.http").count("/run/x.http") == 2
    assert "backup" not in say_unavailable(WRITTEN, "/run/x.http")
    head, _, body = UNANSWERED.partition(b"\r\n\r\n")
    assert b"content-length: %d" % len(body) in head
    assert set(json.loads(body)) == {"error"}


def test_without_gateways_every_port_is_somebody_elses():
    assert has_gateways(RETRIED)
    assert not has_gateways(RETRIED.replace("backend http-a", "backend default_backend"))
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
    text = hand_over_through(f"global\n{line}defaults\n", "/run/7.admin")
    assert text.count("stats socket /tmp/admin.sock ") == 1
    assert "    stats socket /run/7.admin mode 666 level admin expose-fd listeners\n" in text


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
    text = stand_in(given, "/run/own.socket", 7)
    assert "admin.sock" not in text
    assert "state" not in text
    assert "stats socket /run/own.socket" in text
    assert [line.strip() for line in text.splitlines() if "bind" in line] == ["bind fd@7"]
