"""From a request to its handler and back, for every operation that `wire.operations` declares.

Thousands of workers call all the time, and all at once when a generation is closed: the usual layers of a framework
cost more per request than the request itself. So only a lookup, the role check and the validation are between bytes
and handler, and what an operation needs for them is prepared once.

Validation is strict: no unknown field, no text where a number belongs, no number that a database or a clock cannot
hold. The bounds are part of the messages' types (`wire.bounds`). A body that is too long is not read to its end."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import ValidationError
from starlette.responses import Response

from everstep import wire
from everstep.coordinator.edge import experiment_handlers, handlers, model_handlers, pool_handlers
from everstep.coordinator.edge.code_folder import code_folder_beside
from everstep.coordinator.edge.guard import (
    TOKEN,
    WRITE_REPLY,
    MethodNotAllowed,
    Receive,
    Scope,
    Send,
    check_role,
    send_json,
)
from everstep.coordinator.edge.handlers import HttpCall
from everstep.coordinator.edge.openapi import adapter, parameter_adapter
from everstep.coordinator.edge.stream_reply import STREAM, StreamReply
from everstep.coordinator.edge.trial_access import check_not_of_trial, check_trial
from everstep.coordinator.job import CoordinatedJob
from everstep.coordinator.pool.people import NOBODY, People
from everstep.coordinator.retention import DAYS
from everstep.coordinator.service import Service
from everstep.coordinator.store.store import Store
from everstep.coordinator.turns import Turns
from everstep.errors import UNKNOWN, Refused
from everstep.page.sessions import Sessions
from everstep.wire.operations import OPERATIONS, Operation
from everstep.wire.tokens import READ_ONLY

T = TypeVar("T")

MAX_BODY_BYTES = 1 << 20
MAX_UPLOAD_BYTES = 256 << 20
HANDLERS = (handlers, experiment_handlers, pool_handlers, model_handlers)

_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")  # in JSON; `\\\\u0000` is a text of six


class Route:
    """An operation, with everything that its calls have in common."""

    def __init__(self, operation: Operation) -> None:
        parts = operation.path.split("/")
        self.operation = operation
        places = [each for each in HANDLERS if hasattr(each, operation.name)]
        self.is_of_job = not places  # answered by the job's method of that name
        self.handler = getattr(places[0] if places else CoordinatedJob, operation.name)
        assert not (self.is_of_job and operation.in_query), f"{operation.name} needs a handler for its query"
        # Only a PUT of the job itself may name one that does not exist.
        self.job_at = parts.index("{job}") if "{job}" in parts else None
        self.must_exist = self.job_at is not None and (operation.method, parts[-1]) != ("PUT", "{job}")
        self.names = [name for name in operation.in_path if name != "job"]  # of the values in the path
        self.readers = [(parts.index(f"{{{name}}}"), self._reader(name)) for name in self.names]
        self.query_readers = {name: self._reader(name) for name in operation.in_query}

    def _reader(self, name: str) -> Callable[[str], Any]:
        validate: Any = parameter_adapter(self.operation, name).validator.validate_strings

        def read(text: str) -> Any:
            if "\0" in text:  # no database accepts it
                raise Refused(f"{name} must not contain NUL", status=422, code="parameter-has-nul")
            try:
                return validate(text)
            except ValidationError as error:
                raise _invalid(name, error, "parameter-invalid") from None

        return read

    def read_query(self, query: bytes) -> dict[str, Any]:
        sent = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))
        values = {name: read(sent[name]) for name, read in self.query_readers.items() if name in sent}
        if (message := self.operation.query) is None:
            return values
        return {message: self.operation.types[message](**values)}


class Routes:
    """Which operation a method and a path mean."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        """By the number of segments in the path, then by which of them are fixed, then by these, then by the method."""
        tables: dict[int, dict[tuple[int, ...], dict[Any, dict[str, Route]]]] = {}
        for each in operations:
            parts = each.path.split("/")
            fixed = tuple(index for index, part in enumerate(parts) if not part.startswith("{"))
            table = tables.setdefault(len(parts), {}).setdefault(fixed, {})
            table.setdefault(itemgetter(*fixed)(parts), {})[each.method] = Route(each)
        self._tables = {
            num_parts: [(itemgetter(*fixed), table) for fixed, table in by_place.items()]
            for num_parts, by_place in tables.items()
        }

    def find(self, method: str, path: str) -> tuple[Route, list[str]]:
        """The operation, and the segments of the path."""
        parts = path.split("/")
        for fixed_of, table in self._tables.get(len(parts), ()):
            if by_method := table.get(fixed_of(parts)):
                if route := by_method.get(method):
                    return route, parts
                raise MethodNotAllowed(by_method)
        raise Refused("Not Found", status=UNKNOWN, code="path-unknown")


class Dispatcher:
    """The coordinator as an ASGI application, behind the guard. `code`: the folder whose tarballs nodes may fetch."""

    def __init__(
        self,
        store: Store,
        sessions: Sessions,
        code: Path | None,
        on_ready: Callable[[], None],
        turns: Turns,
        *,
        keep_days: float = DAYS,
        people: People = NOBODY,
    ) -> None:
        self._store, self._sessions = store, sessions
        self._code = code or code_folder_beside(store.url)
        self._on_ready, self._turns, self._keep_days, self._people = on_ready, turns, keep_days, people
        self._routes = Routes(OPERATIONS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if scope["path"] == STREAM:
            check_role(scope[TOKEN], READ_ONLY)
            check_not_of_trial(scope[TOKEN])
            await StreamReply(self._service.stream, self._service.knows)(scope, receive, send)
            return
        route, parts = self._routes.find(scope["method"], scope["path"])
        operation = route.operation
        check_role(scope[TOKEN], operation.role)
        values = [read(parts[index]) for index, read in route.readers]
        query = route.read_query(scope["query_string"]) if route.query_readers else {}
        name = "" if route.job_at is None else parts[route.job_at]
        if scope[TOKEN].trial:
            named = dict(zip(route.names, values, strict=True))
            await check_trial(scope[TOKEN], operation, name, named, self._service.experiments)
        job: Any = None
        if route.must_exist:  # found before the body is read
            job = self._service.job_at_hand(name) or await self._service.job(name)
        if operation.request is bytes:
            values.append(read_chunks(scope, receive, MAX_UPLOAD_BYTES))
        elif operation.body:
            values.append(parse(operation.request, await read_body(scope, receive)))
        if route.is_of_job:
            reply = await route.handler(job, *values)
        else:
            call = HttpCall(self._service, self._sessions, self._code, name, job, scope)
            reply = await route.handler(call, *values, **query)
        if isinstance(reply, Response):
            await reply(scope, receive, send)
        elif isinstance(reply, bytes):
            await _send(scope, send, reply)
        else:
            await _send(scope, send, b"{}" if reply is None else wire.to_json(reply))

    def let_go(self) -> None:
        """The server is about to end: it waits for the calls that are held."""
        self._service.let_go()

    async def _live(self, receive: Receive, send: Send) -> None:
        """From the server's start to its end."""
        await receive()
        self._service = Service(self._store, turns=self._turns, keep_days=self._keep_days, people=self._people)
        await self._service.start()
        self._on_ready()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._service.close()
        await send({"type": "lifespan.shutdown.complete"})


