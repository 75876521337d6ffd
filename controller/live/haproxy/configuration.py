"""The edits of HAProxy's configuration, which Ray Serve writes and ``launcher`` runs when edited.

- Serve binds its metrics and statistics ports on every address: they are held to ``host``.
- Serve listens on a port of its own on loopback, for its health checks and for operators, whose
  requests get a header that clients cannot send. Clients get a port here, without Serve's own
  paths and with limits by source address: of connections, and of requests a second.
- Serve opens HAProxy's administration socket to every user of the machine, who could take servers
  out of service or fetch the listening sockets: it is held to this user, who is Serve's as well.
- A gateway that listens on a Unix socket, named after its replica, is reached through it
  instead of through Serve's own HTTP server in the same process, which costs about 0.5 ms of CPU a
  request. Health checks still go to Serve's port, so a replica that Serve takes out is out.
- While the first gateway has nothing to do it gets the next query; only then do the others share by
  least connections. A model that has just run answers sooner than one that slept (4.1 against 5.2
  ms, measured), so a trickle of queries should not be spread.
- Queries that have an idempotency key go to the gateway that a hash of the key names, up to its
  first dot: one that is sent again finds the answer of the first, even if HAProxy was replaced.
- The console has a backend of its own, so that its open streams count among no gateway's queries.
- Nothing is logged per query: Serve's configuration formats and sends a line for each.
- HAProxy looks up no name: by itself it opens a socket to each of the host's name servers.
- A query whose gateway dies before it answers is sent once more, to another gateway: inference may
  be repeated. HAProxy can only repeat what it has kept, so it takes a query in as a whole first.
- HAProxy compresses replies for clients that accept it, so that gateways' event loops need not.
- What HAProxy refuses itself is refused in JSON, as gateways do, once it has a request's head.
- What no gateway answers is answered here: 503, as JSON, to be tried again. Serve would ask its own
  proxy, which says 404 once the gateways are being taken down.
- Clients may speak HTTP/2 on their port, as gRPC does: HAProxy turns a call into a chunked request
  of HTTP/1.1, and trailers back. It does not wait for a stream's body.

Standard library only, as ``launcher``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

MOST_SENDING_S = 30
"""A client that takes longer to send its query, or the first 256 kB of it, is answered 408."""

_STATS_SOCKET = re.compile(r"^(\s*stats socket \S+)(.*)$", re.MULTILINE)
_MODE = re.compile(r"\s+mode\s+\S+")
_BIND = re.compile(r"^(\s*bind\s+)(?:\*|0\.0\.0\.0|\[::\])?:(\d+)", re.MULTILINE)
_SERVER = re.compile(
    r"^(\s*server\s+(\S*-(\w+))\s+)(127\.0\.0\.1|localhost):(\d+)\s+check\b(?!\s+backup)",
    re.MULTILINE,
)
_SOCKET = re.compile(r"^([ \t]*)server\s+(\S+)\s+unix@(\S+)", re.MULTILINE)
_USE_APPLICATION = re.compile(r"^([ \t]*)use_backend http-", re.MULTILINE)
CONSOLE, _CONSOLE = "console", "/console"
_ANY_SERVER = re.compile(r"^([ \t]*)(?:use-)?server ", re.MULTILINE)
_OF_BACKEND = re.compile(r"^([ \t]*)server\s+(\S+)\s(?!.*\bbackup\b)", re.MULTILINE)
_HASH_OF_KEY = "req.fhdr(idempotency-key),field(1,.),crc32(1)"
_ANY_BIND = re.compile(r"^\s*bind .*\n", re.MULTILINE)
_ADMIN = re.compile(r"^(\s*stats socket )\S+( .*\bexpose-fd listeners.*)$", re.MULTILINE)
_APPLICATION = re.compile(r"^backend http-", re.MULTILINE)
_FALLBACK = re.compile(r"^\s*server .* check backup\n", re.MULTILINE)
_ERROR_FILE = re.compile(r"^(\s*errorfile (?:502|503|504) )\S+", re.MULTILINE)

_FRONTEND = re.compile(r"^(frontend http_frontend\n)(?:\s*bind .*\n)+", re.MULTILINE)
_FIRST_ERROR_FILE = re.compile(r"^(\s*)errorfile 502 ", re.MULTILINE)
_RATE_WINDOW_S = 10

_NOT_FOR_CLIENTS = "not for clients"
"""Marks the ports of a frontend that a stand-in does without."""
_OF_SERVE = re.compile(
    r"^\s*(?:stats socket|server-state-base|server-state-file|load-server-state-from-file) .*\n",
    re.M,
)
_CLOSED_TO_CLIENTS = re.compile(rf"^\s*bind .*# {_NOT_FOR_CLIENTS}\n", re.M)
_OTHER_PORTS = re.compile(r"^((?:frontend prometheus|listen stats)\n)\s*bind .*\n", re.M)

_BUFFER = re.compile(r"^([ \t]*)tune\.bufsize (\d+)$", re.MULTILINE)
_IS_CALL = "{ path_beg /inference. }"
_STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
_STREAM_SHARE = 128
"""One in so many of the requests that an address may have open may be a stream."""
_OPEN_REQUESTS = """\
backend open_requests
    stick-table type ipv6 size 100k expire 60s store conn_cur
