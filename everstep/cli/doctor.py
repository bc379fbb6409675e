"""`everstep doctor`: examine this machine, or all nodes of a future job, and print problems with their remedies."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from everstep.cli.options import command, say
from everstep.cli.tables import print_json
from everstep.client.calls import Coordinator
from everstep.doctor.facts import gather
from everstep.doctor.finding import ERROR, OK, WARNING, Finding, error, has_error
from everstep.doctor.gpus import judge_gpu_links
from everstep.doctor.here import judge_here
from everstep.doctor.nodes import judge_node
from everstep.jobs.check import Probed, probe_nodes
from everstep.jobs.meeting import coordinator_of, create_job, job_id, policy_of
from everstep.jobs.node_spec import node_spec
from everstep.jobs.options import DoctorOptions
from everstep.jobs.tokens import find_token
from everstep.launcher.machine import count_gpus

Findings = Mapping[str, Sequence[Finding]]  # by node

_STYLES = {OK: "green", WARNING: "yellow", ERROR: "bold red"}


@command(DoctorOptions)
def doctor(options: DoctorOptions) -> int:
    """Check whether this machine is ready to train. With --nnodes, run it on every node to check all nodes and the
    network between them."""
    if options.nodes.max == 1 and count_gpus() < 2:
        found = {socket.gethostname(): [*_look_here(options), *judge_gpu_links(0, [], num_gpus=count_gpus())]}
        _print(found, options)
        return int(has_error(found[socket.gethostname()]))
    probed = _probe(options)
    if probed.verdict.exit_code > 128:
        return probed.verdict.exit_code
    if not probed.reports:
        here = [*_look_here(options), _failed(probed)]
        _print({socket.gethostname(): here}, options)
        return 1
    titles = {each.rank: f"node {each.rank}: {each.node} ({each.address})" for each in probed.reports}
    found = {titles[each.rank]: judge_node(each.rank, probed.reports) for each in probed.reports}
    shown = found if probed.rank == 0 else {titles[probed.rank]: found[titles[probed.rank]]}
    _print(shown, options)
    if probed.rank > 0:
        say(f"the other nodes are shown on {titles[0]}")
    return int(any(has_error(findings) for findings in found.values()))


def _look_here(options: DoctorOptions) -> list[Finding]:
    endpoint, url, num_nodes = options.rendezvous.endpoint, options.coordinator, options.nodes.max
    if url is None:
        return judge_here(gather(options.log_dir, endpoint=endpoint), num_nodes=num_nodes)
    with closing(Coordinator(url, find_token(options.token_file), options.job or "doctor")) as coordinator:
        return judge_here(gather(options.log_dir, endpoint=endpoint, coordinator=coordinator), num_nodes=num_nodes)


def _probe(options: DoctorOptions) -> Probed:
    job, policy = f"{job_id(options)}-doctor", policy_of(options, num_workers=1)
    with tempfile.TemporaryDirectory(prefix="everstep-") as folder:
        directory = Path(folder)
        with coordinator_of(options, job, directory, policy.join_s, say) as (url, token):
            create_job(url, token, job, name="doctor", policy=policy)
            node = node_spec(options, url=url, token=token, job=job, command=(), num_workers=1, directory=directory)
            return probe_nodes(replace(node, heartbeat_s=policy.heartbeat_s), say, log_dir=options.log_dir)


def _failed(probed: Probed) -> Finding:
    what = probed.own_failure or probed.verdict.reason
    return error("nodes", what, "see the report of the named node for details")


def _print(found: Findings, options: DoctorOptions) -> None:
    if options.json:
        print_json({"nodes": {name: [asdict(each) for each in findings] for name, findings in found.items()}})
        return
    console = Console()
    for title, findings in found.items():
        console.print(_render(title, findings))


def _render(title: str, findings: Sequence[Finding]) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0), show_header=False)
    for style in ("bold", None, None):
        table.add_column(style=style, vertical="top")
    for finding in findings:
        text = Text(finding.text)
        if finding.hint:
            text.append(f"\n→ {finding.hint}", style="dim")
        table.add_row(finding.check, Text(finding.level, style=_STYLES[finding.level]), text)
    return table


COMMANDS = {"doctor": doctor}
