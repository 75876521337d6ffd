"""From HTTP to the dispatcher and back: requests become events, and effects become replies."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from modelless.common.errors import ModellessError, NotFoundError
from modelless.controller.api.batches import parse_batch
from modelless.controller.api.feedback import Feedback, parse_feedback
from modelless.controller.api.grpc_calls import (
    INFER,
    Call,
    is_call,
    message_encoding,
    method_of,
    render_infer_call,
    route_call,
    translate_description,
    without_message,
)
from modelless.controller.api.grpc_messages import InferMessage
from modelless.controller.api.keys import Key, secret_of
from modelless.controller.api.quotes import parse_quote, placement_document, quote_document
from modelless.controller.api.request_limits import MOST_PICTURE_BYTES, Limits
from modelless.controller.api.v2_headers import (
    REQUEST_ID,
    RequestHeaders,
    decode_body,
    find_header,
    read_headers,
)
from modelless.controller.api.v2_reply import (
    Headers,
    Reply,
    count_elements,
    render_error,
    render_infer,
    render_json,
)
from modelless.controller.api.v2_request import InferRequest, check_outputs, parse_infer
from modelless.controller.api.v2_routes import Endpoint, Route, route
from modelless.controller.config import Settings
from modelless.controller.control.served_versions import Service
from modelless.controller.dispatch.dispatcher import Dispatcher
from modelless.controller.dispatch.explanations import explain_choice
from modelless.controller.dispatch.messages import (
    AskForLoad,
    BatchDone,
    BatchFailed,
    CacheHit,
    Complete,
    DispatchEffect,
    DispatchEvent,
    Execute,
    PolicyFailed,
    QueryArrived,
    QueryCancelled,
    Refuse,
    WakeAt,
)
from modelless.controller.dispatch.trials import SHADOW
from modelless.controller.history.receipts import receipt_document
from modelless.controller.live.front.access import Access, operator_of
from modelless.controller.live.front.answer_cache import AnswerCache, is_reusable, key_of
from modelless.controller.live.front.bodies import BodyBudget
from modelless.controller.live.front.console.console import Console
from modelless.controller.live.front.console.forms import (
    MOST_FORM_BYTES,
    bearer_of,
    check_token,
    read_form,
    with_key,
)
from modelless.controller.live.front.feedback import FeedbackDesk
from modelless.controller.live.front.idempotency import IDEMPOTENCY_KEY, KeptAnswers
from modelless.controller.live.front.interfaces import Host, Respond, RunBatch
from modelless.controller.live.front.names import Names
from modelless.controller.live.front.replies import error_of, reply_parameters
from modelless.controller.live.front.shadows import Shadows, find_reference, score, shadow_of
from modelless.controller.live.front.side_thread import Aside
from modelless.controller.live.haproxy.configuration import OF_SOCKET
from modelless.controller.live.servable import Servable
from modelless.policies.reasons import Reason
from modelless.policies.views import QueryView
from modelless.variants.registry.catalog import Catalog, Scope
from modelless.variants.registry.versions import name_of
from modelless.variants.runtimes.runtime import Tensors
from modelless.variants.signature import check_inputs, has_free_sizes, item_size, round_size
from modelless.variants.vocabulary import OFFLINE, SLO, Task, Variant

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


_BATCH_ACTS: Final = {
    Endpoint.BATCHES: "begin",
    Endpoint.BATCH: "state",
    Endpoint.BATCH_CANCEL: "cancel",
}


class _Read(NamedTuple):
    """A query's body, read and checked.

    Attributes:
        request: what was asked.
        tensors, items: its inputs, and the number of their items.
        render: renders the answer; see ``render_infer``.
        cache_key: see ``answer_cache.key_of``.
        is_reusable: whether another query's answer will do.
    """

    request: InferRequest
    tensors: Tensors
    items: int
    render: Callable[..., tuple[bytes, Headers]]
    cache_key: bytes | None
    is_reusable: bool


class _ReadAside:
    """A request that is read in the other thread.

    Attributes:
        query_id: of the query that it becomes; 0 until then.
    """

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._taken_bytes = 0
        self.query_id = 0

    def take(self, size_bytes: int) -> None:
        """Set memory of the budget aside, besides the body's."""
        self._budget.take(size_bytes)
        self._taken_bytes += size_bytes

    def give_back(self) -> None:
        """Give back what was set aside."""
        self._budget.give(self._taken_bytes)
        self._taken_bytes = 0


