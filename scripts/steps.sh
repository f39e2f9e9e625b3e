# Sourced by test.sh and verify.sh: headings, and a report of the machine after a failure.
# shellcheck shell=bash

began=$SECONDS
step() { printf '\n==> %s  (%d s)\n' "$*" "$((SECONDS - began))"; }

# Shows if the machine was stalled or out of memory. A test failure alone does not show it.
machine() {
    head -n 1 /proc/stat
    grep -s oom_kill /proc/vmstat || true
    grep -s avg10 /proc/pressure/{cpu,memory,io} || true
}
trap 'echo; machine; echo "FAILED at line $LINENO after $((SECONDS - began)) s: $BASH_COMMAND" >&2' ERR
