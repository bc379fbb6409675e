"""Job runs of the emulated service: real processes with the service's environment, a state each, and a log."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

OVER = ("SUCCEEDED", "FAILED", "CANCELED", "DELETED")


def now_text() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def new_ocid(kind: str) -> str:
    return f"ocid1.{kind}.oc1.iad.{uuid.uuid4().hex}"


@dataclass(slots=True)
class Settings:
    """Changed by tests, at any time."""

    accept_s: float = 0.0  # from ACCEPTED to IN_PROGRESS
    cancel_hangs: bool = False
    kill_after_s: float = 20.0  # from SIGTERM to SIGKILL
    log_late_s: float = 0.0
    log_twice: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """What a run's container has in it."""

    command: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(slots=True)
class LogStore:
    settings: Settings
    records: list[tuple[float, dict[str, Any]]] = field(default_factory=list)  # and from when it is found

    def add(self, place: str, source: str, text: str) -> None:
        record = {"id": str(uuid.uuid4()), "time": now_text(), "source": source, "data": {"message": text}}
        result = {"place": place, "datetime": int(time.time() * 1000), "logContent": record}
        self.records.append((time.time() + self.settings.log_late_s, result))
        if self.settings.log_twice:
            self.records.append((time.time(), result))

    def search(
        self, place: str, endings: list[str], start_ms: float, end_ms: float, limit: int
    ) -> list[dict[str, Any]]:
        found = [
            {"data": {"datetime": result["datetime"], "logContent": result["logContent"]}}
            for visible_at, result in list(self.records)
            if visible_at <= time.time()
            and f"{result['place']}/".startswith(f"{place}/")
            and start_ms <= result["datetime"] <= end_ms
            and any(result["logContent"]["source"].endswith(ending) for ending in endings)
        ]
        return sorted(found, key=lambda each: each["data"]["datetime"])[:limit]


