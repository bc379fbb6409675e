"""The stage of the stories about sums on the device: on a GPU over NCCL, on the CPU over its stand-in.

A step weighs 43, which is not a power of two. Each story ends with the bits of one worker on the same device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everstep.testing import Cluster, ClusterError, Result
from lab.command import DEADLINE_S
from lab.stage import Stage

SCRIPT = "on_device.py"
_SERVES = {"cuda": "nccl", "cpu": "stand-in"}


class DeviceStage(Stage):
    """`holds`: PLACE@STEP:WORKER, where a worker waits at the gate PLACE (on_device.py)."""

    def __init__(
        self, *args: object, device: str, holds: Sequence[str] = (), script: str = SCRIPT, **settings: Any
    ) -> None:
        self._device = device
        wish = {} if device == "cuda" else {"EVERSTEP_BACKEND": _SERVES[device]}
        env = {"HOLDS": ",".join(holds), **wish, **settings.pop("env", {})}
        super().__init__("--device", device, *args, script=script, env=env, **settings)

    def finish(self, timeout_s: float = DEADLINE_S, *, check: bool = True) -> Result:
        result = super().finish(timeout_s, check=check)
        if check:
            check_backend(result, _SERVES[self._device])
        return result

    def wait_settled(self, size: int, *, after: int = 0) -> int:
        """The first generation of this size after another, as soon as one of its members trains in it."""
        settled = self.wait("regroup.settled", size=size, generation=lambda number: number > after)
        return int(settled["generation"])


def check_backend(run: Result | Cluster, wanted: str) -> None:
    """Whenever several workers trained together, their gradients traveled from device to device."""
    together = {event["generation"] for event in run.events("regroup.settled", size=lambda size: size > 1)}
    chosen = run.events("backend.chosen", generation=lambda number: number in together)
    if not chosen or any(event["backend"] != wanted for event in chosen):
        raise ClusterError(f"{wanted} did not serve: {chosen}")
