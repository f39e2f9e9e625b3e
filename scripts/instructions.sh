#!/usr/bin/env bash
# Counts the instructions of a check on the main paths, and compares them with benches/instructions.txt.
#
#   scripts/instructions.sh                     fails if a path needs over 3 % more
#   scripts/instructions.sh --accept "REASON"   writes the counts and the reason into the file
#   scripts/instructions.sh --profile release   prints the counts of that profile
#
# Needs valgrind and redis-server. A count is the difference of two runs in callgrind, so the start
# of the program cancels out. The build is that of the tests, so that no other build is needed.
set -Eeuo pipefail
cd "$(dirname "$0")/.."

file=benches/instructions.txt
paths=(memory leased redis permit fair_10 fair_10k budget fixed table)
few=1000 many=3000
profile=dev reason=
case ${1:-} in
    --profile) profile=$2 ;;
    --accept) reason=${2:?give the reason} ;;
    "") ;;
    *) sed -n '2,9p' "$0"; exit 2 ;;
esac

packages=()
command -v valgrind >/dev/null || packages+=(valgrind)
command -v redis-server >/dev/null || packages+=(redis-server)
if [ ${#packages[@]} -gt 0 ]; then
    root=()
    [ "$(id -u)" = 0 ] || root=(sudo)
    "${root[@]}" apt-get update -qq
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}"
fi

program=$(cargo build --locked --workspace --profile "$profile" --bench instructions --message-format=json-render-diagnostics |
    sed -n 's/.*"executable":"\([^"]*instructions[^"]*\)".*/\1/p')

home=$(mktemp -d)
export REDIS_SOCKET=$home/redis.sock
redis-server --save "" --appendonly no --port 0 --unixsocket "$REDIS_SOCKET" --dir "$home" >/dev/null &
redis=$!
trap 'kill $redis; wait; rm -rf "$home"' EXIT

# instructions PATH CHECKS: the instructions of the whole program.
instructions() {
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" "$1" "$2" 2>&1 |
        sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}

failed=0
counts=()
printf '%-8s %12s %12s %8s\n' path committed now ratio
for path in "${paths[@]}"; do
    least=$(instructions "$path" "$few")
    most=$(instructions "$path" "$many")
    now=$(((most - least) / (many - few)))
    counts+=("$path $now")
    committed=$(awk -v path="$path" '$1 == path { print $2 }' "$file" 2>/dev/null || true)
    committed=${committed:-0}
    ratio=$(awk -v now="$now" -v before="$committed" 'BEGIN { print before ? now / before : "-" }')
    printf '%-8s %12s %12s %8.8s\n' "$path" "$committed" "$now" "$ratio"
    [ $((100 * now)) -le $((103 * committed)) ] || failed=1
done

if [ -n "$reason" ]; then
    { grep -s '^#' "$file" || true; echo "# $(date -u +%F): $reason"; printf '%s\n' "${counts[@]}"; } >"$home/new"
    mv "$home/new" "$file"
elif [ "$profile" = dev ] && [ "$failed" = 1 ]; then
    echo "a path needs over 3 % more instructions than $file says; if that is meant: $0 --accept REASON" >&2
    exit 1
fi
