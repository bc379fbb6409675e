"""How gradients travel: over gloo through host memory, or over NCCL from GPU to GPU.

Each worker reports in its hello what it has. All workers see the same facts, so all make the same choice. Everything
else that workers tell each other goes over gloo. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from everstep.errors import StateMismatch, UsageError

AUTO = "auto"


class Backend(Enum):
    GLOO = "gloo"
    NCCL = "nccl"
    STAND_IN = "stand-in"  # NCCL's code path, over gloo with CPU tensors: for tests


WISHES = (AUTO, *(backend.value for backend in Backend))


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendFacts:
    """What one worker has."""

    worker: str
    wish: str  # one of WISHES
    device: str  # the type of device that holds its parameters
    gpu: str = ""  # its UUID
    host: str = ""  # as NCCL tells hosts apart
    nccl: str = ""  # the version; "": torch is built without NCCL
    refusal: str = ""  # why NCCL must not be used: where it was tried, and how it failed
    is_tried: bool = False  # a trial sum over NCCL was correct


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendChoice:
    backend: Backend
    reason: str
    must_try: bool = False  # some members have not used this backend before


def check_wish(wish: str, name: str = "backend") -> str:
    """Refuse an unknown backend. `name`: the argument or variable that holds it."""
    if wish not in WISHES:
        raise UsageError(
            f"{name}={wish!r} is unknown", hint='use "auto", "gloo", or "nccl"', code="sum-backend-unknown"
        )
    return wish


def decide_backend(facts: Sequence[BackendFacts]) -> BackendChoice:
    """Choose for one generation, from the facts of all its members. Raises if NCCL was requested and cannot be used."""
    wish = _wish_of_all(facts)
    if len(facts) == 1:
        return BackendChoice(backend=Backend.GLOO, reason="there is only one worker")
    if wish == Backend.STAND_IN.value:
        return BackendChoice(backend=Backend.STAND_IN, reason="requested", must_try=_must_try(facts))
    if wish == Backend.GLOO.value:
        return BackendChoice(backend=Backend.GLOO, reason="requested")
    if on_host := [each.worker for each in facts if each.device != "cuda"]:
        return BackendChoice(
            backend=Backend.GLOO, reason=f"{_list(on_host)} {'trains' if len(on_host) == 1 else 'train'} on the CPU"
        )
    if problem := _problem(facts):
        if wish == Backend.NCCL.value:
            raise StateMismatch(
                f'backend="nccl", but {problem}', hint='fix that, or use backend="auto"', code="nccl-cannot-serve"
            )
        return BackendChoice(backend=Backend.GLOO, reason=problem)
    versions = f"NCCL {facts[0].nccl} on {len(facts)} GPUs"
    return BackendChoice(backend=Backend.NCCL, reason=versions, must_try=_must_try(facts))


def _wish_of_all(facts: Sequence[BackendFacts]) -> str:
    holders: dict[str, list[str]] = defaultdict(list)
    for each in facts:
        holders[each.wish].append(each.worker)
    if len(holders) > 1:
        said = " and ".join(f"{wish} on {_list(workers)}" for wish, workers in holders.items())
        raise StateMismatch(
            f"the workers ask for different backends: {said}",
            hint="give all workers the same script and the same EVERSTEP_BACKEND",
            code="backends-differ",
        )
    return facts[0].wish


def _problem(facts: Sequence[BackendFacts]) -> str:
    """Why these workers cannot use NCCL; "": they may."""
    if without := [each.worker for each in facts if not each.nccl]:
        return f"torch on {_list(without)} is built without NCCL"
    versions = {each.nccl: each.worker for each in facts}
    if len(versions) > 1:
        return f"NCCL versions differ: {_list([f'{version} on {worker}' for version, worker in versions.items()])}"
    owners: dict[tuple[str, str], list[str]] = defaultdict(list)
    for each in facts:
        owners[each.host, each.gpu].append(each.worker)
    if shared := [workers for workers in owners.values() if len(workers) > 1]:
        return f"{_list(shared[0])} share a GPU, and NCCL needs one for each worker"
    return next((each.refusal for each in facts if each.refusal), "")


def _must_try(facts: Sequence[BackendFacts]) -> bool:
    return not all(each.is_tried for each in facts)


def _list(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
