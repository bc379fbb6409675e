"""The coordinator as an ASGI application: the guard in front, then the operations, errors as short texts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from everstep.coordinator.edge.dispatch import Dispatcher
from everstep.coordinator.edge.guard import Guard, KnownTokens
from everstep.coordinator.edge.replies import encode_error
from everstep.coordinator.service import Service
from everstep.coordinator.store.store import Store
from everstep.wire.tokens import parse_tokens


def create_app(
    store: Store, token: str, *, on_ready: Callable[[], None] | None = None, code: Path | None = None
) -> Any:
    """The ASGI application. `token`: the text of a token file; `on_ready`: called when it can answer; `code`: the
    folder whose tarballs nodes may fetch."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.service = Service(store)
        if on_ready:
            on_ready()
        try:
            yield
        finally:
            await app.state.service.close()

    app = Starlette(lifespan=lifespan, exception_handlers={HTTPException: _refuse})
    return Guard(Dispatcher(app, lambda: app.state.service, code), KnownTokens(parse_tokens(token)))


async def _refuse(_request: Request, error: Exception) -> Response:
    """Of a path that belongs to no operation."""
    assert isinstance(error, HTTPException)
    content = encode_error(error.detail, "path-unknown")
    return Response(content, error.status_code, media_type="application/json")
