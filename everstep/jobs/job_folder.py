"""The folder of a run or a submitted job: find its coordinator, which knows more than the files while the job runs.

A folder without the token is a copy. A folder with record.json belongs to a job that is over. A run at a standing
coordinator has left nothing here: that coordinator is asked also when the run is over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from everstep.client.calls import Coordinator
from everstep.errors import Refused, TemporaryError
from everstep.jobs.tokens import find_token
from everstep.launcher import run_record
from everstep.launcher.local_coordinator import CoordinatorFiles
from everstep.launcher.run_record import RunRecord
from everstep.record.about import ABOUT


@contextmanager
def coordinator_of_folder(folder: Path, token_file: Path | None = None) -> Iterator[Coordinator | None]:
    """The one that may still work there. None: the job is over, or this is a copy."""
    files = CoordinatorFiles(directory=folder)
    run = run_record.read(folder)
    token_file = token_file or (Path(run.token_file) if run is not None and run.token_file else files.token)
    found = _address(folder, files, run) if token_file.exists() else None
    if found is None:
        yield None
        return
    url, job = found
    with Coordinator(url, find_token(token_file), job) as coordinator:
        yield coordinator


def is_folder_over(folder: Path, token_file: Path | None = None) -> bool:
    """Otherwise its coordinator may come back: it restarts."""
    if (run := run_record.read(folder)) is not None:
        return run.shown_state != run_record.RUNNING
    files = CoordinatorFiles(directory=folder)
    return not (token_file or files.token).exists() or (folder / ABOUT).exists()


def answers(coordinator: Coordinator) -> bool:
    """Whether the coordinator responds and knows the job, if one is given. Another one may have its port by now."""
    try:
        if coordinator.job:
            coordinator.view(is_brief=True)
        else:
            coordinator.check()
        return True
    except (TemporaryError, Refused, OSError):
        return False


def _address(folder: Path, files: CoordinatorFiles, run: RunRecord | None) -> tuple[str, str] | None:
    """The coordinator's URL, and the job."""
    if run is not None:
        is_left = files.store.exists() and run.state in (run_record.FINISHED, run_record.FAILED)
        return None if is_left or not run.url else (run.url, run.job)
    if (folder / ABOUT).exists() or not files.ready.exists() or not files.store.exists():
        return None
    from everstep.coordinator.finished_record import open_record  # late: a database takes long to import

    with open_record(folder) as record:
        return files.ready.read_text().strip(), record.job
