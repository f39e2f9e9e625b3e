#!/usr/bin/env bash
# Checks the TLA+ of spec/: every model of every .cfg, and that what must fail does.
#
#   scripts/specs.sh                                all the small ones
#   scripts/specs.sh LeaseWindow                    this one
#   scripts/specs.sh large                          those of spec/large: what no small one covers, minutes each
#   scripts/specs.sh large/CoordinatorMovingLate    this one
#
# A .cfg says in comments which module it runs (`\* run Lease.tla --symmetry Members`) and what comes of it: `\* expect
# 1234 states`, all of them explored and nothing found, or `\* expect violation Theorem`. A count is pinned so that a
# model that lost an action does not pass for one that holds. Installs the checker into .tools, once.
set -Eeuo pipefail
cd "$(dirname "$0")/.."

tla_version=0.24.11
# A model that takes longer than this is too large to be looked at with every change, and belongs into spec/large. The slowest
# small one takes a third of it on two slow cores.
small_seconds=${SPEC_SECONDS:-90} small_states=1000000
# What is looked at once in a while may take longer, but must end.
large_seconds=${SPEC_SECONDS:-1800} large_states=15000000

tla=$PWD/.tools/cargo/bin/tla
if ! "$tla" --version 2>/dev/null | grep -q "$tla_version"; then
    cargo install --locked --quiet --root .tools/cargo tla-checker --version "$tla_version"
fi

said() { sed -n "s/^\\\\\* $2 *//p" "spec/$1.cfg"; }

# What came of a model, in the words of its `expect`.
outcome() {
    local log=$1 code=$2 seconds=$3
    if [ "$code" = 0 ]; then
        printf '%s states\n' "$(sed -n 's/^ *Reachable states: *\([0-9]*\).*/\1/p' "$log" | tail -n 1)"
    elif [ "$code" = 124 ]; then
        printf 'nothing within %s s\n' "$seconds"
    else
        printf 'violation %s\n' "$(sed -nE 's/^Invariant [0-9]+ \((.*)\) violated.*/\1/p; s/^Liveness property violated: *//p' "$log" | head -n 1)"
    fi
}

# The models of a folder below spec/, by the names that this script takes.
models() {
    local file
    for file in "spec/$1"*.cfg; do
        file=${file#spec/}
        names+=("${file%.cfg}")
    done
}

names=()
[ $# -gt 0 ] || models ""
for name in "$@"; do
    if [ "$name" = large ]; then models large/; else names+=("$name"); fi
done

failed=0
for name in "${names[@]}"; do
    began=$SECONDS code=0 seconds=$small_seconds states=$small_states
    [ "${name%%/*}" != large ] || { seconds=$large_seconds states=$large_states; }
    log=$(mktemp)
    read -ra module < <(said "$name" run) || true
    expected=$(said "$name" expect)
    if [ -z "${module[*]}" ] || [ -z "$expected" ]; then
        printf '%-33s NOT RUN: it does not say what to run and what comes of it\n' "$name"
        failed=1
        continue
    fi
    # The trace of what must fail is no news.
    timeout "$seconds" "$tla" "spec/${module[0]}" "${module[@]:1}" --config "spec/$name.cfg" \
        --max-states "$states" --max-depth 10000 >"$log" 2>&1 || code=$?
    found=$(outcome "$log" "$code" "$seconds")
    printf '%-33s %-24s %4d s\n' "$name" "$found" "$((SECONDS - began))"
    if [ "$found" != "$expected" ]; then
        echo "    expected $expected:"
        tail -n 40 "$log" | sed 's/^/    /'
        failed=1
    fi
    rm -f "$log"
done
exit "$failed"
