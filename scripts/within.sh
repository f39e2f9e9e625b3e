#!/usr/bin/env bash
# Runs tests, and no longer than that: where one never ends, says which, and before what its threads stand.
#
#   scripts/within.sh 40 cargo test --locked        for forty minutes
set -Eeuo pipefail

end=$((SECONDS + 60 * $1))
shift
log=$(mktemp)

# The test binaries that run: what was started here starts them.
running() { pgrep -P "$(pgrep -d , -P $$)" -f /deps/; }

# Those that took longer than a minute when it was last heard of them, and have not ended.
unended() {
    printf '\nNot ended in time, and killed:\n'
    awk '/ has been running for over 60 seconds$/ { late[$2] } / \.\.\. / { delete late[$2] }
        END { for (name in late) print "    " name }' "$log"
}

debugger() {
    command -v gdb || { apt-get update -qq && apt-get install -y -qq --no-install-recommends gdb; }
}

# Of each thread the frames of this project, innermost first.
stand() {
    timeout 60 gdb --batch --pid "$1" -ex "set print frame-arguments none" -ex "thread apply all backtrace" 2>/dev/null |
        grep -E '^Thread|(all|sluicegate)::' | cut -c 1-200
}

end_them() {
    while [ "$SECONDS" -lt "$end" ]; do
        sleep 1
        kill -0 $$ 2>/dev/null || exit 0
    done
    unended
    local process
    for process in $(running); do
        timeout 180 bash -c "$(declare -f debugger); debugger" >/dev/null && stand "$process" ||
            echo "nothing to be seen of process $process"
        pkill -KILL -P "$process" || true
        kill -KILL "$process" || true
    done
    # What was printed last is read first.
    unended
}

end_them &
trap 'kill %1 2>/dev/null; rm -f "$log"' EXIT
# Not a pipeline, which would also wait for whoever the tests left behind.
"$@" > >(tee "$log")
