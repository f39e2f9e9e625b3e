#!/usr/bin/env bash
# Checks the memory accesses of the code that runs inside proxies.
#
#   scripts/memory.sh           both checks
#   scripts/memory.sh tests     the tests of the crates, in valgrind
#   scripts/memory.sh envoy     a real Envoy with the module, in valgrind
#
# `envoy` counts only errors with the module in their stack: Envoy is a stripped release build. It
# runs the Envoy of scripts/envoy.sh. SLUICEGATE=FILE uses that binary instead of building one.
set -Eeuo pipefail
cd "$(dirname "$0")/.."

crates=(sluicegate-proxy sluicegate-concurrency sluicegate-lease sluicegate-lease-protocol sluicegate-envoy)
# Envoy starts fifty times slower in valgrind.
start_seconds=300
work=target/memory
mkdir -p "$work"

install_packages() {
    command -v apt-get >/dev/null || { echo "install valgrind, redis-server and curl" >&2; exit 2; }
    local root=()
    [ "$(id -u)" = 0 ] || root=(sudo)
    "${root[@]}" apt-get update -qq
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        valgrind libc6-dbg redis-server curl
}

{ command -v valgrind && command -v redis-server && command -v curl; } >/dev/null || install_packages

check_tests() {
    local flags=() host runner
    for crate in "${crates[@]}"; do flags+=(-p "$crate"); done
    host=$(rustc -vV | sed -n 's/^host: //p' | tr a-z- A-Z_)
    runner="valgrind --quiet --error-exitcode=9 --leak-check=no --num-callers=40 --fair-sched=yes"
    env "CARGO_TARGET_${host}_RUNNER=$runner" PROPTEST_CASES=16 \
        cargo test --locked --no-fail-fast --target-dir "$work/build" --lib "${flags[@]}"
}

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
status() { curl -s -o /dev/null -w '%{http_code}' --max-time 20 "$@" || true; }

processes=()
stop_all() { for process in "${processes[@]}"; do kill "$process" 2>/dev/null || true; done; }

# until_ok SECONDS COMMAND…: repeats the command until it succeeds.
until_ok() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || { echo "no success in time: $*" >&2; return 1; }
        sleep 0.2
    done
}

start_service() {
    mkdir -p "$work/limits"
    printf '%s\n' 'domain: shop' 'descriptors:' '  - key: api_key' \
        '    rate_limit: {unit: hour, requests_per_unit: 60, strategy: gcra, mode: leased, max_overshoot: 30}' \
        '    concurrency: {limit: 50, max_duration: 1s}' \
        '  - key: path' '    value: /strict' '    rate_limit: {unit: hour, requests_per_unit: 5}' \
        '  - key: user' '    concurrency: {limit: 1, mode: strict, queue: {size: 2, timeout: 1s}}' >"$work/limits/shop.yaml"
    redis-server --port "$redis" --bind 127.0.0.1 --save '' >"$work/redis.log" &
    processes+=($!)
    "$sluicegate" serve --limits-paths "$work/limits" --store-url "redis://127.0.0.1:$redis" \
        --listen-host 127.0.0.1 --listen-grpc-port "$grpc" --listen-http-port 0 --listen-metrics-port 0 \
        --listen-admin-port 0 >"$work/sluicegate.log" 2>&1 &
    service=$!
    processes+=("$service")
}

start_envoy() {
    sed -e "s/port_value: 9901/port_value: $admin/; s/port_value: 10000/port_value: $ingress/" \
        -e "s/port_value: 9000/port_value: $upstream/; s/127.0.0.1:8081/127.0.0.1:$grpc/; s/deadline: 20ms/deadline: 1s/" \
        config/envoy/module.yaml >"$work/envoy.yaml"
    python3 -m http.server --bind 127.0.0.1 --directory "$work/limits" "$upstream" >"$work/upstream.log" 2>&1 &
    processes+=($!)
    ENVOY_DYNAMIC_MODULES_SEARCH_PATH="$work/build/debug" valgrind --trace-children=no --num-callers=40 \
        --leak-check=no --fair-sched=yes --log-file="$work/valgrind.log" \
        "$(readlink -f .tools/bin/envoy)" -c "$work/envoy.yaml" --concurrency 2 --use-dynamic-base-id >"$work/envoy.log" 2>&1 &
    envoy=$!
    processes+=("$envoy")
    until_ok "$start_seconds" curl -sf "http://127.0.0.1:$admin/ready"
}

# Allowed, denied, strict, unlimited and abandoned requests, then requests without the service.
send_requests() {
    local url=http://127.0.0.1:$ingress count=() clients=() code
    for code in $(for _ in $(seq 80); do status -H 'x-api-key: ann' "$url/"; echo; done); do count[code]=$((${count[code]:-0} + 1)); done
    for _ in $(seq 10); do status "$url/strict"; status "$url/health"; status -H 'x-user: ann' "$url/login"; done >/dev/null
    for _ in $(seq 20); do
        curl -s -o /dev/null --max-time 0.05 -H 'x-user: ann' "$url/login" &
        clients+=($!)
    done
    wait "${clients[@]}" || true
    for key in $(seq 40); do curl -s -o /dev/null --max-time 0.005 -H "x-api-key: $key" "$url/" || true; done
    kill -9 "$service"
    for key in $(seq 40); do status -H "x-api-key: ann-$key" "$url/"; done >/dev/null
    printf 'ann: %s allowed, %s denied\n' "${count[200]:-0}" "${count[429]:-0}"
    [ "${count[200]:-0}" -ge 60 ] && [ "${count[429]:-0}" -gt 0 ]
}

check_envoy() {
    local redis grpc admin ingress upstream envoy service sluicegate=${SLUICEGATE:-target/debug/sluicegate} errors
    read -r redis grpc admin ingress upstream < <(echo "$(free_port) $(free_port) $(free_port) $(free_port) $(free_port)")
    [ -n "${SLUICEGATE:-}" ] || env -u RUSTFLAGS cargo build --locked --quiet --target-dir target
    cargo build --locked --quiet -p sluicegate-envoy --target-dir "$work/build"
    trap stop_all EXIT
    start_service
    start_envoy
    # A new Redis grants no share before the share expiry and `max_duration`.
    sleep 7
    send_requests
    curl -s -X POST "http://127.0.0.1:$admin/quitquitquit" >/dev/null
    wait "$envoy"
    errors=$(awk -v RS='==[0-9]+== \n' '/libsluicegate_envoy/ && /(Invalid|uninitialised|Mismatched|overlap)/' "$work/valgrind.log")
    [ -z "$errors" ] || { printf '%s\n' "$errors"; return 1; }
    echo "no memory error of the module"
}

# Valgrind hides the vDSO, which rustix otherwise looks for.
export RUSTFLAGS="--cfg rustix_use_libc"
checks=("$@")
[ ${#checks[@]} -gt 0 ] || checks=(tests envoy)
for check in "${checks[@]}"; do
    declare -F "check_$check" >/dev/null || { echo "no check named $check" >&2; exit 2; }
    "check_$check"
done
