#!/usr/bin/env bash
# Runs the checks that take minutes each, in sequence, and prints a table at the end.
#
#   scripts/long.sh                 all of them
#   scripts/long.sh keys            one of them
#   FUZZ_SECONDS=30 scripts/long.sh fuzz
#
# A failed check does not stop the others. The exit code is 1 if any check failed.
# shellcheck disable=SC2329 # Checks are called by their names.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

fuzz_seconds=${FUZZ_SECONDS:-300}
logs=target/long
table=()
failed=0
mkdir -p "$logs"

# run NAME COMMAND…: runs the command and adds a row to the table.
run() {
    local name=$1 began=$SECONDS outcome=passed
    shift
    printf '\n==> %s: %s\n' "$name" "$*"
    "$@" 2>&1 | tee "$logs/$name.log" || { outcome=FAILED; failed=1; }
    table+=("$(printf '%-28s %-8s %6d s   %s' "$name" "$outcome" "$((SECONDS - began))" "$logs/$name.log")")
}

# Every fuzz target, five minutes each, two at a time.
check_fuzz() { run fuzz scripts/fuzz.sh "$fuzz_seconds"; }

# The code that runs inside proxies, and a real Envoy with the module, in valgrind.
check_memory() { run memory scripts/memory.sh; }

# Memory per key with ten million live GCRA keys.
check_keys() { run keys cargo bench --locked --features jemalloc --bench path -- keys; }

# Ten thousand fault schedules for the coordinator of concurrency limits, and as many for engines.
check_ceilings() {
    SLUICEGATE_SCHEDULES=10000 SLUICEGATE_ENGINE_SCHEDULES=10000 run ceilings \
        cargo test --locked --release -p sluicegate-kernel -p sluicegate --test laws --test all -- \
        --nocapture random_faults_never_exceed_the_limit
}

# The models of spec/large: pairs of faults that no small model covers.
check_specs() { run specs scripts/specs.sh large; }

# The fault report of a release.
check_faults() { run faults scripts/faults.py; }

# The last release and this build as one fleet.
check_upgrade() { run upgrade scripts/upgrade.sh; }

# Two hundred fleets with leases, whose processes are killed, stopped and resumed at random.
check_leases() {
    SLUICEGATE_RUNS=200 run leases cargo test --locked --test all -- --nocapture store::redis::overshoot
}

# Fifty fleets of three Envoys with the module, whose processes are killed, stopped and resumed at random.
check_envoys() {
    SLUICEGATE_ENVOY_RUNS=50 run envoys cargo test --locked --test all -- --nocapture \
        faults_keep_envoys_within_the_limit
}

# A hundred crashes of the file store, and more random traces and rounds for all stores.
check_stores() {
    SLUICEGATE_CRASHES=100 SLUICEGATE_TRACES=5 SLUICEGATE_ROUNDS=20 run stores cargo test --locked --test all -- \
        --nocapture store::file::service::crashes differential:: conformance::concurrency
}

# Four thousand clients that disconnect, for each way to hold a permit.
check_disconnects() {
    SLUICEGATE_DISCONNECTS=4000 SLUICEGATE_ABORTED_REQUESTS=4000 run disconnects cargo test --locked --test all -- \
        --nocapture e2e::envoy_disconnects e2e::nginx_disconnects e2e::envoy_module::concurrency::fleet
}

# Five replicas and an upstream that counts requests, for twenty minutes.
check_fleet() {
    SLUICEGATE_FLEET_MINUTES=20 run fleet cargo test --locked --release --test all -- --nocapture \
        shared_limit_is_never_exceeded_during_faults
}

# Five adaptive replicas, as a fleet and alone, in front of an upstream with changing capacity.
check_capacity() {
    SLUICEGATE_FLEET_TABLE=1 run capacity cargo test --locked --release --test all -- --nocapture adaptive_fleet
}

# The times that the product promises, judged without a yardstick: needs a quiet machine.
check_timing() { run timing scripts/tiers.py timing; }

# The probes of Envoy Gateway's Deployment, during a minute without Redis.
check_gateway() {
    SLUICEGATE_GATEWAY_SECONDS=60 run gateway cargo test --locked --test all -- drop_in::gateway
}

# The commands of the Dockerfile: a build with the dist profile, and its size.
check_image() { run image scripts/image.sh --compile; }

# The commands of README and docs, run in an empty checkout.
check_walk() { run walk scripts/walk.sh; }

# Kubernetes, Envoy Gateway and Istio, with the service and the chart. Compiles them for 25 minutes, once.
check_control_planes() { run control_planes scripts/control_planes.sh; }

# Stops Redis for a minute under load.
check_stall() { run stall cargo bench --locked --features jemalloc --bench backend -- stall; }

# All benches: the figures in docs and changes. `backend` starts its own redis-server.
check_benches() { run benches cargo bench --locked --features jemalloc; }

checks=("$@")
[ ${#checks[@]} -gt 0 ] || checks=(benches keys stall fuzz memory ceilings specs leases stores envoys disconnects capacity fleet timing gateway control_planes image walk upgrade faults)
for check in "${checks[@]}"; do
    declare -F "check_$check" >/dev/null || { echo "no check named $check" >&2; exit 2; }
    "check_$check"
done

printf '\n%-28s %-8s %8s   %s\n' check outcome time log
printf '%s\n' "${table[@]}"
exit "$failed"
