"""A job as batch scripts for Slurm. Pure.

`single`: one job for all nodes; its first node is the coordinator's too, and all of it is requeued together.
`array`: each node is a job of its own, and so is the coordinator: nodes come, go and are preempted one by one, and
a node that held the coordinator would take it along."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from math import ceil

from everstep import env
from everstep.job_file.platform_options import Slurm
from everstep.job_file.schema import Job, NodeResources, Resources
from everstep.platforms.base import Ticket
from everstep.platforms.batch_script import ENDING, WAITING
from everstep.platforms.cluster_folder import JOB_LOG, order_for_queue

JOB, COORDINATOR, NODES = "job.sh", "coordinator.sh", "nodes.sh"
_COORDINATOR_BYTES = 1 << 30
_MIB = 1 << 20
# The only variables that a job gets from the submitting shell, so that any shell submits the same job. More: `env`,
# `setup`.
_EXPORTED = "HOME,LANG,LOGNAME,PATH,PYTHONPATH,SHELL,USER"

# One element of an array has the number of the whole array.
_THIS = "this=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID} this=${this:-$SLURM_JOB_ID}"

# Time limits count, preemptions do not. Without a grace period of the site, Slurm itself requeues what it preempts.
_COMING_BACK = """
look() { for _ in 1 2 3 4 5; do squeue -h -j "$this" -o "$1" && return; sleep 5 & wait $!; done; }
ends_at=$(look %e)
ends_at=$(date -d "${ends_at:-unknown}" +%s 2> /dev/null || echo 9999999999)
come_back() {
  [ ! -e "$folder/canceled" ] && [ "$(look %T)" = RUNNING ] || exit 1
  if [ $(($(date +%s) + @LEAD@)) -ge "$ends_at" ]; then
    count=$(($(cat "$folder/$name.requeues" 2> /dev/null || echo 0) + 1))
    [ "$count" -le @MOST@ ] || fail "its time was up $count times; it is requeued @MOST@ times at most (time_requeues)"
    echo "$count" > "$folder/$name.requeues"
  fi
  say "back to the queue"
  scontrol requeue "$this" || fail "it could not be requeued"
  sleep 600 & wait $!
}
"""
_NOT_COMING_BACK = """
come_back() { [ -e "$folder/canceled" ] || fail "its nodes were asked to go (@WHY@)"; exit 1; }
"""

_LEAVING = """
left=""
leave() {
  [ -z "$left" ] || return 0
  left=$1
  say "$1: the nodes leave in good order"
  scancel --signal=URG "$this"  # to all processes of all nodes; the agents heed it
}
trap 'leave "signal @SIGNAL@"' @SIGNAL@
trap 'leave "signal TERM"' TERM
"""

_COORDINATE = """
# The address by which Slurm itself reaches this node; salloc's shell is on none: then the one that reaches the first.
node=${SLURMD_NODENAME:-$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)}
address=$(scontrol show node "$node" | sed -n 's/.*NodeAddr=\\([^ ]*\\).*/\\1/p')
"$python" -u -m everstep coordinate --folder "$folder" --host "${address:-$(hostname)}" --fleet requeued &
coordinator=$!
"""

_SINGLE = """
rm -f "$folder/coordinator.url"  # that of an earlier run
@COORDINATE@
# A lost node or a failed agent ends no other.
srun --ntasks-per-node=1@CPUS@ --no-kill --kill-on-bad-exit=0 --wait=0 --export=ALL --input=none \\
  --open-mode=append --output="$folder_pattern/node-%t.log" bash -c '
  exec "$1" -u -m everstep node --coordinator "$2/coordinator.url" --name "node-$SLURM_PROCID" \\
    --node-rank "$SLURM_PROCID" --log-dir "$2/nodes/node-$SLURM_PROCID"' everstep "$python" "$folder" &
