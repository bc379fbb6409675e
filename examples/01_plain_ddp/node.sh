#!/bin/bash
# node.sh VENV HOST:PORT SCRIPT [ARGS]
# pbsdsh starts this on every node, in the home folder and without the job's environment.
source "$1/bin/activate"
cd "$(dirname "${BASH_SOURCE[0]}")" || exit
everstep run --nnodes=2 --nproc-per-node=2 --rdzv-id="$PBS_JOBID" --rdzv-endpoint="$2" "${@:3}"
status=$?
echo "$(hostname) finished with exit code $status"
exit $status
