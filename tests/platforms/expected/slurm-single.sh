#!/bin/bash
#SBATCH --job-name=mnist-1115-101500-ab12
#SBATCH --nodes=2-4
#SBATCH --no-kill
#SBATCH --cpus-per-task=8
#SBATCH --mem=32768M
#SBATCH --gpus-per-node=v100:2
#SBATCH --partition=gpu
#SBATCH --account=vision
#SBATCH --constraint=a100&nvlink
#SBATCH --time=90
#SBATCH --signal=B:USR2@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --export=HOME,LANG,LOGNAME,PATH,PYTHONPATH,SHELL,USER
#SBATCH --output=/shared/mnist/runs/mnist-1115-101500-ab12/job.log
#SBATCH --exclude=n7
umask 077
job=mnist-1115-101500-ab12
folder=/shared/mnist/runs/mnist-1115-101500-ab12
folder_pattern=/shared/mnist/runs/mnist-1115-101500-ab12
python=/venv/bin/python
name=job
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

rm -f "$folder/coordinator.url"  # that of an earlier run
# The address by which Slurm itself reaches this node; salloc's shell is on none: then the one that reaches the first.
node=${SLURMD_NODENAME:-$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)}
address=$(scontrol show node "$node" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')
"$python" -u -m everstep coordinate --folder "$folder" --host "${address:-$(hostname)}" --fleet requeued &
coordinator=$!
# A lost node or a failed agent ends no other.
srun --ntasks-per-node=1 --cpus-per-task=8 --no-kill --kill-on-bad-exit=0 --wait=0 --export=ALL --input=none \
  --open-mode=append --output="$folder_pattern/node-%t.log" bash -c '
  exec "$1" -u -m everstep node --coordinator "$2/coordinator.url" --name "node-$SLURM_PROCID" \
    --node-rank "$SLURM_PROCID" --log-dir "$2/nodes/node-$SLURM_PROCID"' everstep "$python" "$folder" &
nodes=$!
while kill -0 "$coordinator" 2> /dev/null && kill -0 "$nodes" 2> /dev/null; do sleep 0.5 & wait $!; done
if ! kill -0 "$coordinator" 2> /dev/null; then  # the job is over, and its nodes know
  exit_code "$coordinator"; code=$?
  is_over || fail "the coordinator ended with exit code $code"
  exit "$code"
fi
exit_code "$nodes"; code=$?
kill -TERM "$coordinator"
exit_code "$coordinator"; verdict=$?
! is_over || exit "$verdict"
[ -n "$left" ] || [ "$code" = 143 ] || fail "all nodes ended before the job did, with exit code $code"
come_back