def _read_query(
    parse: Callable[[Callable[[int], None]], InferRequest],
    render: Callable[..., tuple[bytes, Headers]],
    said: RequestHeaders,
    scope: Scope,
    cached_for: str | None,
    max_items: int,
    take: Callable[[int], None] = lambda _: None,
) -> _Read:
    """Read the body of a query for ``scope``; ``take`` is for what it takes in plain.

    Of a query with more than ``max_items``, which is refused, the values are not looked at.
    """
    request = parse(take)
    check_outputs(request, scope.task)
    items = 0
    for array in request.tensors.values():
        if array.ndim and len(array) > items:
            items = len(array)
    arrays = request.tensors
    if (
        items > max_items
        and all(array.size for array in arrays.values())
        and {name: array.ndim for name, array in arrays.items()}
        == {spec.name: len(spec.shape) for spec in scope.task.inputs}
    ):
        return _Read(request, request.tensors, items, render, None, is_reusable=False)
    tensors, items = check_inputs(scope.task, request.tensors)
    key = key_of(cached_for, said, request, tensors) if cached_for is not None else None
    return _Read(
        request, tensors, items, render, key, key is not None and is_reusable(said, request)
    )


def _parse_body(
    body: bytes | memoryview,
    said: RequestHeaders,
    limits: Limits,
    slos: Mapping[str, Mapping[str, Any]],
    take: Callable[[int], None],
) -> InferRequest:
    if said.content_encoding is not None:
        only_json = said.json_length is None
        most_bytes = limits.max_json_bytes if only_json else limits.max_body_bytes
        body = decode_body(body, said.content_encoding, most_bytes, take)
    return parse_infer(body, said.json_length, limits, said.parameters, slos, take)


@dataclass(slots=True)
class _Open:
    query: QueryView
    read: _Read
    scope: Scope
    model_name: str
    respond: Respond
    owner: str  # the tenant of the key; empty where there are no keys
    may_judge: bool = False  # whether its client may give feedback


def _respond_to_error(error: Exception, respond: Respond, headers: Headers) -> None:
    if not isinstance(error, ModellessError):
        request_id = (find_header(headers, REQUEST_ID) or b"").decode("latin-1")
        logger.error("request %s could not be answered", request_id, exc_info=error)
    respond(render_error(error))


def _respond_with(respond: Respond, rendered: tuple[bytes, Headers] | Exception) -> None:
    if not isinstance(rendered, Exception):
        respond(Reply(200, *rendered))
        return
    if not isinstance(rendered, ModellessError):
        logger.error("a reply could not be rendered", exc_info=rendered)
    respond(render_error(rendered))


def _owner(key: Key | None) -> str:
    return key.tenant if key is not None else ""


def _operator(key: Key | None) -> str:
    return f"key {key.key_id}" if key is not None else "operators' port"


