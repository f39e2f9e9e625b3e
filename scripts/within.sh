#!/usr/bin/env bash
# Runs tests with a time limit. Prints the names of tests that do not end, and the stacks of their
# threads.
#
#   scripts/within.sh 40 cargo test --locked        for forty minutes
set -Eeuo pipefail

end=$((SECONDS + 60 * $1))
shift
log=$(mktemp)

# The running test binaries: grandchildren of this script.
running() { pgrep -P "$(pgrep -d , -P $$)" -f /deps/; }

# Tests that were reported as running for over a minute and have not ended.
unended() {
    printf '\nNot ended in time, and killed:\n'
    awk '/ has been running for over 60 seconds$/ { late[$2] } / \.\.\. / { delete late[$2] }
        END { for (name in late) print "    " name }' "$log"
}

debugger() {
    command -v gdb || { apt-get update -qq && apt-get install -y -qq --no-install-recommends gdb; }
}

# Prints this project's frames of each thread, innermost first.
stand() {
    timeout 60 gdb --batch --pid "$1" -ex "set print frame-arguments none" -ex "thread apply all backtrace" 2>/dev/null |
        grep -E '^Thread|(all|sluicegate)::' | cut -c 1-200
}

# All descendants of PROCESS.
below() {
    local child
    for child in $(pgrep -P "$1"); do
        below "$child"
        echo "$child"
    done
}

end_them() {
    while [ "$SECONDS" -lt "$end" ]; do
        sleep 1
        kill -0 $$ 2>/dev/null || exit 0
    done
    unended
    local process me=$BASHPID
    for process in $(running); do
        timeout 180 bash -c "$(declare -f debugger); debugger" >/dev/null && stand "$process" ||
            echo "nothing to be seen of process $process"
    done
    # Repeated, because the end of the output is read first.
    unended
    for process in $(pgrep -P $$ | grep -vx "$me"); do
        [ "$(cat "/proc/$process/comm")" != tee ] || continue
        kill -KILL $(below "$process") "$process" 2>/dev/null || true
    done
}

end_them &
trap 'kill %1 2>/dev/null; rm -f "$log"' EXIT
# A pipeline would also wait for processes that the tests left running.
"$@" > >(tee "$log")
