# --- /shared/mnist/runs/mnist-1115-101500-ab12/job.sh
#!/bin/bash
#PBS -N mnist
#PBS -q work
#PBS -P vision
#PBS -l select=4:ncpus=8:mem=32768mb:ngpus=2:gpu_model=v100:phase=18b:mpiprocs=1
#PBS -l place=scatter
#PBS -l walltime=01:30:00
#PBS -j oe
#PBS -o /dev/null
#PBS -r y
umask 077
folder=/shared/mnist/runs/mnist-1115-101500-ab12
python=/venv/bin/python
export EVERSTEP_ORDER='{"job":"mnist-1115-101500-ab12","name":"mnist","script":"train.py","args":["two words","it'"'"'s","new\nline","$HOME"],"workers":2,"gpus":2,"min_nodes":2,"max_nodes":4,"policy":{"join_s":2592000.0,"start_nodes":2,"min_nodes":2,"max_nodes":4,"start_workers":4,"max_restarts":3},"experiment":{"name":"mnist","entrypoint":["train.py","two words","it'"'"'s","new\nline","$HOME"],"reproducibility":{"experiment_seed":0},"resources":{"slots_per_trial":8},"max_restarts":3},"env":{"GREETING":"good\nday"},"code":"c0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0de","code_from":"/shared/mnist/runs/mnist-1115-101500-ab12","workdir":"/shared/mnist","secrets":["TOKEN"]}'
export EVERSTEP_TOKEN_FILE=/shared/mnist/runs/mnist-1115-101500-ab12/token
export EVERSTEP_SECRETS_FILE=/shared/mnist/runs/mnist-1115-101500-ab12/secrets.json
say() { echo "everstep: $*" >&2; }
fail() { say "$1"; printf '{"state": "failed", "reason": "%s"}\n' "$1" > "$folder/status.json"; exit 1; }
is_over() { grep -qE '"state": "(succeeded|failed|canceled)"' "$folder/status.json" 2> /dev/null; }
exit_code() { local code; while :; do wait "$1"; code=$?; kill -0 "$1" 2> /dev/null || return "$code"; done; }
exec >> "$folder/job.log" 2>&1
deadline=$(($(date +%s) + 5400))
left=""
trap 'left=1' TERM
rm -f "$folder/coordinator.url"  # that of an earlier run
"$python" -u -m everstep coordinate --folder "$folder" --host "$(hostname)" --fleet requeued &
coordinator=$!
start() {
  local number=0
  while read -r host; do
    ssh -n -o BatchMode=yes "$host" bash "$quoted/node.sh" "'$deadline'" "$number" &
    number=$((number + 1))
  done < <(awk '!seen[$0]++' "$PBS_NODEFILE")
  wait
}
quoted=$(printf %q "$folder")
start &
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
[ -z "$left" ] && [ ! -e "$folder/canceled" ] || exit 143  # deleted, or preempted: then PBS starts it again
[ -z "$deadline" ] || [ "$(date +%s)" -lt $((deadline - 65)) ] ||
  fail "its walltime was up; submit it again to continue from its checkpoint"
fail "all nodes ended before the job did, with exit code $code"

# --- /shared/mnist/runs/mnist-1115-101500-ab12/node.sh
#!/bin/bash
umask 077
folder=/shared/mnist/runs/mnist-1115-101500-ab12
python=/venv/bin/python
export EVERSTEP_ORDER='{"job":"mnist-1115-101500-ab12","name":"mnist","script":"train.py","args":["two words","it'"'"'s","new\nline","$HOME"],"workers":2,"gpus":2,"min_nodes":2,"max_nodes":4,"policy":{"join_s":2592000.0,"start_nodes":2,"min_nodes":2,"max_nodes":4,"start_workers":4,"max_restarts":3},"experiment":{"name":"mnist","entrypoint":["train.py","two words","it'"'"'s","new\nline","$HOME"],"reproducibility":{"experiment_seed":0},"resources":{"slots_per_trial":8},"max_restarts":3},"env":{"GREETING":"good\nday"},"code":"c0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0de","code_from":"/shared/mnist/runs/mnist-1115-101500-ab12","workdir":"/shared/mnist","secrets":["TOKEN"]}'
export EVERSTEP_TOKEN_FILE=/shared/mnist/runs/mnist-1115-101500-ab12/token
export EVERSTEP_SECRETS_FILE=/shared/mnist/runs/mnist-1115-101500-ab12/secrets.json
# The login profile: `module` is a function of it.
[ ! -r /etc/profile ] || . /etc/profile
deadline=$1 number=${2:-${PBS_NODENUM:-0}}
name=node-$number
exec >> "$folder/$name.log" 2>&1
[ -z "$deadline" ] || export EVERSTEP_DEADLINE=$deadline
exec "$python" -u -m everstep node --coordinator "$folder/coordinator.url" --name "$name" --node-rank "$number" \
  --log-dir "$folder/nodes/$name"
