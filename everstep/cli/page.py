"""`everstep page`: an address that opens the page of a job, from its coordinator or from the record it has left."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from everstep import env
from everstep.cli.options import command, say
from everstep.client.calls import Coordinator
from everstep.coordinator.edge.record_server import serve_record
from everstep.coordinator.finished_record import open_record
from everstep.errors import UsageError
from everstep.jobs import submitted
from everstep.jobs.find_record import find_record, is_record
from everstep.jobs.job_folder import answers, coordinator_of_folder
from everstep.jobs.meeting import address_of_page
from everstep.jobs.options import CoordinatorOptions
from everstep.jobs.tokens import find_token
from everstep.launcher import run_record
from everstep.page.address import EXPERIMENTS, show_page
from everstep.pool.local_service import connect_local
from everstep.settings import setting
from everstep.wire.tokens import READ_ONLY, USER, only_for


@dataclass(frozen=True, kw_only=True)
class PageOptions(CoordinatorOptions):
    id: str | None = setting(
        None, "A run, a submitted job, or the folder of a record", is_argument=True, metavar="[JOB | FOLDER]"
    )
    port: int = setting(
        0, "Port to listen on, for a job that is over; 0: any free one", metavar="PORT", least=0, most=65535
    )
    no_browser: bool = setting(False, "Only print the address")
    may_change: bool = setting(
        False, "Allow the page to change things: pause, fork or kill experiments, set priorities, register models"
    )
    log_dir: Path = setting(Path("runs"), "Folder with the logs of runs", metavar="DIR", variables=("PET_LOG_DIR",))


@command(PageOptions)
def page(options: PageOptions) -> None:
    """Open the page of a job in a browser: print an address that works once and, on a desktop, open it.

    While a job runs, its coordinator serves the page. Once the job is over, this command serves its record, only to
    this machine, until you press Ctrl-C. With --coordinator and no job, the page lists all jobs and experiments of that
    coordinator; without either, the experiments of this machine, until you press Ctrl-C."""
    with _coordinator_of(options) as (coordinator, must_stay):
        if coordinator is not None and answers(coordinator):
            view = EXPERIMENTS if options.id is None and options.coordinator is None else ""
            _show(address_of_page(coordinator, _role(options), view), options)
            if must_stay:
                say("keep this command running while you use the page; press Ctrl-C to stop")
                with suppress(KeyboardInterrupt):
                    threading.Event().wait()
            return
        if options.coordinator is not None and coordinator is not None:
            coordinator.check()  # says what is wrong
            raise UsageError(f"{coordinator.url} has no job {options.id}", code="page-job-unknown")
    assert options.id is not None
    with open_record(find_record(options.id, log_dir=options.log_dir)) as record:
        record.roster()  # says what is wrong with it, before a page is shown
        unended = record.lacks_end()
        say(f"showing the record of job {record.job}{f', {unended}' if unended else ''}; press Ctrl-C to stop")
        with suppress(KeyboardInterrupt):  # the way to end it
            serve_record(record, options.port, lambda address: _show(address, options))


def _role(options: PageOptions) -> str:
    """Of the session."""
    return USER if options.may_change else READ_ONLY


def _show(address: str, options: PageOptions) -> None:
    show_page(say, address, is_opened=not options.no_browser)


@contextmanager
def _coordinator_of(options: PageOptions) -> Iterator[tuple[Coordinator | None, bool]]:
    """None: the job is over. And whether its address works only as long as this is open."""
    if options.id is None and options.coordinator is None:
        url, token_file = connect_local(say)  # the service stays while this command runs
        with closing(Coordinator(url, only_for(env.read_token(token_file), _role(options)), "")) as coordinator:
            yield coordinator, True
        return
    if options.coordinator is not None:
        token = only_for(find_token(options.token_file), _role(options))
        with closing(Coordinator(options.coordinator, token, options.id or "")) as coordinator:
            yield coordinator, False
        return
    folder = Path(options.id or "")
    if not is_record(folder) and (run := next(run_record.newest_first(options.log_dir, options.id or ""), None)):
        folder = run[0]
    if is_record(folder) or run_record.read(folder) is not None:
        with coordinator_of_folder(folder, options.token_file) as coordinator:
            yield coordinator, False
    else:
        with submitted.coordinator_of(submitted.find(options.id or "")) as found:
            yield found, True


COMMANDS = {"page": page}
