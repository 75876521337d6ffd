"""What the launcher makes of the configuration that Serve writes."""

from modelless.controller.live.haproxy_launcher import (
    hold_to_host,
    log_nothing,
    prefer_first,
    route_through_doors,
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
