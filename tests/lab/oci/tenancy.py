"""An emulated OCI, and a user of it with a key and a profile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

ROOT = Path(__file__).parents[3]
STANDIN = ROOT / "tests" / "examples" / "standin"  # torchvision, as far as the seed's script needs it
TENANCY, USER, FINGERPRINT = "ocid1.tenancy.oc1..aaaa", "ocid1.user.oc1..bbbb", ":".join(["ab"] * 16)
COMPARTMENT, PROJECT = "ocid1.compartment.oc1..cccc", "ocid1.datascienceproject.oc1.iad.dddd"
OVER = ("SUCCEEDED", "FAILED", "CANCELED")
_START_S = 120.0
_ANSWER_S = 60.0


@dataclass(frozen=True, kw_only=True)
class OciLab:
    """`scales` and the rest: as the contract of all platforms wants it."""

    folder: Path
    url: str
    scales = True

    def job(self) -> Mapping[str, Any]:
        options = {
            "compartment": COMPARTMENT,
            "project": PROJECT,
            "subnet": "ocid1.subnet.oc1.iad.eeee",
            "log_group": "ocid1.loggroup.oc1.iad.ffff",
            "log": "ocid1.log.oc1.iad.aaaa",
            "shape": "VM.Standard.E4.Flex",
            "ocpus": 1,
            "memory_gb": 8,
            "work_dir": self.work_dir,
            "endpoint": self.url,
        }
        return {
            "image": "iad.ocir.io/tenancy/everstep:1",
            "platform": {"name": "oci", "oci": options},
            "checkpoint": {"grace": 10},
        }

    def env(self) -> Mapping[str, str]:
        return {"HOME": str(self.folder / "user"), **to_buckets_at(self.url)}

    @property
    def work_dir(self) -> str:
        return "oci://bucket@namespace/path/to/dir/"

    def saves(self, folder: Path) -> tuple[str, Mapping[str, Any]]:
        """A folder that all nodes mount; the record goes to the job's folder in the bucket."""
        uri = str(folder / "saved")
        return uri, {"checkpoint": {"uri": uri, "grace": 10}}

    def leftovers(self, job_id: str) -> list[str]:
        state = self.state()
        objects = [name for name in state["objects"] if "/record/" not in name]
        return objects + [run["displayName"] for run in state["runs"] if run["lifecycleState"] not in OVER]

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = httpx.get(f"{self.url}/emulator/state", timeout=_ANSWER_S).json()
        return state

    def change(self, **settings: Any) -> None:
        self._tell("settings", settings)

    def break_(self, method: str, path: str, **fault: Any) -> None:
        self._tell("faults", {"method": method, "path": path, **fault})

    def keep_secret(self, **values: str) -> None:
        self._tell("secrets", values)

    def reset(self) -> None:
        self._tell("reset", {})

    def _tell(self, what: str, body: Mapping[str, Any]) -> None:
        httpx.post(f"{self.url}/emulator/{what}", json=dict(body), timeout=_ANSWER_S).raise_for_status()


def to_buckets_at(url: str) -> dict[str, str]:
    """fsspec's way to say where oci:// leads."""
    return {"FSSPEC_OCI": json.dumps({"config_kwargs": {"service_endpoint": url}})}


@contextmanager
def open_lab(folder: Path) -> Iterator[OciLab]:
    pem = make_user(folder / "user")
    told = {
        "folder": str(folder / "runs"),
        "ready": str(folder / "ready"),
        "keys": {f"{TENANCY}/{USER}/{FINGERPRINT}": pem},
        "command": [sys.executable, "-u", "-m", "everstep", "entry"],
        "environment": {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "PYTHONPATH": f"{STANDIN}:{ROOT}",
            "OMP_NUM_THREADS": "1",
        },  # of the image
    }
    (folder / "settings.json").write_text(json.dumps(told))
    server = subprocess.Popen([sys.executable, Path(__file__).parent / "server.py", folder / "settings.json"])
    try:
        deadline = time.monotonic() + _START_S
        while not (folder / "ready").exists():
            assert server.poll() is None and time.monotonic() < deadline, "the emulated OCI did not start"
            time.sleep(0.02)
        yield OciLab(folder=folder, url=(folder / "ready").read_text())
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(_ANSWER_S)


def make_user(home: Path, fingerprint: str = FINGERPRINT) -> str:
    """A new key and a profile that uses it: the public one, as PEM."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    folder = home / ".oci"
    folder.mkdir(parents=True)
    profile = {
        "user": USER,
        "fingerprint": fingerprint,
        "tenancy": TENANCY,
        "region": "us-ashburn-1",
        "key_file": str(folder / "key.pem"),
    }
    (folder / "config").write_text("[DEFAULT]\n" + "".join(f"{name}={value}\n" for name, value in profile.items()))
    (folder / "key.pem").write_bytes(private)
    for path in folder.iterdir():
        path.chmod(0o600)
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def main() -> int:
    """`python oci_lab.py COMMAND …`: run it beside an emulated OCI; JOB becomes a job file for it."""
    with tempfile.TemporaryDirectory() as folder, open_lab(Path(folder)) as lab:
        job = Path(folder) / "job.yaml"
        job.write_text(yaml.safe_dump(dict(lab.job())))
        command = [str(job) if word == "JOB" else word for word in sys.argv[1:]]
        return subprocess.run(command, env={**os.environ, **lab.env()}).returncode


if __name__ == "__main__":
    sys.exit(main())
