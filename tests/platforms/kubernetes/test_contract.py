"""Kubernetes passes the stories of all platforms, on a real cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lab.contract import FamilyContract
from lab.kubernetes.cluster import Lab

KINDS = "jobs,pods,services,configmaps,secrets,persistentvolumeclaims,serviceaccounts,roles,rolebindings"


class KubernetesPlace:
    scales = True

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def job(self) -> Mapping[str, Any]:
        return self._lab.job()

    def env(self) -> Mapping[str, str]:
        return {"KUBECONFIG": self._lab.kubeconfig}

    def saves(self, folder: Path) -> tuple[str, Mapping[str, Any]]:
        """A folder of the nodes, which are this machine."""
        saved, volumes = folder / "saved", self._lab.job().get("volumes", [])
        saved.mkdir()
        saved.chmod(0o777)
        keys = {"checkpoint": {"uri": str(saved), "grace": "10s"}}
        return str(saved), {**keys, "volumes": [*volumes, {"source": str(saved), "target": str(saved)}]}

    def leftovers(self, job_id: str) -> list[str]:
        name, *_ = job_id.rsplit("-", 3)
        found = self._lab.look(KINDS, f"app.kubernetes.io/instance={name}")
        return [f"{each['kind']}/{each['metadata']['name']}" for each in found]


class TestKubernetes(FamilyContract):
    @pytest.fixture
    def place(self, lab: Lab) -> KubernetesPlace:
        return KubernetesPlace(lab)
