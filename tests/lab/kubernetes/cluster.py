"""The real Kubernetes of the tests: a cluster of three nodes on this machine, or the one that KUBECONFIG names.

On this machine pods use the virtual environment of the tests, mounted at its own path; elsewhere EVERSTEP_TEST_IMAGE
names an image that has Everstep and torch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.required import missing

SCRIPTS = Path(__file__).parent
REPOSITORY = Path(__file__).parents[3]
IMAGE = "local/debian-py:12"
NUM_NODES = 3
UP_S = 1500.0  # the first time, Kubernetes is compiled


@contextmanager
def open_lab() -> Iterator[Lab]:
    given = os.environ.get("KUBECONFIG")
    if given:
        if not os.environ.get("EVERSTEP_TEST_IMAGE"):
            missing(
                "Kubernetes", "KUBECONFIG is a cluster, but EVERSTEP_TEST_IMAGE names no image with Everstep and torch"
            )
        yield Lab(kubeconfig=given, kubectl="kubectl", is_ours=False)
        return
    if os.geteuid() != 0:
        missing("Kubernetes", "a cluster of our own needs root, and KUBECONFIG names no other")
    if shutil.which("apt-get") is None:
        missing("Kubernetes", "a cluster of our own needs Debian's packages, and KUBECONFIG names no other")
    done = subprocess.run([SCRIPTS / "up", str(NUM_NODES)], capture_output=True, text=True, timeout=UP_S)
    if done.returncode != 0:
        subprocess.run([SCRIPTS / "down"], timeout=120)
        missing("Kubernetes", done.stderr[-2000:])
    kubeconfig = done.stdout.strip()
    kubectl = str(Path(kubeconfig).parents[1] / "bin" / "kubectl")
    try:
        yield Lab(kubeconfig=kubeconfig, kubectl=kubectl, is_ours=True)
    finally:
        if os.environ.get("EVERSTEP_KEEP_LABS") != "1":
            subprocess.run([SCRIPTS / "down"], timeout=120, check=True)


class Lab:
    """One cluster."""

    def __init__(self, *, kubeconfig: str, kubectl: str, is_ours: bool) -> None:
        self.kubeconfig, self._kubectl, self.is_ours = kubeconfig, kubectl, is_ours

    def kubectl(self, *words: str, text: str | None = None, is_good: bool = True, deadline_s: float = 120) -> str:
        done = subprocess.run(
            [self._kubectl, "--kubeconfig", self.kubeconfig, *words],
            input=text,
            capture_output=True,
            text=True,
            timeout=deadline_s,
        )
        assert not is_good or done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
        return done.stdout

    def look(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, "-l", selector, "-o", "json"))["items"]
        return items

    def kill_node(self, name: str) -> None:
        subprocess.run([SCRIPTS / "kill-node", name], check=True, timeout=120)

    def revive_nodes(self) -> None:
        subprocess.run([SCRIPTS / "up", str(NUM_NODES)], check=True, capture_output=True, timeout=300)

    def volume(self, name: str, folder: Path) -> None:
        """A volume of 1 GiB that any claim may have; all nodes see the folder, as they are one machine."""
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": str(folder)},
        }
        volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}
        self.kubectl("apply", "-f", "-", text=json.dumps(volume))

    def remove_volume(self, name: str) -> None:
        self.kubectl("delete", "persistentvolume", name, "--wait=false", is_good=False)

    def job(self) -> dict[str, Any]:
        """What a job file needs here: an image, and where Python is."""
        options: dict[str, Any] = {"store": "node"}
        if not self.is_ours:
            return {"image": os.environ["EVERSTEP_TEST_IMAGE"], "platform": {"kubernetes": options}}
        options |= {"pull_policy": "Never", "tolerations": _impatient(), "coordinator_raw": _coordinator()}
        return {
            "image": IMAGE,
            "env": _environment(),
            "volumes": [{"source": str(each), "target": str(each), "readonly": True} for each in _folders()],
            "checkpoint": {"grace": "10s"},
            "platform": {"kubernetes": options},
        }


def _folders() -> list[Path]:
    """The environment that runs the tests, the Python that it is made of, and the code."""
    found = [Path(sys.prefix), Path(sys.base_prefix), REPOSITORY]
    return [each for each in found if not any(each != other and each.is_relative_to(other) for other in found)]


def _environment() -> dict[str, str]:
    path = f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin"
    return {"PATH": path, "PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}


def _impatient() -> list[dict[str, Any]]:
    keys = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    return [{"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 2} for key in keys]


def _coordinator() -> Mapping[str, Any]:
    mounts = [{"name": f"lab-{i}", "mountPath": str(each), "readOnly": True} for i, each in enumerate(_folders())]
    volumes = [{"name": f"lab-{i}", "hostPath": {"path": str(each)}} for i, each in enumerate(_folders())]
    variables = [{"name": name, "value": value} for name, value in _environment().items()]
    return {
        "spec": {"containers": [{"name": "main", "env": variables, "volumeMounts": mounts}], "volumes": volumes},
    }
