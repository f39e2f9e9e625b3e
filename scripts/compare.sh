#!/usr/bin/env bash
# Compares the server CPU and the latency of rate limit services under the same load.
#
#   scripts/compare.sh                                        a constant handler, and this service
#   scripts/compare.sh NAME=HOST:PORT[,PID] ...               and other servers with a gRPC port
#   scripts/compare.sh NAME=http://HOST:PORT/PATH[,PID] ...   and other servers with an HTTP port
#
# The constant handler runs on tonic's server and returns one fixed reply. Its CPU is the unit of the
# column `ratio`. The load is that of
# `sluicegate bench`, one server after the other, with the same seed and keys. Without a PID, the
# CPU of a server is not known. Other servers need a limit for the domain `shop` and the key
# `api_key` that denies nothing, and their counters are charged.
#
# Variables: LOAD, the flags of `sluicegate bench`; PROFILE, the cargo profile (default: bench).
set -Eeuo pipefail
cd "$(dirname "$0")/.."

case ${1:-} in -h | --help) sed -n '2,13p' "$0"; exit ;; esac
for server in "$@"; do
    case $server in *=*:*) ;; *) echo "$server: use NAME=HOST:PORT[,PID]" >&2; exit 2 ;; esac
done

load=${LOAD:---rate 2000,5000 --duration 10s --keys 10000 --skew 1}
profile=${PROFILE:-bench}
features=()
[ "$profile" = dev ] || features=(--features jemalloc)

programs=$(cargo build --locked --workspace --profile "$profile" "${features[@]}" --bin sluicegate --bench wire \
    --message-format=json-render-diagnostics | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p')
sluicegate=$(grep '/sluicegate$' <<<"$programs")
constant=$(grep '/wire-[^/]*$' <<<"$programs")

home=$(mktemp -d)
process=
trap '[ -z "$process" ] || kill "$process"; wait; rm -rf "$home"' EXIT
printf 'domain: shop\ndescriptors:\n- key: api_key\n  rate_limit: {requests_per_unit: 4000000000, unit: day}\n' \
    >"$home/shop.yaml"

# measure NAME TARGET [PID]: runs the load; the result is in $home/NAME.json.
measure() {
    local target=(--address "$2") pid=()
    case $2 in http://*) target=(--url "$2") ;; esac
    [ -z "${3:-}" ] || pid=(--pid "$3")
    echo "$1: $2" >&2
    # shellcheck disable=SC2086 # LOAD is a list of flags.
    "$sluicegate" bench "${target[@]}" "${pid[@]}" --domain shop --descriptor 'api_key=client-{key}' --seed 1 \
        --format json $load >"$home/$1.json" || [ $? = 1 ]
    names+=("$1")
}

# serve_and_measure NAME COMMAND...: starts the server, measures it and ends it.
serve_and_measure() {
    local name=$1 address
    shift
    "$@" >"$home/$name.log" &
    process=$!
    until grep -q '^ready' "$home/$name.log"; do
        kill -0 "$process" 2>/dev/null || { echo "$name did not start" >&2; exit 1; }
        sleep 0.1
    done
    address=$(sed -n 's/^grpc listening on \([^ ]*\).*/\1/p' "$home/$name.log")
    measure "$name" "$address" "$process"
    kill "$process"
    wait "$process" || true
    process=
}

names=()
serve_and_measure constant "$constant" --constant
serve_and_measure sluicegate "$sluicegate" serve --limits-paths "$home/shop.yaml" --listen-host=127.0.0.1 \
    --listen-{grpc,http,admin,metrics,peer}-port=0 --telemetry-log-level=warn
for server in "$@"; do
    name=${server%%=*} target=${server#*=} pid=
    case $target in *,*) pid=${target##*,} target=${target%,*} ;; esac
    measure "$name" "$target" "$pid"
done

python3 - "$home" "${names[@]}" <<'PYTHON'
import json
import sys

home, *names = sys.argv[1:]
results = {name: json.load(open(f"{home}/{name}.json"))["steps"] for name in names}
text = lambda number, form: "-" if number is None else format(number, form)
print(f"{'server':<16}{'rate':>9}{'decided/s':>11}{'p50 µs':>10}{'p99 µs':>10}{'p99.9 µs':>10}{'CPU µs':>9}{'ratio':>8}")
for name, steps in results.items():
    for step, constant in zip(steps, results["constant"]):
        cpu, base, latency = step["cpu_us_per_check"], constant["cpu_us_per_check"], step["latency_us"]
        quantiles = "".join(f"{text(latency[of], '10.0f'):>10}" for of in ("p50", "p99", "p99.9"))
        ratio = cpu / base if cpu and base else None
        print(f"{name:<16}{step['rate']:>9}{step['decided_per_second']:>11.0f}{quantiles}"
              f"{text(cpu, '.1f'):>9}{text(ratio, '.2f'):>8}")
PYTHON
