#!/usr/bin/env bash
# Checks the TLA+ of spec/: every model of every .cfg, and that what must fail does.
#
#   scripts/specs.sh                 all of them
#   scripts/specs.sh LeaseWindow     this one
#
# A .cfg says in comments which module it runs (`\* run Lease.tla --symmetry Members`) and what comes of it: `\* expect
# 1234 states`, all of them explored and nothing found, or `\* expect violation Theorem`. A count is pinned so that a
# model that lost an action does not pass for one that holds. Installs the checker into .tools, once.
set -Eeuo pipefail
cd "$(dirname "$0")/.."

tla_version=0.24.11
# A model that takes longer than this on an idle machine is too large to be looked at with every change.
slowest_seconds=${SPEC_SECONDS:-300}

tla=$PWD/.tools/cargo/bin/tla
if ! "$tla" --version 2>/dev/null | grep -q "$tla_version"; then
    cargo install --locked --quiet --root .tools/cargo tla-checker --version "$tla_version"
fi

said() { sed -n "s/^\\\\\* $2 *//p" "spec/$1.cfg"; }

# What came of a model, in the words of its `expect`.
outcome() {
    local log=$1 code=$2
    if [ "$code" = 0 ]; then
        printf '%s states\n' "$(sed -n 's/^ *Reachable states: *\([0-9]*\).*/\1/p' "$log" | tail -n 1)"
    elif [ "$code" = 124 ]; then
        printf 'nothing within %s s\n' "$slowest_seconds"
    else
        printf 'violation %s\n' "$(sed -n 's/^Invariant [0-9]* (\(.*\)) violated.*/\1/p' "$log" | head -n 1)"
    fi
}

names=("$@")
if [ ${#names[@]} -eq 0 ]; then
    for file in spec/*.cfg; do names+=("$(basename "$file" .cfg)"); done
fi

failed=0
for name in "${names[@]}"; do
    began=$SECONDS code=0
    log=$(mktemp)
    read -ra module < <(said "$name" run) || true
    expected=$(said "$name" expect)
    if [ -z "${module[*]}" ] || [ -z "$expected" ]; then
        printf '%-22s NOT RUN: it does not say what to run and what comes of it\n' "$name"
        failed=1
        continue
    fi
    # The trace of what must fail is no news.
    timeout "$slowest_seconds" "$tla" "spec/${module[0]}" "${module[@]:1}" --config "spec/$name.cfg" \
        --max-states 1000000 --max-depth 10000 >"$log" 2>&1 || code=$?
    found=$(outcome "$log" "$code")
    printf '%-22s %-24s %4d s\n' "$name" "$found" "$((SECONDS - began))"
    if [ "$found" != "$expected" ]; then
        echo "    expected $expected:"
        tail -n 40 "$log" | sed 's/^/    /'
        failed=1
    fi
    rm -f "$log"
done
exit "$failed"
