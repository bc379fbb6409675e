"""A job's process is known again, and not taken for gone where it cannot be seen."""

from __future__ import annotations

import subprocess
from pathlib import Path

from everstep.platforms import background_process
from everstep.platforms.base import JobRecord
from everstep.platforms.batch_queue import status_inside
from everstep.platforms.cluster_folder import ClusterFolder
from everstep.platforms.local import LocalPlatform
from everstep.storage import private_file
from lab.refused import refused


def record_of(folder: Path, natives: dict[str, object]) -> JobRecord:
    private_file.write_json(folder / "status.json", {"state": "running", "reason": "the coordinator is started"})
    return JobRecord(id="j", name="j", platform="local", created_at=0.0, folder=str(folder), job={}, natives=natives)


def test_a_process_is_ended_once_and_is_gone(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "100"]) as process:
        natives = background_process.describe(process.pid, 1.0)
        assert background_process.is_alive(natives)
        background_process.end(natives, print)
        background_process.end(natives, print)
        assert not background_process.is_alive(natives)
    assert LocalPlatform().status(record_of(tmp_path, natives)).state == "failed"


def test_a_job_of_another_machine_is_not_said_to_have_failed(tmp_path: Path) -> None:
    natives = {**background_process.describe(1, 1.0), "host": "elsewhere"}
    record = record_of(tmp_path, natives)
    for status in (LocalPlatform().status(record), status_inside(record, ClusterFolder(tmp_path))):
        assert (status.state, status.is_over) == ("unknown", False)
        assert "it runs on elsewhere" in status.reason
    with refused("job-on-another-host"):
        LocalPlatform().cancel(record, print)
