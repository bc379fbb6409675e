"""Calls that all workers make at once wait for their turn; everything else passes them."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack, closing

import pytest
import uvicorn
from uvicorn.server import ServerState

from everstep.coordinator.clock import LONGEST_GAP_S, TICK_S, Clock
from everstep.coordinator.edge.connection import HttpConnection
from everstep.coordinator.turns import PER_TURN, Turns
from everstep.coordinator.waiters import Bell
from everstep.errors import TemporaryError

NUM_CALLS, GONE = 6 * PER_TURN, 4 * PER_TURN


class Caller:
    def __init__(self, taken, number):
        self._taken, self._number = taken, number

    def take_turn(self):
        self._taken.append(self._number)
        return True


async def turned(taken, number):
    while len(taken) < number:
        await asyncio.sleep(0)


def told(story):
    def tell():
        asyncio.run(asyncio.wait_for(story(), 60))

    return tell


@told
async def test_calls_are_taken_in_their_order_a_few_per_turn():
    turns, taken, loop = Turns(), [], asyncio.get_running_loop()
    for number in range(NUM_CALLS):
        turns.wait(Caller(taken, number))
    loop.call_soon(lambda: taken.append("other"))
    await turned(taken, NUM_CALLS + 1)
    assert taken.index("other") <= 2 * PER_TURN
    assert [each for each in taken if each != "other"] == list(range(NUM_CALLS))


@told
async def test_a_flood_of_calls_that_never_wait_does_not_stop_those_that_do():
    turns, taken = Turns(), []
    for number in range(NUM_CALLS):
        turns.wait(Caller(taken, number))
        turns.pass_by()
    await asyncio.sleep(0)
    assert len(taken) == NUM_CALLS


@told
async def test_an_error_in_one_call_does_not_strand_the_others():
    turns, taken, loop, errors = Turns(), [], asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _loop, context: errors.append(context["exception"]))
    turns.wait(Caller(None, 0))  # it has nowhere to note its number
    turns.wait(Caller(taken, 1))
    await turned(taken, 1)
    assert [type(error) for error in errors] == [AttributeError]


@told
async def test_replies_go_before_calls_and_all_who_waited_are_woken():
    turns, taken = Turns(), []
    bell = Bell(turns)

    async def held(number):
        await bell.wait(60.0)
        taken.append(("reply", number))

    tasks = [asyncio.create_task(held(number)) for number in range(NUM_CALLS)]
    await asyncio.sleep(0)
    for number in range(NUM_CALLS):
        turns.wait(Caller(taken, ("call", number)))
    bell.ring()
    await turned(taken, 2 * NUM_CALLS)
    replies, calls = [[each for each in taken if each[0] == kind] for kind in ("reply", "call")]
    assert replies == [("reply", number) for number in range(NUM_CALLS)]
    assert calls == [("call", number) for number in range(NUM_CALLS)]
    assert taken.index(replies[-1]) < taken.index(calls[0]) + PER_TURN  # woken in one turn, it runs in the next
    await asyncio.gather(*tasks)


@told
async def test_a_closed_bell_lets_all_go_with_an_error_also_those_who_come_later():
    bell = Bell(Turns())
    tasks = [asyncio.create_task(bell.wait(60.0, group)) for group in ("", "a", "b")]
    await asyncio.sleep(0)
    bell.close()
    ends = await asyncio.gather(*tasks, bell.wait(60.0), return_exceptions=True)
    assert [getattr(end, "code", end) for end in ends] == ["coordinator-stops"] * 4
    assert all(isinstance(end, TemporaryError) for end in ends)


@told
async def test_no_time_passes_while_a_call_waits_to_be_heard():
    turns, wall = Turns(), [100.0]
    clock = Clock(lambda: wall[0], lambda now: 100.0 if turns.heard_until(now) != now else now)
    turns.wait(Caller([], 0))
    for _ in range(100):
        wall[0] += TICK_S
        assert clock.now() == 100.0
    await asyncio.sleep(0)  # now it is heard
    assert turns.heard_until(wall[0]) == wall[0]
    assert clock.now() == pytest.approx(100.0 + LONGEST_GAP_S)
    assert not clock.was_away()  # it was busy, not stopped: it would have noticed an agent that hung up


@told
async def test_a_report_passes_workers_that_wait_and_a_closed_connection_leaves_the_line():
    begun, state = [], ServerState()

    async def app(scope, receive, send):
        begun.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    config, turns = uvicorn.Config(app, lifespan="off", ws="none", log_level="warning"), Turns()
    loop, errors = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _loop, context: errors.append(context))
    server = await loop.create_server(
        lambda: HttpConnection(turns, config=config, server_state=state, app_state={}), "127.0.0.1", 0, backlog=2048
    )
    address = server.sockets[0].getsockname()
    with ExitStack() as stack:
        callers = [stack.enter_context(closing(socket.create_connection(address))) for _ in range(NUM_CALLS + 1)]
        while len(state.connections) < len(callers):
            await asyncio.sleep(0)
        paths = [f"/v1/jobs/j/workers/w{number}/arrive" for number in range(NUM_CALLS)]
        for caller, path in zip(callers, [*paths, "/v1/jobs/j/agents/a/report"], strict=True):
            caller.sendall(f"POST {path} HTTP/1.1\r\ncontent-length: 0\r\n\r\n".encode())
        callers[GONE].close()
        while len(begun) < NUM_CALLS:
            await asyncio.sleep(0)
        for connection in list(state.connections):
            connection.transport.abort()
    server.close()
    await server.wait_closed()
    assert begun.index("/v1/jobs/j/agents/a/report") <= 2 * PER_TURN
    assert not errors
    assert [path for path in begun if path.endswith("arrive")] == paths[:GONE] + paths[GONE + 1 :]
