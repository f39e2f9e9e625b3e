#!/usr/bin/env bash
# The checks that take minutes each, one after the other, with a table at the end.
#
#   scripts/long.sh                 all of them
#   scripts/long.sh ignored         this one
#   FUZZ_SECONDS=30 scripts/long.sh fuzz
#
# One check's failure does not stop the others; the exit code is 1 when any failed.
set -uo pipefail
cd "$(dirname "$0")/.."

fuzz_seconds=${FUZZ_SECONDS:-300}
logs=target/long
tools=.tools/cargo
table=()
failed=0
mkdir -p "$logs"
PATH="$PWD/$tools/bin:$PATH"

# run NAME COMMAND…: one row of the table.
run() {
    local name=$1 began=$SECONDS outcome=passed
    shift
    printf '\n==> %s: %s\n' "$name" "$*"
    "$@" 2>&1 | tee "$logs/$name.log" || { outcome=FAILED; failed=1; }
    table+=("$(printf '%-28s %-8s %6d s   %s' "$name" "$outcome" "$((SECONDS - began))" "$logs/$name.log")")
}

# has BINARY CRATE: installs a cargo command into .tools where it is not on the PATH.
has() { command -v "$1" >/dev/null || cargo install --locked --root "$tools" "$2"; }

# Nightly where it is present, else this compiler told to take nightly's flags.
fuzz_one() {
    if cargo +nightly --version >/dev/null 2>&1; then
        cargo +nightly fuzz run "$1" -- -max_total_time="$fuzz_seconds" -rss_limit_mb=4096
    else
        RUSTC_BOOTSTRAP=1 cargo fuzz run "$1" -- -max_total_time="$fuzz_seconds" -rss_limit_mb=4096
    fi
}

# Every fuzz target, five minutes each.
check_fuzz() {
    [ -d fuzz/fuzz_targets ] || { echo "no fuzz targets here"; return; }
    has cargo-fuzz cargo-fuzz || { run fuzz-install false; return; }
    local target
    for target in fuzz/fuzz_targets/*.rs; do
        target=$(basename "$target" .rs)
        run "fuzz-$target" fuzz_one "$target"
    done
}

# Tests marked #[ignore], such as ten million live keys; optimised, since they measure memory and time.
check_ignored() { run ignored cargo test --locked --release -- --ignored --nocapture --test-threads 1; }

checks=("$@")
[ ${#checks[@]} -gt 0 ] || checks=(ignored fuzz)
for check in "${checks[@]}"; do
    declare -F "check_$check" >/dev/null || { echo "no check named $check" >&2; exit 2; }
    "check_$check"
done

printf '\n%-28s %-8s %8s   %s\n' check outcome time log
printf '%s\n' "${table[@]}"
exit "$failed"