backend open_streams
    stick-table type ipv6 size 100k expire 60s store conn_cur
"""
"""Counts by address the requests that are open: an HTTP/2 connection may have a hundred."""

OPERATORS_HEADER, OF_PORT, OF_SOCKET = "modelless-operators", "port", "socket"
"""A header that clients cannot send, and its values: on the operators' port, and straight on a
gateway's own socket, which only this user reaches."""

REFUSALS = {
    400: (
        "Bad Request",
        "invalid-input",
        "not an HTTP/1.1 request, or one with too many or too long headers",
    ),
    408: (
        "Request Timeout",
        "too-slow",
        "the request took too long to arrive: send it faster, or less of it",
    ),
    503: (
        "Service Unavailable",
        "unavailable",
        "no gateway could answer the query; try once again",
    ),
}
"""What HAProxy answers itself, by status: its words, and the error's code and message."""


def refusal_body(code: str, message: str) -> bytes:
    """The body of such a reply."""
    return json.dumps({"error": message, "code": code}, separators=(",", ":")).encode()


_TOO_MANY = "too many requests from this address; try again in a few seconds"
TOO_MANY = refusal_body("overloaded", _TOO_MANY)


def refusal(status: int) -> bytes:
    """The HTTP reply with which HAProxy refuses a request itself."""
    words, code, message = REFUSALS[status]
    body = refusal_body(code, message)
    lines = [f"HTTP/1.1 {status} {words}", "content-type: application/json"]
    lines += [f"content-length: {len(body)}", "connection: close"]
    lines += ["retry-after: 1"] if status == 503 else []
    return "\r\n".join([*lines, "", ""]).encode() + body


LISTENER = "MODELLESS_LISTENER"
"""In the environment of a process that has inherited that socket: the number of the file.

(The process that has the cluster may inherit others too; see ``cluster/ports``.)
"""


class Rules(NamedTuple):
    """Where clients and operators come in, and what each address may do.

    Attributes:
        clients: ``ADDRESS:PORT`` for clients.
        operators: ``ADDRESS:PORT`` for operators alone, with the port on which Serve listens.
        connections: that clients at one address may have open, and as many requests.
        requests_per_s: that clients at one address may send.
        certificate: PEM file for clients' TLS; empty for none.
    """

    clients: str
    operators: str
    connections: int
    requests_per_s: int
    certificate: str = ""


def let_in(configuration: str, rules: Rules) -> str:
    """The configuration with the clients' and the operators' ports, and limits for clients."""
    found = _FRONTEND.search(configuration)
    if found is None:
        return configuration
    of_clients = f"{{ dst_port {rules.clients.rpartition(':')[2]} }}"
    of_operators = f"{{ dst_port {rules.operators.rpartition(':')[2]} }}"
    deny = f"http-request deny deny_status 429 hdr retry-after {_RATE_WINDOW_S}"
    too_many = "if is_frequent or has_many_open"
    lines = [
        f"bind {rules.operators}  # {_NOT_FOR_CLIENTS}",
        f'bind "fd@${{{LISTENER}}}"{_tls(rules.certificate)}',
        f"stick-table type ipv6 size 100k expire 60s "
        f"store conn_cur,http_req_rate({_RATE_WINDOW_S}s)",
        f"tcp-request connection track-sc0 src if {of_clients}",
        f"tcp-request connection reject if {{ sc0_conn_cur gt {rules.connections} }}",
        f"http-request track-sc1 src table open_requests if {of_clients}",
        f"acl is_frequent sc0_http_req_rate gt {_RATE_WINDOW_S * rules.requests_per_s}",
        f"http-request track-sc2 src table open_streams if {of_clients} {{ path {_STREAM} }}",
        f"acl has_many_open sc1_conn_cur gt {rules.connections}",
        f"acl has_many_open sc2_conn_cur gt {max(rules.connections // _STREAM_SHARE, 1)}",
        f"{deny} content-type application/grpc hdr grpc-status 8 hdr grpc-message '{_TOO_MANY}' "
        f"lf-string '%[var(txn.nothing)]' if {_IS_CALL} is_frequent or {_IS_CALL} has_many_open",
        f"{deny} content-type application/json string '{TOO_MANY.decode()}' {too_many}",
        f"http-request del-header {OPERATORS_HEADER}",
        f"http-request set-header {OPERATORS_HEADER} {OF_PORT} if {of_operators}",
        f"http-request deny deny_status 404 if {{ path_beg /-/ }} !{of_operators}",
        "compression algo gzip deflate",
        "compression type application/json application/octet-stream text/plain",
    ]
    block = found[1] + "".join(f"    {line}\n" for line in lines)
    return configuration[: found.start()] + _OPEN_REQUESTS + block + configuration[found.end() :]


