"""Names of a job's objects, and the labels that select them. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

COORDINATOR, WORKER = "coordinator", "worker"
MAIN = "main"  # the container
PORT = 7070  # of the coordinator; its pod has an address of its own
ID = "everstep.dev/id"  # annotation: the job's id
NODES = "everstep.dev/nodes"  # annotation of the coordinator's Job: how many nodes the user wants
NUMBER = "everstep.dev/number"  # label: which of the worker pods it is
WORKER_TOKEN, ALL_TOKENS = "worker", "token"  # keys of the Secret
TEMPLATE = "EVERSTEP_WORKER_POD"  # what a worker's pod looks like, for the coordinator
_COMPONENT = "app.kubernetes.io/component"
_LABEL_KEY = re.compile(r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")


@dataclass(frozen=True, slots=True)
class ObjectNames:
    """`job` is short enough that all derived names are valid."""

    job: str

    @property
    def coordinator(self) -> str:
        """Of the Job, its Service, its ServiceAccount, Role and RoleBinding."""
        return f"{self.job}-{COORDINATOR}"

    @property
    def workers(self) -> str:
        """Of the Indexed Job and its Service."""
        return f"{self.job}-{WORKER}"

    def worker(self, number: int) -> str:
        return f"{self.workers}-{number}"

    @property
    def order(self) -> str:
        """Of the ConfigMap with the job's order and the template of a worker's pod."""
        return f"{self.job}-order"

    def code(self, part: int) -> str:
        return f"{self.job}-code-{part}"

    @property
    def store(self) -> str:
        return f"{self.job}-store"

    @property
    def secrets(self) -> str:
        """Of the Secret with the values that came from where the job was submitted."""
        return f"{self.job}-secrets"

    @property
    def token(self) -> str:
        """Of the Secret with the coordinator's tokens; a suffix tells the Secrets of successive coordinators apart."""
        return f"{self.job}-token"

    @property
    def url(self) -> str:
        return f"http://{self.coordinator}:{PORT}"

    def labels(self, component: str = "") -> dict[str, str]:
        labels = {
            "app.kubernetes.io/name": "everstep",
            "app.kubernetes.io/instance": self.job,
            "app.kubernetes.io/managed-by": "everstep",
        }
        return {**labels, _COMPONENT: component} if component else labels

    def selector(self, component: str = "") -> str:
        return ",".join(f"{key}={value}" for key, value in self.labels(component).items())


def is_label(key: str, value: str) -> bool:
    return bool(_LABEL_KEY.fullmatch(key) and _LABEL_VALUE.fullmatch(value))
