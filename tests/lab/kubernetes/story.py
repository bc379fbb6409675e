"""A job on the cluster, followed by the files in its data folder, which this machine sees; and its disturbances."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from everstep.testing.tape import Event, Tape, is_match
from lab.command import DEADLINE_S, Shell, everstep, until
from lab.kubernetes.cluster import Lab


class Story(Shell):
    """`everstep run` in a folder; then the other commands, and the lab's."""

    def __init__(
        self, lab: Lab, folder: Path, data: Path, *, name: str, keys: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        """`keys`: sections of the job file, in addition to what the lab needs in them."""
        super().__init__(folder, KUBECONFIG=lab.kubeconfig)
        self.lab, self.data, self.name, self.keys = lab, data, name, keys or {}
        self._events = data / "events.jsonl"
        self._events.touch()
        for each in (data, self._events):
            each.chmod(0o777)
        self._tape = Tape(self._events)
        self.id = ""

    def changes(self) -> list[str]:
        """What the job needs here, as `--set` takes it: an image, volumes, a store that outlives the coordinator."""
        job = self.lab.job()
        job["volumes"] = [*job["volumes"], {"source": str(self.data), "target": "/data"}]
        job["env"]["EVERSTEP_EVENTS"] = "/data/events.jsonl"
        job |= {key: {**job.get(key, {}), **section} for key, section in self.keys.items()}
        kubernetes = {**job.pop("platform")["kubernetes"], "store": "1Gi"}
        changes = {"name": self.name, "platform.kubernetes": kubernetes, **job}
        return [f"--set={key}={json.dumps(value)}" for key, value in changes.items()]

    def run(self, file: str) -> None:
        self.lab.volume(self.name, self.data.with_name(f"{self.data.name}-store"))
        self.id = yaml.safe_load(self.type("run", "-f", file, *self.changes()))["everstep"]["id"]

    def events(self, name: str, **facts: Any) -> list[Event]:
        return [event for event in self._tape.read() if is_match(event, name, facts)]

    def wait(self, name: str, *, after: int = 0, deadline_s: float = DEADLINE_S, **facts: Any) -> None:
        """`after`: this many have come before."""
        until(
            lambda: len(self.events(name, **facts)) > after,
            lambda: f"no {name} {facts}; {self.lab.kubectl('get', 'pods', '-o', 'wide')}\n{self.said()}",
            deadline_s,
        )

    def generation(self) -> int:
        """The latest in which a step was taken."""
        return max(event["generation"] for event in self.events("step.committed"))

    def wait_going_on(self, size: int, *, after: int) -> None:
        """Wait for steps by this many workers, in a generation later than that one."""
        self.wait("step.committed", size=size, generation=lambda number: number > after)

    def said(self) -> str:
        return self.type("logs", self.id)

    def pods(self, component: str) -> list[Mapping[str, Any]]:
        """That run and are to go on running."""
        found = self.lab.look("pods", f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component={component}")
        return [
            each
            for each in found
            if each["status"]["phase"] == "Running" and "deletionTimestamp" not in each["metadata"]
        ]

    def hurry(self) -> None:
        (self.data / "hurry").touch()

    def finish(self) -> str:
        self.type("watch", self.id)
        return self.said()

    def close(self) -> None:
        if self.id:
            everstep("cancel", self.id, folder=self.folder, **self.env)
            self.lab.remove_volume(self.name)


def disturb(story: Story) -> None:
    """A worker's pod is deleted, then the coordinator's, then a node is killed."""
    lab = story.lab
    story.wait("step.committed", size=2, step=lambda step: step >= 2)

    before = story.generation()
    lab.kubectl("delete", "pod", story.pods("worker")[0]["metadata"]["name"], "--wait=false")
    story.wait_going_on(size=2, after=before)

    (coordinator,) = story.pods("coordinator")
    lab.kubectl("delete", "pod", coordinator["metadata"]["name"], "--wait=false")
    another = _another(story, coordinator)

    if lab.is_ours:
        before = story.generation()
        nodes = [each["spec"]["nodeName"] for each in story.pods("worker")]
        lab.kill_node(next((node for node in nodes if node != another["spec"]["nodeName"]), nodes[0]))
        story.wait_going_on(size=2, after=before)


def _another(story: Story, before: Mapping[str, Any]) -> Mapping[str, Any]:
    name = before["metadata"]["name"]
    found: list[Mapping[str, Any]] = []

    def find() -> bool:
        found[:] = [each for each in story.pods("coordinator") if each["metadata"]["name"] != name]
        return bool(found)

    until(find, lambda: f"no other coordinator than {name}")
    return found[0]
