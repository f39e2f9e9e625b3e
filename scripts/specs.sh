#!/usr/bin/env bash
# Checks the TLA+ models of spec/, and that models with a flaw fail.
#
#   scripts/specs.sh                                all small models
#   scripts/specs.sh LeaseWindow                    one model
#   scripts/specs.sh large                          the models of spec/large, minutes each
#   scripts/specs.sh large/CoordinatorMovingLate    one of these
#   scripts/specs.sh --install                      none; only installs the checker
#
# Comments in a .cfg name the module (`\* run Lease.tla --symmetry Members`) and the expected
# result. `\* expect 1234 states` means that all states were explored without a violation. `\*
# expect violation Theorem` names a violation. The number of states is fixed: otherwise a model that
# lost an action could pass. Installs the checker into .tools, once.
set -Eeuo pipefail
cd "$(dirname "$0")/.."

tla_version=0.24.11
# Limits for models that run with every change; a slower model belongs in spec/large. The slowest
# small model takes a third of the time on two slow cores.
small_seconds=${SPEC_SECONDS:-90} small_states=1000000
# Large models run occasionally. They may take longer, but must end.
large_seconds=${SPEC_SECONDS:-1800} large_states=15000000

tla=$PWD/.tools/cargo/bin/tla
if ! "$tla" --version 2>/dev/null | grep -q "$tla_version"; then
    cargo install --locked --quiet --root .tools/cargo tla-checker --version "$tla_version"
fi
[ "${1:-}" != --install ] || exit 0

said() { sed -n "s/^\\\\\* $2 *//p" "spec/$1.cfg"; }

# The result of a model, in the format of `expect`.
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

# Adds the models of a folder below spec/ to `names`, in the format of this script's arguments.
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
    # Logs the output, because the trace of an expected violation is not interesting.
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
