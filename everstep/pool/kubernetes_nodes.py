"""A pool's nodes as pods. They outlive the process that creates them, which finds them again by their labels.

A pod gets the workers' token from a Secret, and no token of the cluster."""

from __future__ import annotations

import base64
import hashlib
import math
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from everstep.errors import PermanentError, TemporaryError
from everstep.platforms.fleet import Fleet, FleetNode
from everstep.platforms.kubernetes.cluster import CONFLICT, FORBIDDEN, Denied, Namespace
from everstep.platforms.kubernetes.facts import fleet_node
from everstep.platforms.kubernetes.names import NUMBER, WORKER, WORKER_TOKEN, ObjectNames
from everstep.platforms.kubernetes.render import pool_pod
from everstep.platforms.kubernetes.volumes import WORK
from everstep.pool.join_command import JoinPlace, join_words
from everstep.pool.pool_file import PoolSection
from everstep.storage import private_file

_LOOK_S = 1.0
_NUM_KEPT = 10  # pods that have ended, for their logs


class KubernetesNodes(Fleet):
    lives_on = makes_nodes = True

    def __init__(self, section: PoolSection, place: JoinPlace, folder: Path, instance: str, token: str) -> None:
        """`instance`: of this pool, unlike any other's in the namespace. `token`: for workers."""
        self._section, self._place, self._token = section, place, token
        self._last = folder / "last-number"  # that was given; a pod that is gone is not found again
        self._job, self._names = section.job(place.pool), ObjectNames(instance)
        self._pods: list[FleetNode] = []
        self._looked_at = float("-inf")
        self._namespace: Namespace | None = None

    @property
    def _cluster(self) -> Namespace:
        if self._namespace is None:
            options = self._section.platform.kubernetes
            cluster = Namespace.open(
                context=options.context if options else "", namespace=options.namespace if options else ""
            )
            _create(cluster, self.secret())
            self._namespace = cluster
        return self._namespace

    def nodes(self) -> Sequence[FleetNode]:
        if time.monotonic() - self._looked_at > _LOOK_S:
            pods = self._cluster.find("Pod", self._names.selector(WORKER))
            now = time.time()
            found = [fleet_node(each, now=now) for each in pods if NUMBER in each["metadata"]["labels"]]
            self._pods = sorted((self._named(each) for each in found), key=lambda each: each.number)
            self._looked_at = time.monotonic()
            for old in [each for each in self._pods if each.is_over][:-_NUM_KEPT]:
                self._cluster.delete("Pod", self._names.worker(old.number))
        return self._pods

    def add(self, number: int) -> None:
        number = max(number, self._last_number() + 1)
        private_file.write_text(self._last, str(number))
        try:
            _create(self._cluster, self.pod(number))
        except Denied as error:
            if error.status == FORBIDDEN and "quota" in error.message:
                raise TemporaryError(error.message, code="kubernetes-quota") from None
            raise PermanentError(
                f"{self._names.worker(number)} was refused: {error.message}", code="kubernetes-pod-refused"
            ) from None
        self._looked_at = float("-inf")

    def remove(self, name: str) -> None:
        """Delete the pod. Its trials have the pod's grace period to save and leave."""
        number = next(each.number for each in self._pods if each.name == name)
        self._cluster.delete("Pod", self._names.worker(number))
        self._looked_at = float("-inf")

    def dissolve(self, *, is_good: bool) -> None:
        """Delete pods that have ended, and the Secret with the token."""
        for each in self.nodes():
            self._cluster.delete("Pod", self._names.worker(each.number))
        self._cluster.delete("Secret", self._secret_name)
        self._namespace = None

    def _last_number(self) -> int:
        try:
            return int(self._last.read_text())
        except FileNotFoundError:
            return -1

    def pod(self, number: int) -> dict[str, Any]:
        """Pure. Shown by `everstep pool check --show`."""
        options = {"--name": self._name(number), "--folder": f"{WORK}/pool"}
        words = ["everstep", *join_words(self._section, self._place, options)]
        if self._section.python:
            words = [self._section.python, "-u", "-m", *words]
        command = f"exec {shlex.join(words)}"
        if self._section.time_limit is not None:
            lasts_s = math.floor(self._section.time_limit - self._section.grace)
            command += f" --until $(($(date +%s) + {lasts_s}))"
        lines = "".join(f"{line}\n" for line in self._section.setup)
        return pool_pod(self._job, self._names, number, f"{lines}{command}", token=self._secret_name)

    def secret(self) -> dict[str, Any]:
        """Named by its content: new tokens get a new Secret."""
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": self._secret_name, "labels": self._names.labels()},
            "type": "Opaque",
            "data": {WORKER_TOKEN: base64.b64encode(self._token.encode()).decode()},
        }

    @property
    def _secret_name(self) -> str:
        return f"{self._names.token}-{hashlib.sha256(self._token.encode()).hexdigest()[:8]}"

    def _name(self, number: int) -> str:
        return f"{self._place.pool}-{number}"

    def _named(self, pod: FleetNode) -> FleetNode:
        """The pod under its agent's name."""
        return replace(pod, name=self._name(pod.number))


def _create(cluster: Namespace, each: dict[str, Any]) -> None:
    try:
        cluster.create(each)
    except Denied as error:
        if error.status != CONFLICT:  # made by us, before a restart
            raise
