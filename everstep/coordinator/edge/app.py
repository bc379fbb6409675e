"""The coordinator as an ASGI application: the guard in front, the routes behind it, errors as short texts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from everstep.coordinator.edge.access import KnownTokens
from everstep.coordinator.edge.bodies import Receive, Scope
from everstep.coordinator.edge.guard import Guard
from everstep.coordinator.edge.hot_calls import Express, Header, Send, send_error
from everstep.coordinator.edge.routes import router
from everstep.coordinator.service import Service
from everstep.coordinator.store.store import Store
from everstep.errors import EverstepError, Refused
from everstep.wire.tokens import parse_tokens


def create_app(
    store: Store, token: str, *, on_ready: Callable[[], None] | None = None, code: Path | None = None
) -> Any:
    """The ASGI application; `token` is the text of a token file, `on_ready` is called when it can answer, `code` is the
    folder whose tarballs nodes may fetch."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.service, app.state.code = Service(store), code
        if on_ready:
            on_ready()
        try:
            yield
        finally:
            await app.state.service.close()

    app = FastAPI(title="everstep", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.include_router(router)
    app.add_exception_handler(EverstepError, _refuse)
    app.add_exception_handler(RequestValidationError, _refuse_path)
    app.add_exception_handler(HTTPException, _refuse_route)
    return Guard(Express(app, lambda: app.state.service), KnownTokens(parse_tokens(token)))


class _Failure:
    """An error as the response that the worker's calls get too."""

    def __init__(self, error: EverstepError, headers: Sequence[Header] = ()) -> None:
        self._error, self._headers = error, headers

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        await send_error(send, self._error, scope, self._headers)


async def _refuse(_request: Request, error: Exception) -> Any:
    assert isinstance(error, EverstepError)
    return _Failure(error)


async def _refuse_path(_request: Request, error: Exception) -> Any:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return _Failure(Refused(f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:300], status=422))


async def _refuse_route(_request: Request, error: Exception) -> Any:
    assert isinstance(error, HTTPException)
    headers = [(name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items()]  # Allow
    return _Failure(Refused(error.detail, status=error.status_code), headers)