async def _send(scope: Scope, send: Send, content: bytes) -> None:
    if WRITE_REPLY not in scope or not scope[WRITE_REPLY](scope, content):
        await send_json(send, 200, content)


async def read_body(scope: Scope, receive: Receive) -> bytes:
    return b"".join([part async for part in read_chunks(scope, receive, MAX_BODY_BYTES)])


async def read_chunks(scope: Scope, receive: Receive, most: int) -> AsyncIterator[bytes]:
    for name, value in scope["headers"]:
        if name == b"content-length":
            _check_length(int(value), most)
    num_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused("the request broke off", status=400, code="request-broke-off")
        part = message.get("body", b"")
        num_bytes += len(part)
        _check_length(num_bytes, most)
        yield part
        if not message.get("more_body"):
            return


def _check_length(num_bytes: int, most: int) -> None:
    if num_bytes > most:
        text = f"the body has at least {num_bytes} bytes, more than {most}"
        raise Refused(text, status=413, code="body-too-long")


def parse(kind: type[T], body: bytes) -> T:
    try:
        message: T = adapter(kind).validator.validate_json(body)  # type: ignore[arg-type]
    except ValidationError as error:
        raise _invalid(kind.__name__, error, "body-invalid") from None
    if b"\\u0000" in body and _NUL.search(body):
        raise Refused(f"{kind.__name__}: a text must not contain NUL", status=422, code="body-has-nul")
    for problem in message.problems() if hasattr(message, "problems") else ():
        raise Refused(f"{kind.__name__}: {problem}", status=422, code="body-inconsistent")
    return message


def _invalid(what: str, error: ValidationError, code: str) -> Refused:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in (what, *first["loc"]))
    return Refused(f"{where}: {first['msg']}"[:300], status=422, code=code)
