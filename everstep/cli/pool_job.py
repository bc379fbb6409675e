"""`everstep run -f FILE` with a coordinator that has a pool: the job is one trial there, and is followed to its end."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from everstep import env
from everstep.cli.experiment_follow import exit_code
from everstep.cli.experiment_logs import print_log
from everstep.cli.options import is_typed, say
from everstep.cli.submitted import leave
from everstep.errors import UsageError
from everstep.job_file.tree import dump
from everstep.jobs import experiments, new_experiments, pool_job
from everstep.jobs.coordinator_link import CoordinatorLink
from everstep.jobs.options import RunOptions
from everstep.jobs.pool_job import PoolJob
from everstep.jobs.tokens import find_token


def run_in_pool(options: RunOptions, file: Path, text: str | None) -> int | None:
    """Run the job in a pool; return the exit code. None: it runs on its platform, without a pool. `text`: read from
    stdin, instead of the file's."""
    named = options.coordinator or env.value(env.DET_MASTER)
    is_asked = is_typed("coordinator")
    if is_asked and options.platform is not None:
        raise UsageError(
            "--coordinator and --platform together",
            hint="--coordinator sends the job to a pool, --platform to a platform; give one of them",
            code="coordinator-and-platform",
        )
    if named is None or options.platform is not None:
        return None
    job = pool_job.read(file, text, options.changes)
    if job.names_platform and not is_asked:
        say(f"the file names a platform, so the job does not use a pool of {named}; --coordinator {named} does")
        return None
    url = named if "://" in named else f"http://{named}"
    with CoordinatorLink(lambda: (url, find_token(options.token_file)), say=say) as link:
        if not (problem := pool_job.find_pool(link, job.pool)):
            return _run(link, url, job, is_dry=options.dry_run)
    if is_asked or job.job.resources.pool:
        raise UsageError(
            f"{url}: {problem}",
            hint="`everstep pool join` adds a machine; without --coordinator and resources.pool, no pool is used",
            code="pool-without-nodes",
        )
    say(f"{url}: {problem}; the job runs without a pool")
    return None


def _run(link: CoordinatorLink, url: str, job: PoolJob, *, is_dry: bool) -> int:
    prepared = pool_job.prepare(job)
    for note in (*prepared.notes, f"code: {prepared.code.files.summary}"):
        say(note)
    if is_dry:
        click.echo(prepared.spec.written, nl=not prepared.spec.written.endswith("\n"))
        return 0
    number = new_experiments.create(link, prepared).experiment
    click.echo(dump({"experiment": number, "job": f"e{number}-t1", "pool": job.pool, "coordinator": url}), nl=False)
    sys.stdout.flush()
    try:
        if experiments.first_trial(link, number) is not None:
            print_log(link, number, 1)
        view = experiments.wait(link, number)
    except KeyboardInterrupt:
        say(f"experiment {number} continues; `everstep e kill {number}` ends it")
        return leave(130)
    say(f"experiment {number} {view.state}: {view.reason}")
    return leave(exit_code(view))
