"""Worker pods, made and deleted by the coordinator, which runs in a pod itself. They outlive it.

They are owned by its Job, not by its pod: the next coordinator finds them, and with the Job they go. Calls that
fail now are repeated at the next turn."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from everstep import env
from everstep.errors import PermanentError, TemporaryError, UsageError
from everstep.job_file.order import NodeOrder
from everstep.platforms.fleet import Fleet, FleetNode
from everstep.platforms.kubernetes.cluster import CONFLICT, FORBIDDEN, Denied, Namespace, Object, import_client
from everstep.platforms.kubernetes.facts import fleet_node
from everstep.platforms.kubernetes.names import ALL_TOKENS, NODES, NUMBER, TEMPLATE, WORKER, WORKER_TOKEN, ObjectNames
from everstep.retry import patiently
from everstep.wire.tokens import only_for_workers

log = logging.getLogger("everstep")

_LOOK_S = 1.0  # between two looks at pods
_PAUSE_S = 5.0  # after a pod was refused
_API_AWAY_S = 60.0  # the cluster may be unreachable for this long

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """The owner of all objects that the coordinator makes."""

    name: str
    uid: str

    @property
    def reference(self) -> Object:
        return {"apiVersion": "batch/v1", "kind": "Job", "name": self.name, "uid": self.uid}


def pod_of(template: Object, names: ObjectNames, number: int, *, owner: Owner, secret: str) -> dict[str, Any]:
    """Pure. `secret` holds the token that this coordinator takes."""
    pod: dict[str, Any] = copy.deepcopy(dict(template))
    metadata = pod["metadata"]
    metadata["name"] = names.worker(number)
    metadata["labels"] = {**metadata["labels"], NUMBER: str(number)}
    metadata["ownerReferences"] = [owner.reference]
    for container in pod["spec"]["containers"]:
        for variable in container.get("env", []):
            if variable["name"] == env.TOKEN:
                variable["valueFrom"]["secretKeyRef"]["name"] = secret
    return {"apiVersion": "v1", "kind": "Pod", **pod}


def token_secret(names: ObjectNames, tokens: str, *, owner: Owner) -> dict[str, Any]:
    """Named by its content: a coordinator that lost its store generates new tokens. Pure."""
    values = {WORKER_TOKEN: only_for_workers(tokens), ALL_TOKENS: tokens}
    digest = hashlib.sha256(tokens.encode()).hexdigest()[:8]
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"{names.token}-{digest}", "labels": names.labels(), "ownerReferences": [owner.reference]},
        "type": "Opaque",
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in values.items()},
    }


def _patiently(call: Callable[[], T]) -> T:
    return patiently(call, _API_AWAY_S, gave_up=TemporaryError, hint="does the cluster's API answer?")


class KubernetesFleet(Fleet):
    lives_on = makes_nodes = True

    def __init__(self, order: NodeOrder, folder: Path) -> None:
        self._order, self._folder = order, folder
        self._template: Mapping[str, Any] = {}
        self._names = ObjectNames("")
        self._secret = ""
        self._pods: list[FleetNode] = []
        self._wanted = order.max_nodes
        self._looked_at = self._asked_at = self._refused_at = float("-inf")

    def prepare(self) -> None:
        """Import the client in the background: that takes longer than all that is asked of it at the start."""
        threading.Thread(target=import_client, name="kubernetes client", daemon=True).start()

    def __enter__(self) -> KubernetesFleet:
        if (text := env.value(TEMPLATE)) is None:
            raise UsageError(
                f"{TEMPLATE} is not set: no template of a worker's pod",
                hint="start the coordinator by the rendered manifest",
                code="kubernetes-worker-template-missing",
            )
        self._template = json.loads(text)
        self._names = ObjectNames(self._template["metadata"]["labels"]["app.kubernetes.io/instance"])
        self._cluster = Namespace.open()
        job = _patiently(lambda: self._cluster.get("Job", self._names.coordinator))
        if job is None:
            raise PermanentError(
                f"the Job {self._names.coordinator} of this coordinator does not exist",
                code="kubernetes-coordinator-job-missing",
            )
        self._owner = Owner(name=job["metadata"]["name"], uid=job["metadata"]["uid"])
        self._secret = _patiently(lambda: self._publish(env.read_token(self._folder / "token")))
        return self

    def wanted(self) -> int:
        if time.monotonic() - self._asked_at > _LOOK_S:
            self._asked_at = time.monotonic()
            try:
                job = self._cluster.get("Job", self._names.coordinator) or {"metadata": {}}
                told = job["metadata"].get("annotations", {}).get(NODES)
                self._wanted = int(told) if told and told.isdecimal() else self._order.max_nodes
            except (TemporaryError, Denied) as error:
                log.warning("could not read the number of nodes wanted: %s", error.message)
        return self._wanted

    def nodes(self) -> Sequence[FleetNode]:
        if time.monotonic() - self._looked_at > _LOOK_S:
            try:
                pods = self._cluster.find("Pod", self._names.selector(WORKER))
                now = time.time()
                self._pods = [fleet_node(each, now=now) for each in pods if NUMBER in each["metadata"]["labels"]]
                self._looked_at = time.monotonic()
            except TemporaryError as error:
                log.warning("worker pods: %s", error.message)
        return self._pods

    def add(self, number: int) -> None:
        if time.monotonic() - self._refused_at < _PAUSE_S:
            return
        pod = pod_of(self._template, self._names, number, owner=self._owner, secret=self._secret)
        try:
            self._cluster.create(pod)
        except TemporaryError as error:
            self._refused(error.message)
            return
        except Denied as error:
            if error.status == FORBIDDEN and "quota" in error.message:
                self._refused(error.message)
                return
            if error.status != CONFLICT:  # made by an earlier coordinator, in its last moment
                raise PermanentError(
                    f"{self._names.worker(number)} was refused: {error.message}", code="kubernetes-pod-refused"
                ) from None
        self._note(FleetNode(number=number, name=self._names.worker(number), started_at=time.time()))

    def remove(self, name: str) -> None:
        """It leaves in good order within its grace."""
        _patiently(lambda: self._cluster.delete("Pod", name))
        self._looked_at = float("-inf")

    def dissolve(self, *, is_good: bool) -> None:
        self._looked_at = float("-inf")
        for node in self.nodes():
            if not node.is_over and not node.is_leaving:
                self.remove(node.name)
        if not is_good:  # else the Job would keep retrying
            no_more = {"spec": {"backoffLimit": 0}}
            _patiently(lambda: self._cluster.patch("Job", self._names.coordinator, no_more))

    def _publish(self, tokens: str) -> str:
        secret = token_secret(self._names, tokens, owner=self._owner)
        try:
            self._cluster.create(secret)
        except Denied as error:
            if error.status != CONFLICT:
                raise
        return str(secret["metadata"]["name"])

    def _note(self, node: FleetNode) -> None:
        self._pods = [*(each for each in self._pods if each.name != node.name), node]

    def _refused(self, why: str) -> None:
        self._refused_at = time.monotonic()
        log.warning("a worker pod was refused; retrying in %.0f s: %s", _PAUSE_S, why)