nodes=$!
@ENDING@
[ -n "$left" ] || [ "$code" = 143 ] || fail "all nodes ended before the job did, with exit code $code"
come_back
"""

_NODE = """
fail() { say "$1"; exit 1; }  # of this node alone
name=node-$SLURM_ARRAY_TASK_ID
! is_over && [ ! -e "$folder/leave/$name" ] || exit 0  # no longer needed when its turn came
rank=()
[ "$SLURM_ARRAY_TASK_ID" -ge @MIN@ ] || rank=(--node-rank "$SLURM_ARRAY_TASK_ID")
while :; do
  url=$(cat "$folder/coordinator.url" 2> /dev/null)
  srun --ntasks=1@CPUS@ --kill-on-bad-exit=0 --export=ALL --input=none \\
    "$python" -u -m everstep node --coordinator "$folder/coordinator.url" --name "$name" "${rank[@]}" \\
    --log-dir "$folder/nodes/$name" &
  nodes=$!
  exit_code "$nodes"; code=$?
  [ "$code" != 0 ] && [ ! -e "$folder/leave/$name" ] || exit 0
  ! is_over || exit "$code"
  [ -z "$left" ] && [ "$code" != 143 ] || come_back
  # After losing the coordinator, look for it where it is now.
  [ "$url" != "$(cat "$folder/coordinator.url" 2> /dev/null)" ] || exit "$code"
done
"""

_ALONE = """
left=""
trap 'left=1; kill -KILL "$coordinator"' @SIGNAL@ TERM  # all it knows is in its store; nodes wait for the next one
end_nodes() { scancel --user="$(id -un)" --name="$job" "$@"; }
@COORDINATE@
num_misses=0
while kill -0 "$coordinator" 2> /dev/null; do
  sleep 15 & pause=$!
  while kill -0 "$pause" 2> /dev/null && kill -0 "$coordinator" 2> /dev/null; do sleep 0.5 & wait $!; done
  nodes=$(squeue -h --user="$(id -un)" --name="$job" -o %i) || continue
  [ -z "$nodes" ] && num_misses=$((num_misses + 1)) || num_misses=0
  [ "$num_misses" -lt 2 ] || { kill -KILL "$coordinator"; is_over || fail "no node of it is left in the queue"; }
done
exit_code "$coordinator"; code=$?
if is_over; then end_nodes --state=PENDING; exit "$code"; fi
[ -n "$left" ] || { end_nodes; fail "the coordinator ended with exit code $code"; }
come_back
"""

_POOL_NODE = """
ends_at=$(squeue -h -j "$SLURM_JOB_ID" -o %e)
ends_at=$(date -d "${ends_at:-unknown}" +%s 2> /dev/null)
until=()
[ -z "$ends_at" ] || until=(--until $((ends_at - @GRACE@)))  # also if the time limit is the partition's
@SETUP@
exec @WORDS@ "${until[@]}"
"""


def single_script(job: Job, ticket: Ticket, options: Slurm) -> str:
    nodes = str(job.nodes.min) if job.nodes.min == job.nodes.max else f"{job.nodes.min}-{job.nodes.max}"
    # No number of tasks: with one, Slurm gives a range of nodes its least.
    lines = [f"--job-name={ticket.id}", f"--nodes={nodes}", "--no-kill"]
    lines += [*_resources(job.resources, options), *_gpus(job.resources)]
    return _script(job, ticket, options, lines, JOB_LOG, _LEAVING + _SINGLE.replace("@ENDING@\n", ENDING), name="job")


def node_script(job: Job, ticket: Ticket, options: Slurm) -> str:
    """Of each node in an array; `sbatch --array` says of how many."""
    lines = [f"--job-name={ticket.id}", "--nodes=1", "--ntasks=1", *_resources(job.resources, options)]
    return _script(job, ticket, options, [*lines, *_gpus(job.resources)], "node-%a.log", _LEAVING + _NODE)


def coordinator_script(job: Job, ticket: Ticket, options: Slurm) -> str:
    partition = options.coordinator_partition or options.partition
    asked = job.coordinator.resources
    resources = asked.model_copy(update={"cpu": asked.cpu or 1, "memory": asked.memory or _COORDINATOR_BYTES})
    lines = [f"--job-name={coordinator_name(ticket.id)}", "--nodes=1", "--ntasks=1", *_resources(resources, options)]
    its = options.model_copy(update={"partition": partition, "constraint": "", "raw": ()})
    return _script(job, ticket, its, lines, JOB_LOG, _ALONE, name="coordinator")


def pool_node_script(job: Job, ticket: Ticket, words: Sequence[str]) -> str:
    """One node of a pool. The agent leaves by itself before the end, and what preempts it need not requeue it: the
    pool's coordinator makes another one."""
    options = (job.platform.slurm or Slurm()).model_copy(update={"requeue": False})
    lines = [f"--job-name={ticket.id}", "--nodes=1", "--ntasks=1", *_resources(job.resources, options)]
    common = [line for line in _common(job, ticket, options, "node.log") if not line.startswith("--signal=")]
    directives = [f"#SBATCH {line}" for line in [*lines, *_gpus(job.resources), *common]]
    exported = [f"export {name}={shlex.quote(value)}" for name, value in job.env.items()]
    program = (
        _POOL_NODE.strip()
        .replace("@GRACE@", str(ceil(job.checkpoint.grace)))
        .replace("@SETUP@\n", "".join(f"{line}\n" for line in job.setup))
        .replace("@WORDS@", shlex.join(words))
    )
    return "\n".join(["#!/bin/bash", *directives, "umask 077", *exported, program]) + "\n"


