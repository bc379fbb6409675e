"""Parts of all batch scripts: the final report, and waiting. Bash runs a trap only between two commands, or while it
waits for a child."""

from __future__ import annotations

WAITING = """\
say() { echo "everstep: $*" >&2; }
fail() { say "$1"; printf '{"state": "failed", "reason": "%s"}\\n' "$1" > "$folder/status.json"; exit 1; }
is_over() { grep -qE '"state": "(succeeded|failed|canceled)"' "$folder/status.json" 2> /dev/null; }
exit_code() { local code; while :; do wait "$1"; code=$?; kill -0 "$1" 2> /dev/null || return "$code"; done; }"""

# Of $coordinator and $nodes: whichever ends first. Afterwards the job is not over, and $code is that of the nodes.
ENDING = """\
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
"""
