"""A real Slurm for the session: three nodes and a controller, each a host; this machine is the login node."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.required import missing
from lab.slurm.hosts import Lab

NEEDED = ("slurmctld", "slurmd", "sbatch", "munged", "ip")


@pytest.fixture(scope="session")
def slurm() -> Iterator[Lab]:
    lacking = [name for name in NEEDED if shutil.which(name) is None]
    problem = "needs root" if os.geteuid() != 0 else f"there is no {lacking[0]}" if lacking else ""
    if problem:
        missing("Slurm", problem)
    # Not below pytest's own folder: the hosts' names of sockets and logs are long enough.
    with tempfile.TemporaryDirectory(prefix="everstep-slurm-") as folder:
        lab = Lab(folder=Path(folder), num_hosts=4)
        try:
            lab.up()
            yield lab
        finally:
            lab.down()


@pytest.fixture
def queue(slurm: Lab) -> Iterator[Lab]:
    """All nodes idle, whatever the last test has done to them; nothing in the queue afterwards."""
    slurm.up()
    yield slurm
    subprocess.run(["scancel", "--full", "--user=root"], env=slurm.env(), check=False)
