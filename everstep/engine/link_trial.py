"""Before gradients travel from device to device for the first time, sum one megabyte that way and over gloo.

All members try together and tell each other the result, so that all make the same choice."""

from __future__ import annotations

import json

import torch
from torch import Tensor

from everstep.engine.communicator import FORM_S, sum_over
from everstep.engine.device_link import DeviceLink
from everstep.engine.group import Group, gloo_words
from everstep.engine.lane import Lane
from everstep.errors import PeerLost
from everstep.waiting import wait_until

NUMBERS = 1 << 18  # of 4 bytes each
SUM_S = 30.0  # much longer than a first sum of this size takes
_LOOK_S = 0.001


def try_link(link: DeviceLink, group: Group, worker: str) -> str:
    """What is wrong with the link, and on which worker; "": nothing. Raises PeerLost if a peer is lost meanwhile."""
    return _say(group, worker, _connect(link, group)) or _say(group, worker, _compare(link, group))


def _say(group: Group, worker: str, problem: str) -> str:
    """The first problem that any member reports."""
    said = [json.loads(raw) for raw in group.gather(json.dumps([worker, problem]).encode())]
    return next((f"{where}: {what}" for where, what in said if what), "")


def _connect(link: DeviceLink, group: Group) -> str:
    try:
        link.await_connected(FORM_S)
    except PeerLost as lost:
        return _unless_broken(group, lost)
    return ""


def _compare(link: DeviceLink, group: Group) -> str:
    mine = torch.arange(NUMBERS, dtype=torch.float32).remainder_(251).add_(group.world.rank)
    over_gloo = torch.zeros(NUMBERS)
    for raw in group.gather(mine.numpy().tobytes()):
        over_gloo += torch.frombuffer(bytearray(raw), dtype=torch.float32)
    lane = link.lane
    try:
        total = group.unless_broken(lambda: _sum(link, group, mine))  # not in the script's thread: see Sum.drop
        if not _ends_in_time(lane, group):
            return f"a sum of {NUMBERS * 4} bytes did not end within {SUM_S:.0f} s"
    except (PeerLost, RuntimeError) as error:
        return _unless_broken(group, error)
    wrong = int((total.cpu() != over_gloo).sum())
    return f"{wrong} of {NUMBERS} numbers differ from their sum over gloo" if wrong else ""


def _sum(link: DeviceLink, group: Group, mine: Tensor) -> Tensor:
    communicator = link.await_connected()
    with link.lane.entered():
        return sum_over(communicator, group.world, mine.to(link.device), is_exact=link.is_exact)


def _ends_in_time(lane: Lane, group: Group) -> bool:
    """Poll, because a wait inside CUDA cannot be interrupted."""
    wait_until(lambda: lane.is_idle or group.is_broken, SUM_S, "the first sum between devices", pause_s=_LOOK_S)
    if group.is_broken:
        raise PeerLost(f"generation {group.world.generation} was closed", code="link-closed-in-trial")
    return lane.is_idle


def _unless_broken(group: Group, error: Exception) -> str:
    if group.is_broken:
        raise PeerLost(f"generation {group.world.generation} was closed", code="link-closed-in-trial") from error
    return gloo_words(error)
