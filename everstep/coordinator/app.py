"""The coordinator as an ASGI application: the token at the door, the routes behind it, errors as short texts.

Without the token there is nothing to be seen, not even whether a path exists. No documentation routes."""

from __future__ import annotations

import hmac
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from everstep.coordinator.bodies import Receive, Scope
from everstep.coordinator.routes import HOT_ROUTES, Send, router
from everstep.coordinator.service import Service
from everstep.coordinator.store import Store
from everstep.errors import EverstepError, Refused

log = logging.getLogger(__name__)


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
    app.router.routes.extend(HOT_ROUTES)
    app.include_router(router)
    app.add_exception_handler(EverstepError, _refuse)
    app.add_exception_handler(RequestValidationError, _refuse_path)
    return Door(app, token)


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
            body = json.dumps({"detail": "a valid bearer token is needed"}).encode()
            headers = [
                (b"content-type", b"application/json"),
                (b"www-authenticate", b"Bearer"),
                (b"connection", b"close"),
            ]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": body})
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _has_token(self, scope: Scope) -> bool:
        for name, value in scope["headers"]:
            if name == b"authorization":
                return hmac.compare_digest(value, self._expected)
        return False


async def _refuse(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, EverstepError)
    status = error.status if isinstance(error, Refused) else 503  # all else is ours, and worth another try
    # A body that was not read to its end leaves the connection unusable.
    return JSONResponse(
        {"detail": error.message}, status, headers={"connection": "close"} if status in (400, 413) else None
    )


async def _refuse_path(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return JSONResponse({"detail": f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:300]}, 422)
