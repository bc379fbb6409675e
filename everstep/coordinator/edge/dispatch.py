"""From a request to its handler and back, for every operation that `wire.operations` declares.

Thousands of workers call all the time, and all at once when a generation is closed: the usual layers of a framework
cost more per request than the request itself. So only a lookup, the role check and the validation are between bytes
and handler. Requests that match no operation continue to the application behind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from starlette.responses import Response

from everstep.coordinator.edge import handlers
from everstep.coordinator.edge.bodies import Receive, Scope, parse, read_body, read_parameters
from everstep.coordinator.edge.guard import TOKEN, decide_role
from everstep.coordinator.edge.handlers import HttpCall
from everstep.coordinator.edge.replies import Send, encode, send_error, send_json
from everstep.coordinator.service import Service
from everstep.errors import EverstepError, Refused
from everstep.wire.operations import OPERATIONS, Operation

Handler = Callable[..., Awaitable[Any]]


class Routes:
    """Which operation a method and a path mean."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        """By the number of segments in the path, then by which of them are fixed, then by these and the method."""
        self._tables: dict[int, dict[tuple[int, ...], dict[tuple[str, ...], Operation]]] = defaultdict(dict)
        self._places: dict[Operation, list[tuple[str, int]]] = {}
        for each in operations:
            parts = each.path.split("/")
            self._places[each] = [(name, parts.index(f"{{{name}}}")) for name in each.in_path]
            fixed = tuple(index for index, part in enumerate(parts) if not part.startswith("{"))
            key = (each.method, *(parts[index] for index in fixed))
            self._tables[len(parts)].setdefault(fixed, {})[key] = each

    def find(self, method: str, path: str) -> tuple[Operation, dict[str, str]] | None:
        """The operation, and the values of its path's names."""
        parts = path.split("/")
        for fixed, table in self._tables[len(parts)].items() if len(parts) in self._tables else ():
            if found := table.get((method, *[parts[index] for index in fixed])):
                return found, {name: parts[index] for name, index in self._places[found]}
        return None

    def methods(self, path: str) -> list[str]:
        return [method for method in ("GET", "PUT", "POST", "DELETE") if self.find(method, path)]


class Dispatcher:
    def __init__(self, app: Any, find_service: Callable[[], Service], code: Path | None) -> None:
        self._app, self._find_service, self._code = app, find_service, code
        self._routes = Routes(OPERATIONS)
        self._handlers: dict[str, Handler] = {each.name: getattr(handlers, each.name) for each in OPERATIONS}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif found := self._routes.find(scope["method"], scope["path"]):
            await self._serve(*found, scope, receive, send)
        elif methods := self._routes.methods(scope["path"]):
            refusal = Refused("Method Not Allowed", status=405, code="method-not-allowed")
            await send_error(send, refusal, scope, [(b"allow", ", ".join(methods).encode())])
        else:
            await self._app(scope, receive, send)

    async def _serve(
        self, operation: Operation, names: dict[str, str], scope: Scope, receive: Receive, send: Send
    ) -> None:
        try:
            if refusal := decide_role(scope[TOKEN], operation.role):
                raise refusal
            values = read_parameters(operation, names, scope["query_string"])
            call = await self._prepare(operation, names.get("job"), scope, receive)
            if operation.body:
                values[operation.body] = parse(operation.request, await read_body(scope, receive))
            reply = await self._handlers[operation.name](call, **values)
        except EverstepError as error:
            await send_error(send, error, scope)
            return
        if isinstance(reply, Response):
            await reply(scope, receive, send)
        else:
            await send_json(send, 200, encode(reply))

    async def _prepare(self, operation: Operation, job: str | None, scope: Scope, receive: Receive) -> HttpCall:
        """Find the job before the body is read. Only a PUT of the job itself may name one that does not exist."""
        service, found = self._find_service(), None
        if job is not None and not (operation.method == "PUT" and operation.path.endswith("{job}")):
            found = service.job_at_hand(job) or await service.job(job)
        return HttpCall(service=service, code=self._code, job_name=job or "", found=found, scope=scope, receive=receive)
