"""Nodes without a known address meet in a folder that all of them reach, of any kind that fsspec supports.

The first node writes MAIN_config.json, as ADS does, and beside it a token for workers; the others wait for both. Files
of an earlier run are recognized by trying them. Private: on a disk, only this user can read them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from everstep.errors import EverstepError, PermanentError, TemporaryError, UsageError
from everstep.storage.shared_folder import SharedFolder
from everstep.waiting import wait_until
from everstep.wire.tokens import only_for_workers

CONFIG, TOKEN = "MAIN_config.json", "everstep.token"
_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 5.0  # a folder may be a bucket far away, and each look costs


@dataclass(frozen=True, kw_only=True, slots=True)
class Meeting:
    """Where the first node has opened the coordinator."""

    url: str
    job: str
    token: str = field(repr=False)
    address: str = ""
    is_over: bool = False  # a node that comes now is too late


def publish(folder: str, meeting: Meeting) -> None:
    """The token first: a node that finds the other file finds this one."""
    place = SharedFolder(uri=folder)
    place.write(TOKEN, (only_for_workers(meeting.token).strip() + "\n").encode())
    place.write(CONFIG, _config(meeting))


def withdraw(folder: str, meeting: Meeting) -> None:
    """The job is over: the token is useless. Files that another run has written since stay."""
    place = SharedFolder(uri=folder)
    if (place.read(TOKEN) or b"").decode().strip() == only_for_workers(meeting.token).strip():
        place.write(CONFIG, _config(replace(meeting, is_over=True)))
        place.remove([TOKEN])


def _config(meeting: Meeting) -> bytes:
    """The first two as ADS has them."""
    told = {
        "MASTER_ADDR": meeting.address,
        "MASTER_PORT": meeting.url.rpartition(":")[2],
        "coordinator": meeting.url,
        "job": meeting.job,
        **({"over": True} if meeting.is_over else {}),
    }
    return (json.dumps(told, indent=1) + "\n").encode()


def find(folder: str) -> Meeting | None:
    place = SharedFolder(uri=folder)
    text, token = place.read(CONFIG), place.read(TOKEN)
    if text is None:
        return None
    try:
        told = json.loads(text)
        is_over = bool(told.get("over"))
        if token is None and not is_over:
            return None
        return Meeting(
            url=told["coordinator"],
            job=told["job"],
            token=(token or b"").decode().strip(),
            address=told["MASTER_ADDR"],
            is_over=is_over,
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        problem = f"{folder}/{CONFIG} was not written by an Everstep job: {error!r}"
        raise UsageError(problem, hint="remove it", code="meeting-file-foreign") from None


def wait_for(folder: str, patience_s: float, say: Callable[[str], None], *, job: str | None = None) -> Meeting:
    """Until the coordinator that is named there answers us. `job`: the only one that will do; then it may also be over
    already."""
    problem: str | None = None

    def look() -> Meeting | None:
        nonlocal problem
        meeting, problem = _look(folder, job)
        return meeting if problem is None else None

    what = lambda: f"the first node at {folder}: {problem}"  # noqa: E731
    meeting = wait_until(look, patience_s, what, say=say, pause_s=_PAUSE_S, longest_pause_s=_LONGEST_PAUSE_S)
    if meeting is None:
        problem = f"the first node did not appear in {folder} within {patience_s:.0f} s: {problem}"
        hint = "do all nodes reach that folder, and each other? OCI__TIMEOUT is how long they wait"
        raise PermanentError(problem, hint=hint, code="first-node-missing")
    return meeting


def _look(folder: str, job: str | None) -> tuple[Meeting | None, str | None]:
    """What the folder holds, and the problem with it."""
    try:
        meeting = find(folder)
    except TemporaryError as error:
        return None, error.message
    if meeting is None:
        return None, f"no {CONFIG} in it yet"
    if job is not None and meeting.job != job:
        return meeting, f"the {CONFIG} in it is of {meeting.job}"
    if meeting.is_over:
        return meeting, None if job is not None else f"the {CONFIG} in it is of a job that is over"
    return meeting, _try(meeting)


def _try(meeting: Meeting) -> str | None:
    from everstep.client.calls import Coordinator

    try:
        with Coordinator(meeting.url, meeting.token, meeting.job) as coordinator:
            coordinator.check()
        return None
    except EverstepError as error:
        return error.message
