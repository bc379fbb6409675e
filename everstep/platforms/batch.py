"""What all batch scripts say: their last word, and how they wait. Bash runs a trap only between two commands, or while
it waits for a child."""

from __future__ import annotations

WAITING = """\
say() { echo "everstep: $*" >&2; }
fail() { say "$1"; printf '{"state": "failed", "reason": "%s"}\\n' "$1" > "$folder/status.json"; exit 1; }
is_over() { grep -qE '"state": "(succeeded|failed|cancelled)"' "$folder/status.json" 2> /dev/null; }
exit_code() { local code; while :; do wait "$1"; code=$?; kill -0 "$1" 2> /dev/null || return "$code"; done; }"""
