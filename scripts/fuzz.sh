#!/usr/bin/env bash
# Runs the fuzz targets, two at a time, and prints their results.
#
#   scripts/fuzz.sh                 all of them, five minutes each
#   scripts/fuzz.sh 30              all of them, 30 seconds each
#   scripts/fuzz.sh 600 yaml json   these two, ten minutes each
#
# Installs missing tools: cargo-fuzz into .tools, a C++ compiler with apt-get. Uses nightly
# if it is installed, otherwise this compiler with nightly flags enabled. The exit code is 1 after a
# finding. Findings are in fuzz/artifacts; `cargo fuzz run TARGET FILE` reproduces one.
set -Eeuo pipefail
cd "$(dirname "$0")/.."

fuzz_version=0.13.2
# Far above the slowest valid input under the sanitizer; more is a finding.
slowest_seconds=20
most_memory_mb=4096

seconds=${1:-300}
[ $# -eq 0 ] || shift
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(concurrency_messages descriptor_keys filter_config json lease_messages rls service_messages usage yaml)

logs=fuzz/target/logs
mkdir -p "$logs"
PATH="$PWD/.tools/cargo/bin:$PATH"

install_compiler() {
    command -v apt-get >/dev/null || { echo "no C++ compiler (c++) here: install one, such as g++" >&2; exit 2; }
    local root=()
    [ "$(id -u)" = 0 ] || root=(sudo)
    "${root[@]}" apt-get update -qq
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends g++
}

# The fuzzer's runtime is C++.
command -v c++ >/dev/null || install_compiler
if ! cargo fuzz --version 2>/dev/null | grep -qx "cargo-fuzz $fuzz_version"; then
    cargo install --locked --quiet --root .tools/cargo cargo-fuzz --version "$fuzz_version"
fi
if ! cargo +nightly --version >/dev/null 2>&1; then
    export RUSTC_BOOTSTRAP=1
    toolchain=()
else
    toolchain=(+nightly)
fi

# Initial inputs of a target besides its own corpus.
seeds() {
    echo "fuzz/seeds/$1"
    [ "$1" != yaml ] || printf '%s\n' tests/config/bad config/limits fuzz/limits
}

# Maximum input length in bytes. For `rls` it exceeds 10,000 entries of 2 bytes, the maximum of a
# request. Longer inputs only take more time.
longest() { case $1 in rls) echo 32768 ;; yaml) echo 8192 ;; descriptor_keys) echo 512 ;; *) echo 4096 ;; esac; }

fuzz() {
    local target=$1 inputs
    mkdir -p "fuzz/corpus/$target"
    mapfile -t inputs < <(seeds "$target")
    nice cargo "${toolchain[@]}" fuzz run "$target" "fuzz/corpus/$target" "${inputs[@]}" -- \
        -max_total_time="$seconds" -timeout="$slowest_seconds" -rss_limit_mb="$most_memory_mb" \
        -max_len="$(longest "$target")" -print_final_stats=1 >"$logs/$target.log" 2>&1
}

findings() { find "fuzz/artifacts/$1" -type f | wc -l; }
runs() { sed -n 's/^stat::number_of_executed_units: *//p' "$logs/$1.log" | tail -n 1; }

# Prints one row of the table. Fails if the target failed.
row() {
    local target=$1 before=$2 code=$3 took=$4 new
    new=$(($(findings "$target") - before))
    # A failed run without a kept input (a build error, a kill) must not pass either.
    [ "$code" -eq 0 ] || [ "$new" -gt 0 ] || new="exit $code, see $logs/$target.log"
    printf '%-20s %12s %8s   %s\n' "$target" "$(runs "$target")" "$took" "$new"
    [ "$code" -eq 0 ]
}

nice cargo "${toolchain[@]}" fuzz build
printf '\n%-20s %12s %8s   %s\n' target runs seconds findings
failed=0
for ((at = 0; at < ${#targets[@]}; at += 2)); do
    declare -A processes=() before=()
    began=$SECONDS
    for target in "${targets[@]:at:2}"; do
        mkdir -p "fuzz/artifacts/$target"
        before[$target]=$(findings "$target")
        fuzz "$target" &
        processes[$target]=$!
    done
    for target in "${targets[@]:at:2}"; do
        code=0
        wait "${processes[$target]}" || code=$?
        row "$target" "${before[$target]}" "$code" "$((SECONDS - began))" || failed=1
    done
done
exit "$failed"
