"""A job as scripts for PBS (OpenPBS, PBS Pro): one job for all nodes. Pure.

`job.sh` is submitted, and runs on the first node; it starts `node.sh` on each. What pbsdsh and ssh start has a bare
environment, so a node's script contains all that it needs."""

from __future__ import annotations

import shlex
import sys
from math import ceil

from everstep import env
from everstep.job_file.platform_options import Pbs
from everstep.job_file.schema import Job
from everstep.platforms.base import Ticket
from everstep.platforms.batch_script import ENDING, WAITING
from everstep.platforms.cluster_folder import JOB_LOG, order_for_queue

JOB, NODE = "job.sh", "node.sh"
_NAME_LENGTH = 15  # older versions take no longer names
_MIB = 1 << 20

_NODE = """
# The login profile: `module` is a function of it.
[ ! -r /etc/profile ] || . /etc/profile
deadline=$1 number=${2:-${PBS_NODENUM:-0}}
name=node-$number
exec >> "$folder/$name.log" 2>&1
[ -z "$deadline" ] || export EVERSTEP_DEADLINE=$deadline
exec "$python" -u -m everstep node --coordinator "$folder/coordinator.url" --name "$name" --node-rank "$number" \\
  --log-dir "$folder/nodes/$name"
"""

_LAUNCH = {
    "pbsdsh": """pbsdsh -- bash "$folder/node.sh" "$deadline" &
nodes=$!""",
    "ssh": """start() {
  local number=0
  while read -r host; do
    ssh -n -o BatchMode=yes "$host" bash "$quoted/node.sh" "'$deadline'" "$number" &
    number=$((number + 1))
  done < <(awk '!seen[$0]++' "$PBS_NODEFILE")
  wait
}
quoted=$(printf %q "$folder")
start &
nodes=$!""",
}

_JOB = """
exec >> "$folder/@LOG@" 2>&1
deadline=@DEADLINE@
left=""
trap 'left=1' TERM
rm -f "$folder/coordinator.url"  # that of an earlier run
"$python" -u -m everstep coordinate --folder "$folder" --host "$(hostname)" --fleet requeued &
coordinator=$!
@LAUNCH@
@ENDING@
[ -z "$left" ] && [ ! -e "$folder/canceled" ] || exit 143  # deleted, or preempted: then PBS starts it again
[ -z "$deadline" ] || [ "$(date +%s)" -lt $((deadline - @GRACE@)) ] ||
  fail "its walltime was up; submit it again to continue from its checkpoint"
fail "all nodes ended before the job did, with exit code $code"
"""


def job_script(job: Job, ticket: Ticket, options: Pbs) -> str:
    limit = "" if job.time_limit is None else f"$(($(date +%s) + {ceil(job.time_limit)}))"
    body = _JOB.strip().replace("@ENDING@\n", ENDING)
    for mark, value in {
        "@LOG@": JOB_LOG,
        "@DEADLINE@": limit,
        "@LAUNCH@": _LAUNCH[options.launcher],
        "@GRACE@": str(ceil(job.checkpoint.grace) + 5),
    }.items():
        body = body.replace(mark, value)
    directives = [f"#PBS {line}" for line in _directives(job, options)]
    return "\n".join(["#!/bin/bash", *directives, *_facts(job, ticket), WAITING, body]) + "\n"


def node_script(job: Job, ticket: Ticket) -> str:
    return "\n".join(["#!/bin/bash", *_facts(job, ticket), _NODE.strip()]) + "\n"


def _facts(job: Job, ticket: Ticket) -> list[str]:
    folder = str(ticket.folder)
    exported = {env.ORDER: order_for_queue(job, ticket).to_json(), env.TOKEN_FILE: f"{folder}/token"}
    if job.secrets:
        exported[env.SECRETS_FILE] = f"{folder}/secrets.json"
    facts = {"folder": folder, "python": sys.executable}
    return [
        "umask 077",
        *(f"{name}={shlex.quote(value)}" for name, value in facts.items()),
        *(f"export {name}={shlex.quote(value)}" for name, value in exported.items()),
    ]


def _directives(job: Job, options: Pbs) -> list[str]:
    """Never -V or -v: all users can read a job's variables (qstat -f)."""
    given = {"-q": options.queue, "-P": options.project}
    return [
        f"-N {job.slug[:_NAME_LENGTH].rstrip('-')}",
        *(f"{name} {value}" for name, value in given.items() if value),
        f"-l select={_select(job, options)}",
        *([f"-l place={options.place}"] if options.place else []),
        *([f"-l walltime={_clock(job.time_limit)}"] if job.time_limit is not None else []),
        "-j oe",
        "-o /dev/null",  # the script writes its own log: PBS would bring the output only when all is over
        "-r y",
        *(line.removeprefix("#PBS").strip() for line in options.raw),
    ]


def _select(job: Job, options: Pbs) -> str:
    """One chunk is one node, with one line in the node file."""
    resources = job.resources
    model = options.gpu_model or resources.gpu_type
    parts = [
        str(job.nodes.max),
        f"ncpus={ceil(resources.cpu or 1)}",
        *([f"mem={ceil(resources.memory / _MIB)}mb"] if resources.memory is not None else []),
        *([f"ngpus={resources.gpu}"] if resources.gpu else []),
        *([f"gpu_model={model}"] if model else []),
        *([options.select] if options.select else []),
        "mpiprocs=1",
    ]
    return ":".join(parts)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(ceil(seconds), 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest:02}"
