"""One POST to an allowed host: an answer, or why there was none, within a few seconds and a few kilobytes.

The host's addresses are looked up once and checked, and the connection goes to a checked one. TLS certificates are
verified. Redirects are not followed, proxies and cookies are not used."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache

import h11

from everstep import env
from everstep.coordinator.webhooks.attempts import PostAnswer
from everstep.coordinator.webhooks.hosts import AllowedHosts, PostTarget

TIMEOUT_S = 8.0  # for all of it; shorter than a client waits for the answer to a test
CONNECT_S = 4.0  # to one address
MOST_READ = 1 << 16  # bytes of an answer
MOST_SHOWN = 300  # characters of its body
_PIECE = 1 << 14


class Poster:
    """Looks names up in threads of its own: a slow name server holds up nothing but webhooks."""

    def __init__(self, hosts: AllowedHosts) -> None:
        self.hosts = hosts
        self._names = ThreadPoolExecutor(4, thread_name_prefix="webhook-names")

    def close(self) -> None:
        self._names.shutdown(wait=False, cancel_futures=True)

    async def post(self, target: PostTarget, body: bytes, headers: Mapping[str, str]) -> PostAnswer:
        if reason := self.hosts.why_not(target):
            return PostAnswer(reason=reason, is_final=True)
        try:
            return await asyncio.wait_for(self._post(target, body, headers), TIMEOUT_S)
        except asyncio.TimeoutError:
            return PostAnswer(reason=f"{target.origin} did not answer within {TIMEOUT_S:g} s")
        except ssl.SSLCertVerificationError as error:
            return PostAnswer(reason=f"{target.origin}: its certificate is not valid: {error.verify_message}")
        except h11.RemoteProtocolError as error:
            return PostAnswer(reason=f"{target.origin}: the answer is not HTTP: {error}")
        except OSError as error:
            return PostAnswer(reason=f"{target.origin}: {error.strerror or error}")

    async def _post(self, target: PostTarget, body: bytes, headers: Mapping[str, str]) -> PostAnswer:
        addresses = await self._addresses(target)
        for address in addresses:
            if reason := self.hosts.why_not_address(target, address):
                return PostAnswer(reason=reason, is_final=True)
        reader, writer = await _connect(target, addresses)
        try:
            connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_PIECE)
            host = target.origin.partition("://")[2]
            sent = {"Host": host, "User-Agent": "everstep", "Connection": "close", "Content-Length": str(len(body))}
            request = h11.Request(method="POST", target=target.path, headers=list({**sent, **headers}.items()))
            parts = (request, h11.Data(data=body), h11.EndOfMessage())
            writer.write(b"".join(connection.send(each) or b"" for each in parts))
            # Not drained: a receiver may answer, and close, before it has read all.
            return await _read(connection, reader)
        finally:
            writer.transport.abort()

    async def _addresses(self, target: PostTarget) -> Sequence[str]:
        def look_up() -> list[str]:
            found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
            return list(dict.fromkeys(str(each[4][0]) for each in found))

        return await asyncio.get_running_loop().run_in_executor(self._names, look_up)


@cache
def _tls() -> ssl.SSLContext:
    """The system's certificates, and that of EVERSTEP_CA."""
    context = ssl.create_default_context()
    if ca_file := env.value(env.CA):
        context.load_verify_locations(cafile=ca_file)
    return context


async def _connect(target: PostTarget, addresses: Sequence[str]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    failure: OSError = OSError("it has no address")
    tls, name = (_tls(), target.host) if target.scheme == "https" else (None, None)
    for address in addresses:
        try:
            opening = asyncio.open_connection(address, target.port, limit=_PIECE, ssl=tls, server_hostname=name)
            return await asyncio.wait_for(opening, CONNECT_S)
        except asyncio.TimeoutError:
            failure = OSError(f"no connection within {CONNECT_S:g} s")
        except ssl.SSLCertVerificationError:
            raise
        except OSError as error:
            failure = error
    raise failure


async def _read(connection: h11.Connection, reader: asyncio.StreamReader) -> PostAnswer:
    """Status and the beginning of the body."""
    answer, shown, num_read = PostAnswer(reason="it closed the connection without an answer"), b"", 0
    try:
        while num_read <= MOST_READ and len(shown) < MOST_SHOWN:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                piece = await reader.read(_PIECE)
                num_read += len(piece)
                connection.receive_data(piece)
            elif isinstance(event, h11.Response):
                answer = PostAnswer(
                    status=event.status_code, reason=f"{event.status_code}{_redirect(event.status_code)}"
                )
            elif isinstance(event, h11.Data):
                shown += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                break
    except (ConnectionError, h11.RemoteProtocolError):
        if not answer.status:
            raise
    return replace(answer, reason=f"{answer.reason}{_text(shown)}")


def _redirect(status: int) -> str:
    return "; redirects are not followed" if 300 <= status < 400 else ""


def _text(body: bytes) -> str:
    told = body[:MOST_SHOWN].decode(errors="replace")
    text = " ".join("".join(each if each.isprintable() else " " for each in told).split())
    return f": {text}" if text else ""