def _tls(certificate: str) -> str:
    """What makes a port speak TLS, 1.2 at least; nothing without a certificate."""
    quoted = certificate.replace("\\", "\\\\").replace(" ", "\\ ")
    return f" ssl crt {quoted} alpn h2,http/1.1 ssl-min-ver TLSv1.2" if certificate else ""


def hold_to_host(configuration: str, host: str) -> str:
    """The configuration with every bind on all addresses held to ``host``."""
    return _BIND.sub(rf"\g<1>{host}:\g<2>", configuration)


def hold_to_user(configuration: str) -> str:
    """The configuration with every administration socket open to this user alone."""
    return _STATS_SOCKET.sub(
        lambda match: f"{match[1]} mode 600{_MODE.sub('', match[2])}", configuration
    )


def route_through_sockets(configuration: str, sockets: dict[str, str]) -> str:
    """The configuration with servers that have a socket reached through it.

    Args:
        sockets: socket path by the replica's unique id, which ends the server's name.
    """

    def through_socket(match: re.Match[str]) -> str:
        socket = sockets.get(match[3])
        if socket is None:
            return match[0]
        return f"{match[1]}unix@{socket} check addr {match[4]} port {match[5]}"

    return _SERVER.sub(through_socket, configuration)


def prefer_first(configuration: str) -> str:
    """The configuration with an idle first socket preferred in every backend that has sockets."""
    lines = []
    has_rule = False
    for line in configuration.splitlines(keepends=True):
        socket = _SOCKET.match(line)
        if line.startswith("backend "):
            has_rule = False
        elif socket and not has_rule:
            lines.append(f"{socket[1]}use-server {socket[2]} if {{ srv_conn({socket[2]}) eq 0 }}\n")
            has_rule = True
        lines.append(line)
    return "".join(lines)


def keep_keys_together(configuration: str) -> str:
    """The configuration with all queries of an idempotency key at one server of their backend."""
    backends = re.split(r"^(?=backend )", configuration, flags=re.MULTILINE)
    for place, backend in enumerate(backends):
        names = sorted(match[2] for match in _OF_BACKEND.finditer(backend))
        first = _ANY_SERVER.search(backend)
        if first is None or len(names) < 2 or not has_application(backend):
            continue
        rules = "".join(
            f"{first[1]}use-server {name} if {{ {_HASH_OF_KEY},mod({len(names)}) eq {number} }}\n"
            for number, name in enumerate(names)
        )
        backends[place] = backend[: first.start()] + rules + backend[first.start() :]
    return "".join(backends)


def keep_console_apart(configuration: str) -> str:
    """The configuration with a backend of its own for the console, the last socket first.

    A tab's stream stays open: among the queries it would count as one that its gateway still has
    to answer. One gateway shows all pages, so that their charts go on; whether it is there is seen
    where queries are sent, and not checked twice.
    """
    for backend in re.split(r"^(?=backend )", configuration, flags=re.MULTILINE):
        sockets = list(_SOCKET.finditer(backend)) if has_application(backend) else []
        if not sockets:
            continue
        name = backend.split()[1]
        servers = [
            f"    server {socket[2]} unix@{socket[3]} track {name}/{socket[2]} "
            "on-marked-down shutdown-sessions\n"
            for socket in reversed(sockets)
        ]
        pages = f"{{ path {_CONSOLE} }} or {{ path_beg {_CONSOLE}/ }}"
        rule = rf"\1use_backend {CONSOLE} if {pages}\n\g<0>"
        text = _USE_APPLICATION.sub(rule, configuration, count=1)
        return text.replace(
            backend, f"backend {CONSOLE}\n    balance first\n{''.join(servers)}{backend}"
        )
    return configuration