def coordinator_name(job_id: str) -> str:
    return f"{job_id}-coordinator"


def _script(
    job: Job, ticket: Ticket, options: Slurm, lines: Sequence[str], log: str, body: str, *, name: str = ""
) -> str:
    is_inside = options.mode == "allocation"
    comes_back = options.requeue and not is_inside
    why = "inside an allocation" if is_inside else "requeue: false"
    lead_s = ceil(options.signal_lead) + 120  # the signal may come a minute early
    program = "\n".join([_THIS, WAITING, (_COMING_BACK if comes_back else _NOT_COMING_BACK).strip(), body.strip()])
    for mark, value in {
        "@COORDINATE@": _COORDINATE.strip(),
        "@CPUS@": _cpus_per_task(job.resources),
        "@SIGNAL@": options.signal.removeprefix("SIG"),
        "@LEAD@": str(lead_s),
        "@MOST@": str(options.time_requeues),
        "@MIN@": str(job.nodes.min),
        "@WHY@": why,
    }.items():
        program = program.replace(mark, value)
    directives = [f"#SBATCH {line}" for line in [*lines, *_common(job, ticket, options, log)]]
    return "\n".join(["#!/bin/bash", *directives, "umask 077", *_facts(job, ticket, name), program]) + "\n"


def _facts(job: Job, ticket: Ticket, name: str) -> list[str]:
    folder = str(ticket.folder)
    facts = {"job": ticket.id, "folder": folder, "folder_pattern": _pattern(folder), "python": sys.executable}
    named = [f"{key}={shlex.quote(value)}" for key, value in facts.items()] + ([f"name={name}"] if name else [])
    exported = {env.ORDER: order_for_queue(job, ticket).to_json(), env.TOKEN_FILE: f"{folder}/token"}
    if job.secrets:
        exported[env.SECRETS_FILE] = f"{folder}/secrets.json"
    return named + [f"export {key}={shlex.quote(value)}" for key, value in exported.items()]


def _common(job: Job, ticket: Ticket, options: Slurm, log: str) -> list[str]:
    signal = options.signal.removeprefix("SIG")
    given = {
        "partition": options.partition,
        "account": options.account,
        "qos": options.qos,
        "constraint": options.constraint,
        "reservation": options.reservation,
        "time": "" if job.time_limit is None else str(max(1, ceil(job.time_limit / 60))),
    }
    return [
        *(f"--{name}={_quoted(value)}" for name, value in given.items() if value),
        f"--signal=B:{signal}@{ceil(options.signal_lead)}",
        "--requeue" if options.requeue else "--no-requeue",
        "--open-mode=append",
        f"--export={_EXPORTED}",
        f"--output={_quoted(f'{_pattern(str(ticket.folder))}/{log}')}",
        *(line.removeprefix("#SBATCH").strip() for line in options.raw),
    ]


def _resources(resources: NodeResources, options: Slurm) -> list[str]:
    lines = [] if resources.cpu is None else [f"--cpus-per-task={ceil(resources.cpu)}"]
    if resources.memory is not None and options.memory:
        lines.append(f"--mem={ceil(resources.memory / _MIB)}M")
    return lines


def _gpus(resources: Resources) -> list[str]:
    kind = f"{resources.gpu_type}:" if resources.gpu_type else ""
    return [f"--gpus-per-node={_quoted(f'{kind}{resources.gpu}')}"] if resources.gpu else []


def _cpus_per_task(resources: NodeResources) -> str:
    """Again for srun: since 22.05 it does not take sbatch's."""
    return "" if resources.cpu is None else f" --cpus-per-task={ceil(resources.cpu)}"


def _quoted(value: str) -> str:
    """As sbatch reads its directives."""
    plain = all(letter.isalnum() or letter in "/._-+:,@%&|*[]=" for letter in value)
    return value if plain else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _pattern(path: str) -> str:
    """Slurm puts numbers in for %x in names of files."""
    return path.replace("%", "%%")
