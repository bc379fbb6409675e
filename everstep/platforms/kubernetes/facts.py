"""The state of pods and jobs, from the cluster's objects. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from everstep.platforms.base import JobStatus, NodeStatus, State
from everstep.platforms.fleet import FleetNode
from everstep.platforms.kubernetes.names import NUMBER

Object = Mapping[str, Any]

_LATE_S = 5.0  # a pod that exists this long after its grace cannot end: its node is gone
_LOST = ("Evicted", "NodeLost", "NodeShutdown", "Preempting", "Preempted", "Shutdown", "Terminated", "NodeAffinity")
_PHASES: Mapping[str, State] = {
    "Pending": "pending",
    "Running": "running",
    "Succeeded": "succeeded",
    "Failed": "failed",
}


def seconds(stamp: str | None) -> float:
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp() if stamp else 0.0


def fleet_node(pod: Object, *, now: float) -> FleetNode:
    metadata, status = pod["metadata"], pod.get("status", {})
    ends = [seconds(each.get("finishedAt")) for each in _terminated(pod)]
    is_gone = is_out_of_reach(pod, now=now)
    return FleetNode(
        number=int(metadata["labels"][NUMBER]),
        name=metadata["name"],
        is_over=is_gone or status.get("phase") in ("Succeeded", "Failed"),
        is_leaving=metadata.get("deletionTimestamp") is not None,
        is_lost=is_gone or is_lost(pod),
        is_dead=not is_gone and is_dead(pod),
        started_at=seconds(metadata.get("creationTimestamp")),
        ended_at=max(ends, default=now),
        reason=f"{metadata['name']}: {reason_of(pod)}",
    )


def is_out_of_reach(pod: Object, *, now: float) -> bool:
    """Its deletion is overdue, and its node does not confirm it."""
    deleted = pod["metadata"].get("deletionTimestamp")
    return deleted is not None and now > seconds(deleted) + _LATE_S


def is_dead(pod: Object) -> bool:
    """Its node's kubelet has seen all its containers end. A controller that gives a node up ends its pods too, but has
    not seen what runs there."""
    status, ends = pod.get("status", {}), _terminated(pod)
    is_over = status.get("phase") in ("Succeeded", "Failed")
    is_seen = all(each.get("reason") != "ContainerStatusUnknown" and each.get("finishedAt") for each in ends)
    return is_over and is_seen and len(ends) == len(pod["spec"].get("containers", ())) > 0


def is_lost(pod: Object) -> bool:
    """Preempted, evicted, or its machine is gone."""
    status = pod.get("status", {})
    is_disrupted = any(
        each["type"] == "DisruptionTarget" and each["status"] == "True" for each in status.get("conditions", [])
    )
    return is_disrupted or status.get("reason") in _LOST


def reason_of(pod: Object) -> str:
    status = pod.get("status", {})
    for each in _terminated(pod):
        code = each.get("exitCode")
        if code or each.get("reason") != "Completed":
            return f"exit code {code}" + (f", {each['reason']}" if each.get("reason") not in (None, "Error") else "")
    waiting = _waiting(pod)
    if waiting is not None:
        return (
            f"{waiting.get('reason', 'waiting')}: {waiting['message']}" if "message" in waiting else waiting["reason"]
        )
    if status.get("reason"):
        return f"{status['reason']}: {status.get('message', '')}".rstrip(": ")
    for each in status.get("conditions", []):
        if each["type"] == "PodScheduled" and each["status"] == "False":
            return str(each.get("message") or each.get("reason") or "not placed yet")
    return "is being deleted" if pod["metadata"].get("deletionTimestamp") else ""


def node_status(pod: Object, *, now: float) -> NodeStatus:
    state: State = _PHASES.get(pod.get("status", {}).get("phase", ""), "unknown")
    if is_out_of_reach(pod, now=now):
        state = "unknown"
    return NodeStatus(
        name=pod["metadata"]["name"], state=state, where=pod["spec"].get("nodeName", ""), reason=reason_of(pod)
    )


def job_status(
    job: Object | None, coordinators: Sequence[Object], workers: Sequence[Object], *, now: float
) -> JobStatus:
    """`job`: the coordinator's Job. Its pods, in order of their creation."""
    if job is None:
        return JobStatus(state="canceled", reason="it is no longer in the cluster")
    state, reason = _state(job, coordinators)
    pods = [*coordinators[-1:], *workers]
    return JobStatus(state=state, reason=reason, nodes=tuple(node_status(each, now=now) for each in pods))


def _state(job: Object, coordinators: Sequence[Object]) -> tuple[State, str]:
    if job["metadata"].get("deletionTimestamp"):
        return "running", "it is being deleted"
    last = coordinators[-1] if coordinators else None
    for each in job.get("status", {}).get("conditions", []):
        if each["status"] == "True" and each["type"] == "Complete":
            return "succeeded", "finished"
        if each["status"] == "True" and each["type"] == "Failed":
            return "failed", (_last_words(last) if last else "") or f"{each.get('reason')}: {each.get('message')}"
    if job["spec"].get("suspend"):
        return "suspended", "it waits for Kueue to start it"
    if last is None:
        return "pending", "the coordinator's pod does not exist yet"
    phase = last.get("status", {}).get("phase")
    if phase == "Running":
        return "running", "the coordinator runs"
    return "pending", f"the coordinator: {reason_of(last) or phase}"


def _last_words(pod: Object) -> str:
    said = next((str(each["message"]).strip() for each in _terminated(pod) if each.get("message")), "")
    return said.rpartition("\n")[2].removeprefix("everstep: ").removeprefix("failed: ")


def _terminated(pod: Object) -> list[Object]:
    states = [each.get("state", {}) for each in pod.get("status", {}).get("containerStatuses", [])]
    return [each["terminated"] for each in states if "terminated" in each]


def _waiting(pod: Object) -> Object | None:
    states = [each.get("state", {}) for each in pod.get("status", {}).get("containerStatuses", [])]
    return next((each["waiting"] for each in states if "waiting" in each), None)
