# --- sbatch --parsable /shared/mnist/runs/mnist-1115-101500-ab12/coordinator.sh
#!/bin/bash
#SBATCH --job-name=mnist-1115-101500-ab12-coordinator
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
#SBATCH --mem=1024M
#SBATCH --partition=cpu
#SBATCH --time=90
#SBATCH --signal=B:USR2@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --export=HOME,LANG,LOGNAME,PATH,PYTHONPATH,SHELL,USER
#SBATCH --output=/shared/mnist/runs/mnist-1115-101500-ab12/job.log
umask 077
job=mnist-1115-101500-ab12
folder=/shared/mnist/runs/mnist-1115-101500-ab12
folder_pattern=/shared/mnist/runs/mnist-1115-101500-ab12
python=/venv/bin/python
name=coordinator
export EVERSTEP_ORDER='{"job":"mnist-1115-101500-ab12","name":"mnist","script":"train.py","args":["two words","it'"'"'s","new\nline","$HOME"],"workers":2,"gpus":2,"min_nodes":2,"max_nodes":4,"policy":{"join_s":2592000.0,"start_nodes":2,"min_nodes":2,"max_nodes":4,"start_workers":4,"max_restarts":3},"experiment":{"name":"mnist","entrypoint":["train.py","two words","it'"'"'s","new\nline","$HOME"],"reproducibility":{"experiment_seed":0},"resources":{"slots_per_trial":8},"max_restarts":3},"env":{"GREETING":"good\nday"},"code":"c0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0de","code_from":"/shared/mnist/runs/mnist-1115-101500-ab12","workdir":"/shared/mnist","secrets":["TOKEN"]}'
export EVERSTEP_TOKEN_FILE=/shared/mnist/runs/mnist-1115-101500-ab12/token
export EVERSTEP_SECRETS_FILE=/shared/mnist/runs/mnist-1115-101500-ab12/secrets.json
this=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID} this=${this:-$SLURM_JOB_ID}
say() { echo "everstep: $*" >&2; }
fail() { say "$1"; printf '{"state": "failed", "reason": "%s"}\n' "$1" > "$folder/status.json"; exit 1; }
is_over() { grep -qE '"state": "(succeeded|failed|canceled)"' "$folder/status.json" 2> /dev/null; }
exit_code() { local code; while :; do wait "$1"; code=$?; kill -0 "$1" 2> /dev/null || return "$code"; done; }
look() { for _ in 1 2 3 4 5; do squeue -h -j "$this" -o "$1" && return; sleep 5 & wait $!; done; }
ends_at=$(look %e)
ends_at=$(date -d "${ends_at:-unknown}" +%s 2> /dev/null || echo 9999999999)
come_back() {
  [ ! -e "$folder/canceled" ] && [ "$(look %T)" = RUNNING ] || exit 1
  if [ $(($(date +%s) + 240)) -ge "$ends_at" ]; then
    count=$(($(cat "$folder/$name.requeues" 2> /dev/null || echo 0) + 1))
    [ "$count" -le 3 ] || fail "its time was up $count times; it is requeued 3 times at most (time_requeues)"
    echo "$count" > "$folder/$name.requeues"
  fi
  say "back to the queue"
  scontrol requeue "$this" || fail "it could not be requeued"
  sleep 600 & wait $!
}
left=""
trap 'left=1; kill -KILL "$coordinator"' USR2 TERM  # all it knows is in its store; nodes wait for the next one
end_nodes() { scancel --user="$(id -un)" --name="$job" "$@"; }
# The address by which Slurm itself reaches this node; salloc's shell is on none: then the one that reaches the first.
node=${SLURMD_NODENAME:-$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)}
address=$(scontrol show node "$node" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')
"$python" -u -m everstep coordinate --folder "$folder" --host "${address:-$(hostname)}" --fleet requeued &
coordinator=$!
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

# --- sbatch --parsable --array=0-3 '--dependency=after:$COORDINATOR' /shared/mnist/runs/mnist-1115-101500-ab12/nodes.sh
#!/bin/bash
#SBATCH --job-name=mnist-1115-101500-ab12
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=32768M
#SBATCH --gpus-per-node=v100:2
#SBATCH --partition=gpu
#SBATCH --time=90
#SBATCH --signal=B:USR2@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --export=HOME,LANG,LOGNAME,PATH,PYTHONPATH,SHELL,USER
#SBATCH --output=/shared/mnist/runs/mnist-1115-101500-ab12/node-%a.log
umask 077
job=mnist-1115-101500-ab12
folder=/shared/mnist/runs/mnist-1115-101500-ab12
folder_pattern=/shared/mnist/runs/mnist-1115-101500-ab12
python=/venv/bin/python
export EVERSTEP_ORDER='{"job":"mnist-1115-101500-ab12","name":"mnist","script":"train.py","args":["two words","it'"'"'s","new\nline","$HOME"],"workers":2,"gpus":2,"min_nodes":2,"max_nodes":4,"policy":{"join_s":2592000.0,"start_nodes":2,"min_nodes":2,"max_nodes":4,"start_workers":4,"max_restarts":3},"experiment":{"name":"mnist","entrypoint":["train.py","two words","it'"'"'s","new\nline","$HOME"],"reproducibility":{"experiment_seed":0},"resources":{"slots_per_trial":8},"max_restarts":3},"env":{"GREETING":"good\nday"},"code":"c0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0de","code_from":"/shared/mnist/runs/mnist-1115-101500-ab12","workdir":"/shared/mnist","secrets":["TOKEN"]}'
export EVERSTEP_TOKEN_FILE=/shared/mnist/runs/mnist-1115-101500-ab12/token
export EVERSTEP_SECRETS_FILE=/shared/mnist/runs/mnist-1115-101500-ab12/secrets.json
this=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID} this=${this:-$SLURM_JOB_ID}
say() { echo "everstep: $*" >&2; }
fail() { say "$1"; printf '{"state": "failed", "reason": "%s"}\n' "$1" > "$folder/status.json"; exit 1; }
is_over() { grep -qE '"state": "(succeeded|failed|canceled)"' "$folder/status.json" 2> /dev/null; }
exit_code() { local code; while :; do wait "$1"; code=$?; kill -0 "$1" 2> /dev/null || return "$code"; done; }
look() { for _ in 1 2 3 4 5; do squeue -h -j "$this" -o "$1" && return; sleep 5 & wait $!; done; }
ends_at=$(look %e)
ends_at=$(date -d "${ends_at:-unknown}" +%s 2> /dev/null || echo 9999999999)
come_back() {
  [ ! -e "$folder/canceled" ] && [ "$(look %T)" = RUNNING ] || exit 1
  if [ $(($(date +%s) + 240)) -ge "$ends_at" ]; then
    count=$(($(cat "$folder/$name.requeues" 2> /dev/null || echo 0) + 1))
    [ "$count" -le 3 ] || fail "its time was up $count times; it is requeued 3 times at most (time_requeues)"
    echo "$count" > "$folder/$name.requeues"
  fi
  say "back to the queue"
  scontrol requeue "$this" || fail "it could not be requeued"
  sleep 600 & wait $!
}
left=""
leave() {
  [ -z "$left" ] || return 0
  left=$1
  say "$1: the nodes leave in good order"
  scancel --signal=URG "$this"  # to all processes of all nodes; the agents heed it
}
trap 'leave "signal USR2"' USR2
trap 'leave "signal TERM"' TERM

fail() { say "$1"; exit 1; }  # of this node alone
name=node-$SLURM_ARRAY_TASK_ID
! is_over && [ ! -e "$folder/leave/$name" ] || exit 0  # no longer needed when its turn came
rank=()
[ "$SLURM_ARRAY_TASK_ID" -ge 2 ] || rank=(--node-rank "$SLURM_ARRAY_TASK_ID")
while :; do
  url=$(cat "$folder/coordinator.url" 2> /dev/null)
  srun --ntasks=1 --cpus-per-task=8 --kill-on-bad-exit=0 --export=ALL --input=none \
    "$python" -u -m everstep node --coordinator "$folder/coordinator.url" --name "$name" "${rank[@]}" \
    --log-dir "$folder/nodes/$name" &
  nodes=$!
  exit_code "$nodes"; code=$?
  [ "$code" != 0 ] && [ ! -e "$folder/leave/$name" ] || exit 0
  ! is_over || exit "$code"
  [ -z "$left" ] && [ "$code" != 143 ] || come_back
  # After losing the coordinator, look for it where it is now.
  [ "$url" != "$(cat "$folder/coordinator.url" 2> /dev/null)" ] || exit "$code"
done