def log_nothing(configuration: str) -> str:
    """The configuration without access logs; HAProxy still prints what goes wrong."""
    return re.sub(r"^\s*(?:log\s|option\s+httplog\b).*\n", "", configuration, flags=re.MULTILINE)


def take_messages_whole(configuration: str) -> str:
    """The configuration with HTTP/2's windows as large as its buffers, and frames half as large.

    By default a client cuts a message of 150 kB into ten frames, and waits for HAProxy twice.
    """
    frames = r"\g<0>\n\1tune.h2.fe.initial-window-size \2\n\1tune.h2.max-frame-size "
    return _BUFFER.sub(lambda found: found.expand(frames) + str(int(found[2]) // 2), configuration)


def resolve_nothing(configuration: str) -> str:
    """The configuration with no name servers, in place of those of the host."""
    return f"{configuration}\nresolvers default\n"


def repeat_unanswered(configuration: str) -> str:
    """The configuration with queries taken in as a whole, in time, and servers' downs seen at once.

    That a query is repeated at all is Serve's setting, RAY_SERVE_HAPROXY_RETRY_ON.
    """
    in_time = rf"\1\2\n\1timeout http-request {MOST_SENDING_S}s"
    text = re.sub(r"^(\s*)(retry-on .*)$", in_time, configuration, flags=re.M)
    taken_in = f"http-request wait-for-body time {MOST_SENDING_S}s if !{{ path {_STREAM} }}"
    text = _FRONTEND.sub(rf"\g<0>    {taken_in}\n", text)
    return re.sub(
        r"^(\s*default-server .*)$", r"\1 on-marked-down shutdown-sessions", text, flags=re.M
    )


def has_application(configuration: str) -> bool:
    """Whether there is an application to send clients to, with gateways or without."""
    return _APPLICATION.search(configuration) is not None


def has_gateways(configuration: str) -> bool:
    """Whether an application has a gateway."""
    backends = re.split(r"^(?=backend )", configuration, flags=re.MULTILINE)
    return any(has_application(each) and _OF_BACKEND.search(each) for each in backends)


def listen_nowhere(configuration: str) -> str:
    """The configuration without any port."""
    return _ANY_BIND.sub("", configuration)


def hand_over_through(configuration: str, socket: str) -> str:
    """The configuration with a socket of its own besides Serve's, through which ports are got."""
    return _ADMIN.sub(rf"\g<0>\n\g<1>{socket}\g<2>", configuration)


def say_refusals(configuration: str, folder: Path) -> str:
    """The configuration with files of the folder, ``STATUS.http``, as HAProxy's own refusals."""
    text = _ERROR_FILE.sub(rf"\g<1>{folder}/503.http", _FALLBACK.sub("", configuration))
    others = "".join(rf"\1errorfile {code} {folder}/{code}.http\n" for code in (400, 408))
    return _FIRST_ERROR_FILE.sub(rf"{others}\g<0>", text, count=1)


def edit(
    configuration: str, host: str, sockets: dict[str, str], rules: Rules | None, folder: Path
) -> str:
    """The configuration with all of the edits above, but for who listens.

    Args:
        host: every port but the clients' is held to this address.
        sockets: see ``route_through_sockets``.
        rules: for clients and operators; None if Serve's port is all that there is.
        folder: holds the refusals, ``STATUS.http``.
    """
    text = hold_to_user(hold_to_host(configuration, host))
    text = resolve_nothing(route_through_sockets(text, sockets))
    text = log_nothing(keep_console_apart(keep_keys_together(prefer_first(text))))
    text = say_refusals(repeat_unanswered(take_messages_whole(text)), folder)
    return let_in(text, rules) if rules is not None else text


def stand_in(configuration: str, admin: str) -> str:
    """The configuration without what belongs to Serve alone: only clients come in.

    Args:
        configuration: of the HAProxy that ended.
        admin: socket at which Serve's next HAProxy asks for ports.
    """
    text = _OTHER_PORTS.sub(r"\1", _OF_SERVE.sub("", configuration))
    text = _CLOSED_TO_CLIENTS.sub("", text)
    own = f"    stats socket {admin} mode 600 level admin expose-fd listeners\n"
    return text.replace("global\n", f"global\n{own}", 1)
