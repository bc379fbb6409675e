"""The job that this node takes part in, by the options of `run` and `doctor`: its id, its policy, its coordinator."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from everstep import env
from everstep.client.calls import Coordinator
from everstep.errors import UsageError
from everstep.jobs.find_coordinator import find_coordinator
from everstep.jobs.options import MultiNodeOptions
from everstep.jobs.tokens import token_path, write_token
from everstep.launcher.endpoint import as_job_id, host_or_join
from everstep.launcher.local_coordinator import CoordinatorFiles, LocalCoordinator, Start, earlier_port
from everstep.page.address import page_address
from everstep.process import Child
from everstep.wire import JobSpec, PageCodeRequest, Policy, fitting_config, policy_problems, valid_texts
from everstep.wire.tokens import READ_ONLY


def create_job(
    url: str, token: Path, job: str, *, name: str, policy: Policy, config: Mapping[str, Any] | None = None
) -> None:
    """Create it, or find it as it is, unless it is over."""
    with closing(Coordinator(url, env.read_token(token), job)) as coordinator:
        view = coordinator.create_job(
            JobSpec(name=valid_texts(name), policy=policy, config=fitting_config(config or {}))
        )
    if view.is_finished or view.is_stopped:
        raise UsageError(
            f"job {job} is over: {view.reason}", hint="give another --job or --rdzv-id", code="job-has-ended"
        )


def address_of_page(coordinator: Coordinator, role: str = READ_ONLY, view: str = "") -> str:
    """Opens the page once: of the job, or this view. `role`: what the session may do."""
    code = coordinator.page_code(PageCodeRequest(role=role)).code
    return page_address(coordinator.url, code, coordinator.job, view)


def job_id(options: MultiNodeOptions) -> str:
    """A new one for this node alone; for several nodes, the same on all of them."""
    rendezvous, num_nodes = options.rendezvous, options.nodes.max
    if options.job is not None:
        return options.job
    if num_nodes == 1:
        return new_job_id(rendezvous.rdzv_id)
    if rendezvous.endpoint is None and options.coordinator is None:
        hint = "give all of them the same --rdzv-endpoint HOST:PORT, or --coordinator URL and --job ID"
        raise UsageError(
            f"--nnodes allows {num_nodes} nodes, but they have no address to meet at",
            hint=hint,
            code="meeting-place-missing",
        )
    if rendezvous.rdzv_id is None and rendezvous.endpoint is None:
        message = "several nodes at one coordinator need a name for their job"
        raise UsageError(message, hint="--job ID or --rdzv-id ID", code="job-name-missing")
    return as_job_id(rendezvous.rdzv_id or f"job-{rendezvous.endpoint}")


def new_job_id(name: str | None = None) -> str:
    """A new one each time, with torchrun's `--rdzv-id` in it if there is one: people use the same one repeatedly."""
    stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    return f"{as_job_id(name)}-{stamp}" if name else stamp


def job_folder(options: MultiNodeOptions, job: str) -> str:
    """The name of the folder for this node's files. A named job can be continued; others get a new folder each time."""
    is_named = options.job is not None or options.nodes.max == 1
    return job if is_named else new_job_id(job)


def is_host(options: MultiNodeOptions) -> bool:
    """Whether the nodes' endpoint is on this node."""
    endpoint, is_asked = options.rendezvous.endpoint, options.rendezvous.is_host
    if endpoint is None or options.nodes.max == 1 or options.coordinator is not None:
        return False
    return endpoint.may_host(is_asked)


def policy_of(options: MultiNodeOptions, num_workers: int, given: Mapping[str, float | int] | None = None) -> Policy:
    """The defaults, what follows from the number of nodes, --rdzv-conf, and the settings given, in this order."""
    nodes, rendezvous = options.nodes, options.rendezvous
    from_conf = {"join_s": rendezvous.join_s, "last_call_s": rendezvous.last_call_s}
    settings = {
        "start_nodes": nodes.min,
        "min_nodes": nodes.min,
        "max_nodes": nodes.max if nodes.is_limit else None,
        "start_workers": nodes.min * num_workers,
        **({} if nodes.is_limit else {"last_call_s": 0.0}),  # no other node is expected
        **{name: value for name, value in from_conf.items() if value is not None},
        **(given or {}),
    }
    policy = Policy(**settings)  # type: ignore[arg-type]
    for problem in policy_problems(policy):
        options_named = re.sub(r"[a-z]+(_[a-z]+)+", lambda name: f"--{name[0].replace('_', '-')}", problem)
        raise UsageError(options_named, hint="see docs/configuration.md, the policy of a job", code="policy-invalid")
    return policy


@contextmanager
def coordinator_of(
    options: MultiNodeOptions,
    job: str,
    directory: Path,
    patience_s: float,
    say: Callable[[str], None],
    start: Start = Child.start,
) -> Iterator[tuple[str, Path]]:
    """The URL and token file of the given coordinator, of the one at the endpoint, or of a new one."""
    endpoint = options.rendezvous.endpoint
    if options.coordinator is not None:
        yield options.coordinator, token_path(options.token_file, directory)
    elif options.nodes.max == 1 or endpoint is None:
        files = CoordinatorFiles(directory=directory)
        with LocalCoordinator(files, say=say, port=earlier_port(files), start=start) as local:
            yield local.url, files.token
    elif is_host(options):
        with host_or_join(endpoint, job, directory, options.token_file, patience_s, say) as (url, token):
            yield url, token
    else:
        found = find_coordinator(job, endpoint=endpoint, token_file=options.token_file, patience_s=patience_s, say=say)
        yield found.url, write_token(directory / "token", found.token)
