"""The coordinator as an ASGI application: the token at the door, the routes behind it, errors as short texts.

Without the token there is nothing to be seen, not even whether a path exists. No documentation routes."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from everstep.coordinator.bodies import Receive, Scope
from everstep.coordinator.express import Express, Send, send_error
from everstep.coordinator.routes import router
from everstep.coordinator.service import Service
from everstep.coordinator.store import Store
from everstep.errors import EverstepError, Refused


def create_app(store: Store, token: str, *, on_ready: Callable[[], None] | None = None) -> Any:
    """The ASGI application; `on_ready` is called when it can answer."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.service = Service(store)
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
    return Door(Express(app, lambda: app.state.service), token)


class Door:
    """Lets in who has the token."""

    def __init__(self, app: Any, token: str) -> None:
        if not token:
            raise ValueError("a coordinator without a token would serve anybody")
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._has_token(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await send_error(send, Refused("a valid bearer token is needed", status=401))
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _has_token(self, scope: Scope) -> bool:
        for name, value in scope["headers"]:
            if name == b"authorization":
                return hmac.compare_digest(value, self._expected)
        return False


class _Failure:
    """An error as the response that the worker's calls get too."""

    def __init__(self, error: EverstepError) -> None:
        self._error = error

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send_error(send, self._error)


async def _refuse(_request: Request, error: Exception) -> Any:
    assert isinstance(error, EverstepError)
    return _Failure(error)


async def _refuse_path(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return JSONResponse({"detail": f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:300]}, 422)
