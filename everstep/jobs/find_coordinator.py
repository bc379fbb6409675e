"""Find a job's coordinator, with patience: nodes may start before it has a name, an address, or the job.

By its URL, by a file that will hold its URL, by a folder that all nodes reach, or at an address (MASTER_ADDR,
--rdzv-endpoint) with the token in the user's home."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from everstep import env
from everstep.errors import UNKNOWN, CoordinatorUnreachable, Refused, UsageError
from everstep.jobs.tokens import find_token
from everstep.launcher import meeting_folder
from everstep.launcher.endpoint import Endpoint, join
from everstep.waiting import wait_until

Say = Callable[[str], None]

_LONGEST_PAUSE_S = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundCoordinator:
    url: str
    job: str
    token: str = field(repr=False)
    is_over: bool = False  # the job ended before we came


def find_coordinator(
    job: str,
    *,
    url: str | None = None,
    folder: str = "",
    endpoint: Endpoint | None = None,
    is_job_known: bool = True,
    token_file: Path | None = None,
    patience_s: float,
    say: Say,
) -> FoundCoordinator:
    """Wait until it answers. `url`: also the path of a file. `is_job_known`: False if the folder names the job."""
    if url is not None:
        return _at_url(url, job, token_file, patience_s, say)
    if folder:
        met = meeting_folder.wait_for(folder, patience_s, say, job=job if is_job_known else None)
        return FoundCoordinator(url=met.url, job=met.job, token=met.token, is_over=met.is_over)
    if endpoint is not None:
        token = join(endpoint, job, token_file, patience_s, say)
        return FoundCoordinator(url=endpoint.url, job=job, token=token)
    raise UsageError(
        "where is the coordinator?",
        hint=f"give --coordinator URL or {env.COORDINATOR}; or OCI__WORK_DIR, a folder that all nodes reach; "
        f"or MASTER_ADDR, and {env.TOKEN} on all nodes",
        code="coordinator-not-named",
    )


def _at_url(given: str, job: str, token_file: Path | None, patience_s: float, say: Say) -> FoundCoordinator:
    problem = ""

    def look() -> FoundCoordinator | None:
        nonlocal problem
        try:
            found = FoundCoordinator(url=_read_url(given), job=job, token=find_token(token_file))
            _ask(found)
            return found
        except (Refused, CoordinatorUnreachable) as error:
            if isinstance(error, Refused) and error.status != UNKNOWN:
                raise
            problem = error.message
            return None

    found = wait_until(
        look, patience_s, lambda: f"the coordinator: {problem}", say=say, longest_pause_s=_LONGEST_PAUSE_S
    )
    if found is None:
        raise CoordinatorUnreachable(
            f"no coordinator within {patience_s:.0f} s: {problem}",
            hint="is the coordinator running, and can this machine reach it?",
            code="coordinator-not-found",
        )
    return found


def _ask(found: FoundCoordinator) -> None:
    """Whether it has the job."""
    from everstep.client.calls import Coordinator  # late: HTTP takes long to import

    with Coordinator(found.url, found.token, found.job) as coordinator:
        coordinator.view(is_brief=True)


def _read_url(given: str) -> str:
    if "://" in given:
        return given
    try:
        return Path(given).read_text().strip()
    except FileNotFoundError:
        raise CoordinatorUnreachable(f"there is no {given} yet", code="coordinator-url-file-missing") from None