class JobRun:
    def __init__(
        self, job: dict[str, Any], body: dict[str, Any], *, folder: Path, image: Image, logs: LogStore
    ) -> None:
        self.id = new_ocid("datasciencejobrun")
        self.job, self.body, self.logs, self.settings = job, body, logs, logs.settings
        self.state, self.details = "ACCEPTED", ""
        self.accepted, self.started, self.finished = now_text(), None, None
        self._folder, self._image = folder / self.id, image
        self.processes: list[subprocess.Popen[bytes]] = []
        self.token, self.public_key, self._key_pem = _principal(self.id)
        self._canceled = threading.Event()
        self._lock = threading.Lock()  # a run is canceled, or has ended
        self.thread = threading.Thread(target=self._live, name=self.id, daemon=True)
        self.thread.start()

    # --- requests ---

    def environments(self) -> list[dict[str, str]]:
        """One for each node."""
        group = self._group()
        configuration = self.job["jobConfigurationDetails"] if group is None else group["jobConfigurationDetails"]
        override = (self.body.get("jobConfigurationOverrideDetails") or {}).get("environmentVariables") or {}
        given = {**(configuration.get("environmentVariables") or {}), **override}
        principal = {
            "OCI_RESOURCE_PRINCIPAL_VERSION": "2.2",
            "OCI_RESOURCE_PRINCIPAL_RPST": str(self._folder / "rpst"),
            "OCI_RESOURCE_PRINCIPAL_PRIVATE_PEM": str(self._folder / "private.pem"),
            "OCI_RESOURCE_PRINCIPAL_REGION": "us-ashburn-1",
        }
        service = {
            "JOB_OCID": self.job["id"],
            "JOB_RUN_OCID": self.id,
            "JOB_RUN_COMPARTMENT_OCID": self.body["compartmentId"],
            "PROJECT_OCID": self.body["projectId"],
            **principal,
        }
        one = {"HOME": str(self._folder), **self._image.environment, **given, **service}
        if group is None:
            return [one]
        nodes = self._folder / "nodes.json"
        nodes.write_text(json.dumps([{"Rank": rank, "IPAddress": "127.0.0.1"} for rank in range(group["replicas"])]))
        together = {"INITIAL_CLUSTER_SIZE": str(group["replicas"]), "CLUSTER_NODES_METADATA_FILE": str(nodes)}
        return [{**one, **together, "NODE_RANK": str(rank)} for rank in range(group["replicas"])]

    def cancel(self) -> bool:
        with self._lock:
            if self.state not in ("ACCEPTED", "IN_PROGRESS"):
                return False
            self.state = "CANCELING"
            self._canceled.set()
            return True

    def view(self) -> dict[str, Any]:
        return {
            "id": self.id,
            **{key: self.body.get(key) for key in ("projectId", "compartmentId", "displayName", "jobId")},
            "jobConfigurationOverrideDetails": self.body.get("jobConfigurationOverrideDetails"),
            "freeformTags": self.body.get("freeformTags") or {},
            "definedTags": self.body.get("definedTags") or {},
            "lifecycleState": self.state,
            "lifecycleDetails": self.details,
            "timeAccepted": self.accepted,
            "timeStarted": self.started,
            "timeFinished": self.finished,
            "logDetails": {"logGroupId": self._log[1], "logId": self._log[2]},
        }

    # --- its life ---

    def _live(self) -> None:
        if not self._canceled.wait(self.settings.accept_s) and self._begin():
            self._start()
        self._attend()
        with self._lock:
            self._end([process.returncode for process in self.processes])

    def _begin(self) -> bool:
        with self._lock:
            if self._canceled.is_set():
                return False
            self.started, self.state = now_text(), "IN_PROGRESS"
            return True

    def _end(self, codes: list[int]) -> None:
        self.finished = now_text()
        if self._canceled.is_set():
            self.details, self.state = "Job run was canceled.", "CANCELED"
            return
        num_needed = len(codes) if (group := self._group()) is None else group["minimumSuccessReplicas"]
        if codes.count(0) >= num_needed:
            self.state = "SUCCEEDED"
        else:
            bad = next(code for code in codes if code)
            self.details = f"Job run artifact execution failed with exit code {bad if bad > 0 else 128 - bad}."
            self.state = "FAILED"

    def _start(self) -> None:
        self._folder.mkdir(parents=True)
        for name, text in (("rpst", self.token), ("private.pem", self._key_pem)):
            (self._folder / name).write_text(text)
            (self._folder / name).chmod(0o600)
        readers = []
        for number, environment in enumerate(self.environments()):
            folder = self._folder / f"node-{number}"
            folder.mkdir()
            process = subprocess.Popen(
                self._image.command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self.processes.append(process)
            reader = threading.Thread(target=self._read, args=(process,), daemon=True)
            reader.start()
            readers.append(reader)
        self._readers = readers

    def _attend(self) -> None:
        told_at: float | None = None
        while any(process.poll() is None for process in self.processes) or (
            self._canceled.is_set() and self.settings.cancel_hangs
        ):
            if self._canceled.is_set() and told_at is None:
                told_at = time.monotonic()
                self.signal(signal.SIGTERM)
            if told_at is not None and time.monotonic() > told_at + self.settings.kill_after_s:
                self.kill()
            time.sleep(0.02)
        self.kill()  # as a container's end ends all that is in it
        for reader in getattr(self, "_readers", []):
            reader.join()

    def signal(self, number: int) -> None:
        """To the first process of each container, as a container's engine does."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(number)

    def kill(self) -> None:
        for process in self.processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self.logs.add("/".join(self._log), self.id, line.decode(errors="replace").rstrip("\n"))

    @property
    def _log(self) -> tuple[str, str, str]:
        told = self.job.get("jobLogConfigurationDetails") or {}
        return self.body["compartmentId"], told.get("logGroupId", ""), told.get("logId") or f"log-of-{self.id}"

    def _group(self) -> dict[str, Any] | None:
        nodes = self.job.get("jobNodeConfigurationDetails")
        return nodes["jobNodeGroupConfigurationDetailsList"][0] if nodes else None


def _principal(run_id: str) -> tuple[str, rsa.RSAPublicKey, str]:
    """The token of a run, its public key, and the private one as PEM."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    claims = {"sub": run_id, "exp": int(time.time()) + 3600, "res_tenant": "tenancy", "res_compartment": "compartment"}
    parts = [
        base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=").decode() for each in ({"alg": "none"}, claims)
    ]
    token = f"{parts[0]}.{parts[1]}.{uuid.uuid4().hex}"
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()).decode()
    return token, key.public_key(), pem
