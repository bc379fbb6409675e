"""`everstep doctor`: look at this machine, or at all nodes of a job to be, and say what is wrong and what to do."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import typer
from rich.console import Console

from everstep.client.calls import Coordinator
from everstep.doctor.facts import gather
from everstep.doctor.finding import Finding, error, has_error
from everstep.doctor.here import judge_here
from everstep.doctor.nodes import judge_node
from everstep.doctor.table import render, to_json
from everstep.jobs.check import Probed, probe_nodes
from everstep.jobs.node_spec import AgentRequest, find_token
from everstep.jobs.run import RunRequest, coordinator_of, create_job, is_host, job_id, policy_of
from everstep.launcher.torchrun_options import NodesRange, Rendezvous

Findings = Mapping[str, Sequence[Finding]]  # by node


@dataclass(frozen=True, kw_only=True, slots=True)
class DoctorRequest:
    log_dir: Path
    nodes: NodesRange = field(default_factory=NodesRange)
    rendezvous: Rendezvous = field(default_factory=Rendezvous)
    address: str | None = None
    coordinator_url: str | None = None
    token_file: Path | None = None
    job: str | None = None
    is_json: bool = False


def run_doctor(request: DoctorRequest) -> int:
    if request.nodes.max == 1:
        found = {socket.gethostname(): _look_here(request)}
        _print(found, request)
        return int(has_error(found[socket.gethostname()]))
    probed = _probe(request)
    if probed.verdict.exit_code > 128:
        return probed.verdict.exit_code
    if not probed.reports:
        here = [*_look_here(request), _failed(probed)]
        _print({socket.gethostname(): here}, request)
        return 1
    titles = {each.rank: f"node {each.rank}: {each.node} ({each.address})" for each in probed.reports}
    found = {titles[each.rank]: judge_node(each.rank, probed.reports) for each in probed.reports}
    shown = found if probed.rank == 0 else {titles[probed.rank]: found[titles[probed.rank]]}
    _print(shown, request)
    if probed.rank > 0:
        _say(f"the other nodes are shown on {titles[0]}")
    return int(any(has_error(findings) for findings in found.values()))


def _look_here(request: DoctorRequest) -> list[Finding]:
    endpoint, url, has_peers = request.rendezvous.endpoint, request.coordinator_url, request.nodes.max > 1
    if url is None:
        return judge_here(gather(request.log_dir, endpoint=endpoint), has_peers=has_peers)
    with closing(Coordinator(url, find_token(request.token_file), request.job or "doctor")) as coordinator:
        return judge_here(gather(request.log_dir, endpoint=endpoint, coordinator=coordinator), has_peers=has_peers)


def _probe(request: DoctorRequest) -> Probed:
    run = RunRequest(
        command=(),
        name="doctor",
        num_workers=1,
        log_dir=request.log_dir,
        coordinator_url=request.coordinator_url,
        token_file=request.token_file,
        job=request.job,
        nodes=request.nodes,
        rendezvous=request.rendezvous,
    )
    job, policy = f"{job_id(run)}-doctor", policy_of(run)
    with tempfile.TemporaryDirectory(prefix="everstep-") as folder:
        directory = Path(folder)
        with coordinator_of(run, job, directory, is_host(run), policy.join_s, _say) as (url, token):
            create_job(url, token, job, name="doctor", policy=policy)
            agent = AgentRequest(
                command=(),
                coordinator_url=url,
                job=job,
                num_workers=1,
                log_dir=request.log_dir,
                token_file=token,
                node_rank=-1 if request.rendezvous.node_rank is None else request.rendezvous.node_rank,
                address=request.address,
                heartbeat_s=policy.heartbeat_s,
            )
            return probe_nodes(agent, directory, _say, log_dir=request.log_dir)


def _failed(probed: Probed) -> Finding:
    what = probed.own_failure or probed.verdict.reason
    return error("nodes", what, "look at the node that is named: its own report tells more")


def _print(found: Findings, request: DoctorRequest) -> None:
    if request.is_json:
        typer.echo(to_json(found))
        return
    console = Console()
    for title, findings in found.items():
        console.print(render(title, findings))


def _say(line: str) -> None:
    typer.echo(f"everstep: {line}", err=True)