class V2Frontend:
    """The Open Inference Protocol on top of a dispatcher.

    Args:
        catalog: the registered tasks and variants.
        servable: the tasks that can be served; the gateway keeps it up to date, as the catalog.
        dispatcher: the state machine.
        host: runs batches, wakes the frontend, and tells how its process and the cluster are.
        clock: returns the dispatcher's time, seconds.
        settings: of the gateway.
        gateway_id: the first part of receipt ids.
        desk: assigns queries to versions on trial, and takes feedback.
        access: who may do what; None: everybody may do everything.
        home: where the console reads the store and receipts; None: it shows neither.
        limits, budget: bounds on requests, and on the memory for bodies; by default as the settings
            say.

    Attributes:
        names: what requests may name.
        console: the operators' pages.
        limits: bounds on requests.
        budget: of the memory for bodies.
        replies: how many replies had each HTTP status, since the gateway's last report; the server
            counts them here.
        is_at_rest: whether no worker is kept just now; the first query starts one.
        is_draining: whether the process is about to end: then it is not ready, but still answers.
        on_load_wanted: called when a query begins to wait for a load that no other waits for.
    """

    def __init__(
        self,
        catalog: Catalog,
        servable: Servable,
        dispatcher: Dispatcher,
        host: Host,
        clock: Callable[[], float],
        settings: Settings,
        gateway_id: str,
        desk: FeedbackDesk,
        access: Access | None = None,
        home: Path | None = None,
        limits: Limits | None = None,
        budget: BodyBudget | None = None,
    ) -> None:
        most_bytes = settings.http.max_body_bytes
        self.limits = limits or Limits(max_body_bytes=most_bytes)
        self.budget = budget or BodyBudget(max(settings.limits.max_bodies_bytes, most_bytes))
        self._access = access or Access(settings)
        self.replies: Counter[int] = Counter()
        self.is_at_rest = False
        self.is_draining = False
        self.on_load_wanted: Callable[[], None] = lambda: None
        self._host = host
        self._catalog = catalog
        self.names = Names(catalog, servable, self._access, dispatcher, host)
        self._dispatcher = dispatcher
        self._clock = clock
        self._default_latency_s = settings.limits.default_latency_ms / 1e3
        self._gateway_id = gateway_id
        self._open: dict[int, _Open] = {}
        self._awaited: dict[int, int] = {}  # whose clients left: the numbers of them, by query
        self._outputs: dict[int, Tensors] = {}
        self._next_query_id = 0
        self._desk = desk
        self._aside, self._renders = Aside(), Aside()
        self._read_aside: dict[int, _ReadAside] = {}
        self._kept_answers = KeptAnswers(clock)
        self._cache = AnswerCache(settings.cache)
        self._shadows = Shadows(settings.feedback.shadow_share, random.Random())  # noqa: S311
        self.console = Console(
            home,
            host.status,
            host.variant_rows,
            lambda: [task for task in self._catalog.tasks if self._access.sees(task, None)],
            lambda body: self._quote([], body, None, with_each=True),
            self._set_aside,
            self._recent,
        )

    # -- requests -----------------------------------------------------------------------------

    def on_request(
        self,
        method: str,
        path: bytes,
        headers: Headers,
        body: bytes | memoryview,
        arrival_s: float,
        respond: Respond,
    ) -> int | None:
        """Answer one HTTP request by calling ``respond`` once, now or later.

        Returns:
            If later, a number for ``on_abandoned``, unless the request cannot be cancelled.
        """
        try:
            found = route(method, path)
            if found.endpoint is Endpoint.CONSOLE_ACT:
                return self._act(found.name, path, headers, body, respond)
            key = self._access.check(found.endpoint, headers)
            if found.endpoint is Endpoint.INFER:
                once = find_header(headers, IDEMPOTENCY_KEY)
                if once is None:
                    return self._infer(found, headers, body, arrival_s, key, respond)
                run = partial(self._infer, found, headers, body, arrival_s, key)
                return self._run_once(once, headers, key, (path, len(body)), respond, run)
            if found.endpoint is Endpoint.FEEDBACK:
                return self._take_feedback(body, respond, _owner(key))
            if found.endpoint is Endpoint.RECEIPT:
                respond(render_json(self._tell(found.name, key, operator_of(headers) == OF_SOCKET)))
            elif found.endpoint is Endpoint.QUOTE:
                respond(render_json(self._quote(headers, body, key)))
            elif found.endpoint is Endpoint.CONSOLE:
                owner = key.key_id if key is not None else ""
                return self.console.answer(found.name, path, headers, respond, owner)
            elif found.endpoint in (Endpoint.LOAD, Endpoint.UNLOAD):
                self._pin(found, key, respond)
            elif found.endpoint is Endpoint.METRICS:
                accept = find_header(headers, b"accept") or b""
                self._host.cluster.scrape(accept.decode("latin-1"), respond)
            elif found.endpoint in _BATCH_ACTS:
                self._batch(found, headers, body, key, respond)
            else:
                respond(self._describe(found, method, path, key))
        except Exception as error:  # noqa: BLE001  (it is answered, and logged)
            _respond_to_error(error, respond, headers)
        return None

    def check_sender(self, method: str, path: bytes, headers: Headers) -> None:
        """Refuse a request whose body is still to come if it needs a key and has none."""
        if not self._access.needs_keys:
            return
        if is_call(path) and method == "POST":
            self._access.check_sender(method_of(path), headers)
            return
        found = route(method, path)
        if found.endpoint is Endpoint.CONSOLE_ACT:
            if found.name != "try":
                return  # its key is in the body
            headers = with_key(headers, read_form(path.partition(b"?")[2]))
        self._access.check_sender(found.endpoint, headers)

    def _run_once(
        self,
        once: bytes,
        headers: Headers,
        key: Key | None,
        query: tuple[bytes, int],
        respond: Respond,
        run: Callable[[Respond], int | None],
    ) -> int | None:
        """Run a query that has an idempotency key; an error is an answer to all that have it."""

        def answer(respond: Respond) -> int | None:
            try:
                return run(respond)
            except Exception as error:  # noqa: BLE001  (it is answered, and logged)
                _respond_to_error(error, respond, headers)
            return None

        return self._kept_answers.once(once, _owner(key), query, respond, answer)

    def on_call(self, call: Call, respond: Respond) -> int | None:
        """Answer a gRPC call as ``on_request`` does; the body of a reply of 200 is a message."""
        try:
            endpoint = method_of(call.path)
            key = self._access.check(endpoint, call.headers)
            if endpoint is Endpoint.INFER:
                # (The metadata of a stream is of all its queries.)
                once = find_header(call.headers, IDEMPOTENCY_KEY) if call.path == INFER else None
                if once is None:
                    return self._infer_call(call, key, respond)
                run = partial(self._infer_call, call, key)
                query = call.path, len(call.message)
                return self._run_once(once, call.headers, key, query, respond, run)
            found = route_call(endpoint, call.message)
            if endpoint in (Endpoint.LOAD, Endpoint.UNLOAD):
                self._pin(found, key, lambda reply: respond(without_message(reply)))
                return None
            reply = self._describe(found, "POST", call.path, key)
            respond(translate_description(endpoint, reply))
        except Exception as error:  # noqa: BLE001  (it is answered, and logged)
            _respond_to_error(error, respond, call.headers)
        return None

    def on_abandoned(self, number: int) -> None:
        """Cancel a request whose client closed its connection.

        A query that others wait for goes on. One with an idempotency key runs on once it runs: its
        client may ask again.
        """
        left = self._kept_answers.leave(number)
        if left is not None:
            self._cancel(left)

    def _cancel(self, number: int) -> None:
        query_id = self._query_of(number)
        if self._cache.is_awaited(query_id):
            self._awaited[query_id] = number
            return  # (it keeps its idempotency key)
        if not self._kept_answers.may_cancel(number, is_running=self._is_running(number)):
            return
        if number < 0:
            self._aside.cancel(number)
            aside = self._read_aside.pop(number, None)
            if aside is None or not aside.query_id:  # its memory is still in use
                return
            aside.give_back()
            number = aside.query_id
            if number < 0:  # it was decompressed, and is read now
                self._cancel(number)
                return
        found = self._open.get(number)
        if found is None:
            return
        self._close(number)
        self.decide(QueryCancelled(number))
        self._end_run(found)
        first = self._awaited.pop(self._cache.leave_run(number) or 0, None)
        if first is not None:
            self._cancel(first)

    def _query_of(self, number: int) -> int:
        """Return the query of a number that ``on_request`` returned; 0 while it is being read."""
        while number < 0:
            found = self._read_aside.get(number)
            number = found.query_id if found is not None else 0
        return number

    def _is_running(self, number: int) -> bool:
        """Whether a device runs the query of a number that ``on_request`` returned."""
        query_id = self._query_of(number)
        receipt = self._dispatcher.receipt(query_id) if query_id else None
        return receipt is not None and receipt.outcome == "running"

    def take_replies(self) -> dict[int, int]:
        """Return how many replies had each HTTP status since the last call."""
        taken, self.replies = self.replies, Counter()
        return dict(taken)

    @property
    def is_busy_aside(self) -> bool:
        """Whether requests are read, or replies rendered, in the other threads."""
        return bool(len(self._aside) or len(self._renders))

    def close(self) -> None:
        """Read no more large bodies, render no more large replies, and end the streams."""
        self.console.close()
        self._aside.close()
        self._renders.close()

    def _infer(
        self,
        found: Route,
        headers: Headers,
        body: bytes | memoryview,
        arrival_s: float,
        key: Key | None,
        respond: Respond,
    ) -> int:
        said = read_headers(headers)
        scope = self.names.find_served(found, key)
        parse = partial(_parse_body, body, said, self.limits, self._access.slos(key))
        json_bytes = len(body) if said.json_length is None else said.json_length
        is_small = (
            said.content_encoding is None
            and json_bytes <= self.limits.small_json_bytes
            and len(body) <= self.limits.small_body_bytes
        )
        return self._read_and_enter(
            found, said, scope, arrival_s, key, respond, parse, render_infer, is_small
        )

    def _read_and_enter(
        self,
        found: Route,
        said: RequestHeaders,
        scope: Scope,
        arrival_s: float,
        key: Key | None,
        respond: Respond,
        parse: Callable[[Callable[[int], None]], InferRequest],
        render: Callable[..., tuple[bytes, Headers]],
        is_small: bool,
        is_counted: bool = False,
    ) -> int:
        """Read a query here if it is small, else aside, and hand it to the dispatcher."""
        cached_for = self._cache.owner_of(scope, _owner(key))
        most = self._dispatcher.limits.max_batch
        if is_small:
            read = _read_query(parse, render, said, scope, cached_for, most)
            return self._enter(found, said, scope, arrival_s, key, is_counted, respond, read)
        aside = _ReadAside(self.budget)
        return self._set_aside(
            partial(_read_query, parse, render, said, scope, cached_for, most, aside.take),
            partial(self._enter, found, said, scope, arrival_s, key, True),
            respond,
            aside,
            key,
            is_counted=is_counted,
        )

    def _infer_call(
        self, call: Call, key: Key | None, respond: Respond, *, is_counted: bool = False
    ) -> int:
        said = read_headers(call.headers)
        if call.is_compressed:
            aside = _ReadAside(self.budget)
            encoding = message_encoding(call.headers)
            decode = partial(
                decode_body, call.message, encoding, self.limits.max_body_bytes, aside.take
            )

            def go_on(respond: Respond, plain: memoryview) -> int:
                call_in_plain = call._replace(message=plain, is_compressed=False)
                return self._infer_call(call_in_plain, key, respond, is_counted=True)

            return self._set_aside(decode, go_on, respond, aside, key)
        message = InferMessage(call.message)
        found = Route(Endpoint.INFER, message.model_name, message.model_version)
        scope = self.names.find_served(found, key)
        parse = partial(
            message.parse, self.limits, said.parameters, self._access.slos(key), call.time_left_s
        )
        is_small = (
            message.structure_bytes <= self.limits.small_message_bytes
            and len(call.message) <= self.limits.small_body_bytes
        )
        return self._read_and_enter(
            found, said, scope, call.arrival_s, key, respond, parse, render_infer_call, is_small,
            is_counted,
        )  # fmt: skip

    def _take_feedback(self, body: bytes | memoryview, respond: Respond, owner: str) -> int | None:
        def count(respond: Respond, feedback: Sequence[Feedback]) -> int:
            respond(render_json(self._desk.accept_feedback(feedback, owner)))
            return 0

        read = partial(parse_feedback, body, self.limits)
        if len(body) > self.limits.small_json_bytes:
            return self._set_aside(read, count, respond, owner=owner)
        count(respond, read())
        return None

    def _set_aside(
        self,
        read: Callable[[], _T],
        go_on: Callable[[Respond, _T], int],
        respond: Respond,
        aside: _ReadAside | None = None,
        key: Key | None = None,
        *,
        is_counted: bool = False,
        owner: str = "",
    ) -> int:
        """Read a request in the other thread; returns a number for ``on_abandoned``.

        Args:
            read: reads it, in the thread.
            go_on: answers what was read, now or later; returns the query's id.
            respond: takes the answer.
            aside: holds the memory that ``read`` takes, until the answer or until the client goes
                away; None if it takes none.
            key: of a query, which is one of its tenant's open ones while it is read.
            is_counted: whether its tenant's limits let it in already.
            owner: the tenant, of what is no query.
        """
        aside = aside or _ReadAside(self.budget)

        def answer(reply: Reply) -> None:
            self._read_aside.pop(number, None)
            aside.give_back()
            respond(reply)

        def done(result: _T | Exception) -> None:
            self._access.close(key)
            if number not in self._read_aside:  # the client went away
                aside.give_back()
                return
            try:
                if not isinstance(result, Exception):
                    aside.query_id = go_on(answer, result)
                    return
            except Exception as error:  # noqa: BLE001  (it is answered)
                result = error
            if not isinstance(result, ModellessError):
                logger.error("a request could not be answered", exc_info=result)
            answer(render_error(result))
            result.__traceback__ = None  # its frames hold the body, and they each other

        self._access.admit(key, self._clock(), again=is_counted)
        try:
            number = self._aside.begin(read, done, owner or _owner(key))
        except Exception:
            self._access.close(key)
            raise
        self._read_aside[number] = aside
        return number

    def _enter(
        self,
        found: Route,
        said: RequestHeaders,
        scope: Scope,
        arrival_s: float,
        key: Key | None,
        is_counted: bool,
        respond: Respond,
        read: _Read,
    ) -> int:
        """Hand a query to the dispatcher; returns its id.

        ``is_counted``: see ``_set_aside``.
        """
        slo = read.request.slo
        tenant = self._access.tenant_of(read.request.tenant, slo.priority, key)
        self._access.admit(key, self._clock(), again=is_counted)
        self._next_query_id += 1
        query_id = self._next_query_id
        try:
            query = self._view_of(
                slo,
                tenant,
                self._desk.arms.assign_arm(scope.name, query_id, tenant),
                read.items,
                arrival_s,
                query_id,
                tuple([array.shape[1:] for array in read.tensors.values()]),
                item_size(scope.task, read.tensors),
                said.request_id,
                said.traceparent,
            )
            may_judge = key is None or key.allows("feedback")
            entered = _Open(query, read, scope, found.name, respond, _owner(key), may_judge)
            self._open[query_id] = entered
            self._dispatch(entered)
        except Exception:
            if self._close(query_id) is None:
                self._access.close(key)
            raise
        return query_id

    def _dispatch(self, found: _Open) -> None:
        """Tell the dispatcher of a query, unless an equal one runs whose answer it will get."""
        query, read = found.query, found.read
        event: DispatchEvent = QueryArrived(query)
        if read.cache_key is not None and query.scope == found.scope.name:  # and is in no trial
            kept = None
            if read.is_reusable:
                kept = self._cache.find(read.cache_key, found.scope, query.min_accuracy_percent)
            if kept is not None:
                self._outputs[query.query_id] = kept.outputs
                event = CacheHit(query, kept.variant.id)
            elif self._cache.join_run(read.cache_key, query, may_wait=read.is_reusable):
                return
        self.decide(event)

    def _end_run(self, found: _Open, variant_id: str = "", outputs: Tensors | None = None) -> None:
        """Answer the queries that wait for this one's answer; without one they begin anew."""
        key = found.read.cache_key
        for query_id in self._cache.end_run(key, found.query.query_id) if key is not None else ():
            waiting = self._open.get(query_id)
            if waiting is None:  # its client went away
                continue
            if outputs is None:
                self._dispatch(waiting)
            else:
                self._outputs[query_id] = outputs
                self.decide(CacheHit(waiting.query, variant_id))

    def _view_of(
        self,
        slo: SLO,
        tenant: str,
        scope: str,
        items: int,
        arrival_s: float,
        query_id: int = 0,
        batch_key: Hashable = None,
        size: int = 0,
        request_id: str = "",
        traceparent: str = "",
    ) -> QueryView:
        latency_s = slo.latency_ms / 1e3 if slo.latency_ms is not None else self._default_latency_s
        return QueryView(
            query_id,
            scope,
            arrival_s,
            arrival_s + latency_s,
            slo.min_accuracy or 0.0,
            slo.max_cost_usd if slo.max_cost_usd is not None else inf,
            slo.priority,
            items,
            batch_key,
            tenant,
            slo.serves_late,
            has_default_deadline=slo.latency_ms is None,
            size=size,
            request_id=request_id,
            traceparent=traceparent,
        )

    def _quote(
        self,
        headers: Headers,
        body: bytes | memoryview,
        key: Key | None,
        *,
        with_each: bool = False,
    ) -> dict[str, Any]:
        """Return what a query would get now; to its tenant's rate, that is a query.

        Args:
            with_each: whether every placement that is ready is told of, as ``candidates``.
        """
        said = read_headers(headers)
        asked = parse_quote(body, self.limits, said.parameters, self._access.slos(key))
        scope = self.names.find_served(Route(Endpoint.QUOTE, asked.task), key)
        tenant = self._access.tenant_of(asked.tenant, asked.slo.priority, key)
        now_s = self._clock()
        self._access.admit(key, now_s)
        self._access.close(key)
        has_size = asked.item_size and has_free_sizes(scope.task)
        size = round_size(asked.item_size) if has_size else 0
        query = self._view_of(asked.slo, tenant, scope.name, asked.items, now_s, size=size)
        quote = self._dispatcher.quote(query, now_s)
        document = quote_document(asked.task, query.deadline_s - now_s, quote)
        if with_each:
            every = self._dispatcher.quote_each(query, now_s)
            document["candidates"] = [placement_document(each) for each in every]
        return document

    def _close(self, query_id: int, cost_usd: float = 0.0) -> _Open | None:
        """Forget an open query, if it is still open; its tenant pays what it cost."""
        found = self._open.pop(query_id, None)
        if self._awaited:
            self._awaited.pop(query_id, None)
        self._shadows.classes.pop(query_id, None)
        if found is not None and found.owner:
            self._access.books.close(found.owner, cost_usd)
        return found

    def serve(self, service: Service, catalog: Catalog) -> None:
        """Set the versions in service, and the catalog of what new queries may name."""
        self._catalog = catalog
        self.names.serve(service, catalog)
        self._cache.clear()
        self._desk.arms.set_trials(service.trials)

    def change(self, settings: Settings) -> None:
        """Go by these settings from the next query on."""
        self._default_latency_s = settings.limits.default_latency_ms / 1e3
        self._cache.change(settings.cache)
        self._shadows.share = settings.feedback.shadow_share

    def _describe(self, found: Route, method: str, path: bytes, key: Key | None) -> Reply:
        is_ready = self.is_ready and not self.is_draining
        return self.names.describe(found, method, path, key, is_ready=is_ready)

    def _recent(self) -> list[tuple[str, str]]:
        """Ids and outcomes of the latest queries, the newest first."""
        newest = self._dispatcher.receipts.newest(None, 20)
        return [
            (
                f"{self._gateway_id}-{receipt.query.query_id}",
                f"{receipt.query.scope}: {receipt.outcome}",
            )
            for receipt in reversed(newest)
        ]

    def _act(
        self,
        page: str,
        path: bytes,
        headers: Headers,
        body: bytes | memoryview,
        respond: Respond,
    ) -> int | None:
        """Carry a form of the console out; its key is a field of it.

        The body of a query to try is the picture, and the query string its form.
        """
        fields = path.partition(b"?")[2] if page == "try" else body[: MOST_FORM_BYTES + 1]
        form = read_form(bytes(fields))
        key = self._access.check(Endpoint.CONSOLE_ACT, with_key(headers, form))
        check_token(headers, form)
        if page == "try":
            picture = bytes(body[: MOST_PICTURE_BYTES + 1])
            self.console.infer({**form, "key": bearer_of(headers, form)}, picture, respond)
            return None
        return self.console.act(form, _operator(key), headers, respond)

    def _pin(self, found: Route, key: Key | None, respond: Respond) -> None:
        scope = self.names.resolve(found, key)
        is_load = found.endpoint is Endpoint.LOAD
        self._host.cluster.pin(scope.name, is_load, _operator(key), respond)

    def _batch(
        self,
        found: Route,
        headers: Headers,
        body: bytes | memoryview,
        key: Key | None,
        respond: Respond,
    ) -> None:
        """Begin, ask after or cancel an offline run."""
        act, asked = _BATCH_ACTS[found.endpoint], (found.name, _owner(key))
        if found.endpoint is not Endpoint.BATCHES:
            self._host.cluster.batch(respond, act, *asked)
            return
        run = parse_batch(body, self.limits)
        self.names.resolve(Route(found.endpoint, run.task), key)
        secret = secret_of(headers) if key is not None else ""
        self._host.cluster.batch(respond, act, run.model_dump(), _owner(key), secret)

    def _tell(self, receipt_id: str, key: Key | None, is_owner: bool) -> dict[str, Any]:
        """Return the receipt of one of this gateway's queries, as plain JSON."""
        gateway_id, _, rest = receipt_id.rpartition("-")
        number, _, tag = rest.partition(".")
        known = gateway_id == self._gateway_id and number.isascii() and number.isdigit()
        if known and not is_owner and (key is None or not key.allows("operate")):
            known = self._desk.tags.fits(int(number), _owner(key), tag)
        receipt = self._dispatcher.receipt(int(number)) if known else None
        if receipt is None:
            raise NotFoundError(f"gateway {self._gateway_id} has no receipt {receipt_id!r:.80}")
        return receipt_document(self._gateway_id, receipt, self._clock())

    @property
    def is_ready(self) -> bool:
        """Whether every task has a ready variant, or gets one on the first query."""
        return self.is_at_rest or self.names.are_served

    # -- events and effects -------------------------------------------------------------------

    def decide(self, event: DispatchEvent) -> None:
        """Pass an event to the dispatcher, and carry out its effects."""
        self._carry_out(self._dispatcher.handle(event, self._clock()))

    def _carry_out(self, effects: Sequence[DispatchEffect]) -> None:
        """Carry out effects: batches first, because devices should not wait for replies."""
        for effect in effects:
            if isinstance(effect, Execute):
                inputs = [self._open[query_id].read.tensors for query_id in effect.query_ids]
                self._host.run_batch(
                    RunBatch(effect.batch_id, effect.worker_id, effect.variant_id, inputs)
                )
        for effect in effects:
            try:
                if isinstance(effect, Complete):
                    self._complete(effect)
                elif isinstance(effect, Refuse):
                    self._refuse(effect)
                elif isinstance(effect, WakeAt):
                    self._host.wake_at(effect.at_s)
                elif isinstance(effect, AskForLoad):
                    self.on_load_wanted()
                elif isinstance(effect, PolicyFailed):
                    logger.error("a policy failed: %s", effect.message)
            except Exception as error:  # one client's reply must not cost the others theirs
                logger.exception("%r could not be carried out", effect)
                if isinstance(effect, (Complete, Refuse)):
                    self._fail(effect.query_id, error)

    def _fail(self, query_id: int, error: Exception) -> None:
        """Answer a query with an error of this process, unless it was answered."""
        self._outputs.pop(query_id, None)
        found = self._close(query_id)
        if found is None:
            return
        try:
            found.respond(render_error(error))
        except Exception:  # those that wait for its answer must begin anew
            logger.exception("query %d could not be answered", query_id)
        self._end_run(found)

    def on_batch_done(
        self,
        batch_id: int,
        busy_s: float,
        result: Sequence[Tensors] | Exception,
        *,
        lost: bool,
        others_s: float = 0.0,
        waited_s: float = 0.0,
    ) -> None:
        """Pass on that a worker finished a batch, or failed to (``lost``: the worker is gone).

        ``busy_s``, ``others_s``, ``waited_s``: see ``BatchDone``.
        """
        if isinstance(result, Exception):
            logger.error("batch %d failed: %s", batch_id, result)
            self.decide(BatchFailed(batch_id, worker_lost=lost))
            return
        members = self._dispatcher.members(batch_id)
        outputs = dict(zip(members, result, strict=True)) if members else {}
        self._outputs.update(outputs)
        try:
            self.decide(BatchDone(batch_id, busy_s, others_s, waited_s))
        finally:
            for query_id in members:
                if self._outputs.pop(query_id, None) is not None:  # its client has left
                    self._charge(query_id)

    def _charge(self, query_id: int) -> None:
        """Have the tenant of a query pay that was cancelled while it ran."""
        receipt = self._dispatcher.receipt(query_id)
        if receipt is not None and receipt.outcome == "cancelled":
            self._access.charge(receipt.query.tenant, receipt.cost_usd or 0.0)

    def _complete(self, effect: Complete) -> None:
        found = self._open.get(effect.query_id)
        receipt = self._dispatcher.receipt(effect.query_id)
        if found is None or receipt is None:
            self._close(effect.query_id)
            return
        outputs = self._outputs.pop(effect.query_id)
        if effect.query_id in self._shadows.classes:
            self._judge_shadow(effect.query_id, outputs, found.scope.task)
            self._close(effect.query_id)
            return
        variant = self._catalog.versions[receipt.variant_id]
        receipt_id = self._receipt_id(effect.query_id, found.owner)
        # It may have been retired while the batch ran.
        known = self._dispatcher.instances.variants.get(receipt.variant_id, variant)
        accuracy = known.accuracy
        parameters = reply_parameters(receipt, accuracy, receipt_id)
        if found.read.request.explain:
            parameters["explanation"] = explain_choice(receipt)
        self._close(effect.query_id, parameters.get("cost_usd", 0.0))
        render = partial(
            found.read.render,
            found.read.request,
            outputs,
            model_name=found.model_name,
            model_version=str(variant.version),
            parameters=parameters,
            labels=found.scope.task.labels,
        )
        rendered: tuple[bytes, Headers] | Exception | None = None
        try:
            if count_elements(found.read.request, outputs) <= self.limits.small_reply_elements:
                rendered = render()
            else:
                self._renders.begin(render, partial(_respond_with, found.respond))
        except Exception as error:  # noqa: BLE001  (it is answered)
            rendered = error
        try:
            if rendered is not None:
                _respond_with(found.respond, rendered)
            self._desk.count_answer(receipt, outputs, found.scope.task)
            key = found.read.cache_key
            is_own = not receipt.is_cached and receipt.query.scope == found.scope.name
            if key is not None and is_own:
                self._cache.keep(key, variant, parameters["accuracy"], outputs)
        finally:  # others may wait for the answer
            if not receipt.is_cached:
                self._end_run(found, variant.id, outputs)
        if not receipt.is_cached:
            self._shadow(found, variant, outputs)

    def _shadow(self, found: _Open, variant: Variant, outputs: Tensors) -> None:
        """Have a reference variant answer a query again, for some queries."""
        query, instances = found.query, self._dispatcher.instances
        if not found.may_judge or query.priority == OFFLINE or self.is_draining:
            return
        shadows = self._shadows
        if not shadows.share or not shadows.is_drawn(
            sum(array.nbytes for array in found.read.tensors.values())
        ):
            return

        def counts_as_stated(each: Variant) -> bool:
            known = instances.variants.get(each.id)
            return known is not None and known.accuracy.percent >= each.accuracy.percent

        reference = find_reference(
            variant,
            self._catalog.variants,
            lambda each: counts_as_stated(each) and instances.is_served(name_of(each.id)),
        )
        is_labelled = self._desk.arms.is_labelled(variant.id, query.query_id)
        if reference is None or is_labelled or not counts_as_stated(variant):
            return
        classes = self._desk.classes(outputs, found.scope.task)
        if classes is None:
            return
        self._next_query_id += 1
        shadow = shadow_of(query, self._next_query_id, reference, self._clock())
        self._shadows.classes[shadow.query_id] = variant, reference, classes
        read = found.read._replace(cache_key=None)
        self._open[shadow.query_id] = _Open(
            shadow, read, found.scope, shadow.scope, lambda _: None, ""
        )
        self.decide(QueryArrived(shadow))

    def _judge_shadow(self, query_id: int, outputs: Tensors, task: Task) -> None:
        variant, reference, answered = self._shadows.classes[query_id]
        wanted = self._desk.classes(outputs, task) or ()
        scores = score(answered, wanted, variant.accuracy, reference.accuracy)
        self._desk.arms.add_scores(variant.id, SHADOW, scores)

    def _receipt_id(self, query_id: int, owner: str) -> str:
        return f"{self._gateway_id}-{query_id}.{self._desk.tags.tag(query_id, owner)}"

    def _refuse(self, effect: Refuse) -> None:
        receipt = self._dispatcher.receipt(effect.query_id)
        if effect.reason is Reason.POLICY_FAILED:
            request_id = receipt.query.request_id if receipt is not None else ""
            logger.error("query %d, request %s: %s", effect.query_id, request_id, effect.message)
        found = self._open.get(effect.query_id)
        if found is not None:
            receipt_id = self._receipt_id(effect.query_id, found.owner)
            explanation = None
            if receipt is not None and found.read.request.explain:
                explanation = explain_choice(receipt)
            reply = render_error(error_of(effect), receipt_id, explanation)
            self._close(effect.query_id)
            try:
                found.respond(reply)
            finally:
                self._end_run(found)
        if receipt is not None:
            self._desk.arms.count_refusal(receipt)
