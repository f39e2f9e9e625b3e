#!/usr/bin/env bash
# Follows README and docs exactly, in an empty checkout of the last commit.
#
#   scripts/walk.sh             compiles from scratch, which takes minutes
#   WALK_TARGET=DIR scripts/walk.sh   uses the compiled files in DIR
#   WALK_PROGRAM=FILE scripts/walk.sh runs this program instead of `cargo run --release --`
#
# Exits with 2 if it cannot start, and with 1 if a step differs.
#
# A step fails if README and docs do not contain its command. Prints a table of commands, expected
# output and actual output. Needs curl, git, redis-server, and the free ports 8080, 8081, 9090, 6070
# and 6379. The table also lists commands that need a cluster or a container engine and do not run.
set -uo pipefail
cd "$(dirname "$0")/.."

home=$(mktemp -d)
served=0 redis=0 failed=0
table=()
cleanup() {
    [ "$served" = 0 ] || kill "$served" 2>/dev/null
    [ "$redis" = 0 ] || kill "$redis" 2>/dev/null
    wait 2>/dev/null
    rm -rf "$home"
}
trap cleanup EXIT

busy=$(ss -ltnH 2>/dev/null | grep -E ':(8080|8081|9090|6070|6379) ' || true)
[ -z "$busy" ] || { printf 'these ports are taken:\n%s\n' "$busy" >&2; exit 2; }

git clone --quiet . "$home/sluicegate"
cd "$home/sluicegate" || exit 2
export CARGO_TARGET_DIR=${WALK_TARGET:-$home/target}

# row STEP EXPECTED GOT
row() {
    local outcome=ok
    [ "$2" = "$3" ] || { outcome=DIFFERS; failed=1; }
    table+=("$(printf '| %s | %s | %s | %s |' "$1" "$2" "$3" "$outcome")")
}

# shown COMMAND: succeeds if README or docs contain exactly this command.
shown() {
    grep -rqF -- "$1" README.md docs || { row "\`${1//|/\\|}\`" "shown in the docs" "not there"; return 1; }
}

# step EXPECTED COMMAND: the command's output, shortened by $short, must be EXPECTED.
step() {
    local got
    shown "$2" || return
    got=$(bash -c "${2//cargo run --release --/$sluicegate}" 2>/dev/null | eval "$short") || true
    row "\`${2//|/\\|}\`" "$1" "$got"
}

# Also runs `sluicegate`, for pages with an installed program.
export sluicegate='cargo run --quiet --release --'
if [ -n "${WALK_PROGRAM:-}" ]; then
    # A path without blanks, because the commands are split at blanks.
    sluicegate=$home/program
    ln -s "$WALK_PROGRAM" "$sluicegate"
fi
# shellcheck disable=SC2086  # several words
sluicegate() { $sluicegate "$@"; }
export -f sluicegate

waits_for() {
    for _ in $(seq 600); do curl -sfo /dev/null "$1" && return 0; sleep 0.1; done
    return 1
}

# README: Start.
command='cargo run --release -- serve --settings config/start.yaml --store-url file:///tmp/sluicegate'
rm -rf /tmp/sluicegate
shown "$command"
[ -n "${WALK_PROGRAM:-}" ] || cargo build --quiet --release --locked || row 'the build' 'success' 'failure'
$sluicegate serve --settings config/start.yaml --store-url file:///tmp/sluicegate >"$home/said" 2>"$home/log" &
served=$!
waits_for localhost:8080/readyz && got=ready || got='not ready'
row "\`$command\`" ready "$got"

short='head -n 1 | tr -d "\r"'
ask="curl -si localhost:8080/json -d '{\"domain\": \"shop\", \"descriptors\": [{\"entries\": [{\"key\": \"api_key\", \"value\": \"me\"}], \"hitsAddend\": \"11\"}]}'"
step 'HTTP/1.1 429 Too Many Requests' "$ask"
one=${ask/'"11"'/'"1"'}
# A slow machine may get a few more than the burst, because one hit drains each second.
for tries in $(seq 100); do
    got=$(bash -c "$one" | head -n 1 | cut -d' ' -f2)
    [ "$got" = 200 ] || break
done
[ "$tries" -gt 10 ] || got="$got at try $tries"
row 'the same with `"1"`, more than ten times in a row' 429 "$got"

short='head -n 1 | tr -d "\r"'
step 'HTTP/1.1 200 OK' "curl -si localhost:8080/check -H 'X-Hook: edge' -H 'X-Original-URI: /' -H 'X-Original-Method: GET' -H 'X-Real-IP: 192.0.2.1'"

# README: the console, and a change with the token that the start wrote.
got=$(grep -c '^console: http://localhost:6070/console#token=' "$home/said")
row 'a link to the console' 1 "$got"
short='cat'
step 'a bearer token is required' 'curl -s localhost:6070/config'
shown 'export SLUICEGATE_ADMIN_TOKEN_FILE=sluicegate-admin-token'
export SLUICEGATE_ADMIN_TOKEN_FILE=sluicegate-admin-token
step 'api_key=me has 2 times its limit for 1h' 'cargo run --release -- ask --domain shop --descriptor api_key=me --boost x2 --for 1h --reason test'
sluicegate ask --domain shop --descriptor api_key=me --unboost --reason test >/dev/null

# docs/operations/operate-replicas.md and docs/operations: admin, with the same token.
short='head -c 1'
step '{' 'sluicegate show /config'
short='cut -d: -f1'
step 'api_key=me' 'sluicegate ask --domain shop --descriptor api_key=me --refund --hits 50 --reason "ticket 7"'
short='cat'
step '1 counter reset' 'sluicegate ask --domain shop --descriptor api_key=me --reset --reason "ticket 7"'
got=$(sluicegate ask --force allow --scope everything --for 1h --reason test)
row 'let everything through' 'every limit allows everything for 1h' "$got"
got=$(for _ in $(seq 20); do bash -c "$one" | head -n 1 | cut -d' ' -f2; done | sort -u)
row 'twenty hits meanwhile' 200 "$got"
sluicegate ask --unforce --scope everything --reason test >/dev/null
sluicegate ask --domain shop --descriptor api_key=me --reset --reason test >/dev/null
got=$(bash -c "$one" | head -n 1 | cut -d' ' -f2)
row 'the question with `"1"` after the reset' 200 "$got"

# README: Limits, edited while the service runs.
sed -i 's/burst: 10/burst: 12/' config/limits/example.yaml
for _ in $(seq 600); do
    got=$(curl -s localhost:9090/metrics | sed -n 's/^sluicegate_config_revision //p')
    [ "$got" = 2 ] && break
    sleep 0.1
done
row 'an edit of config/limits/example.yaml, as the revision that is in force' 2 "$got"
git checkout --quiet config/limits

short='tail -n 1'
step '0 findings in 1 file: 0 errors, 0 warnings' 'cargo run --release -- validate config/limits'
short='grep -c "limited by"'
step 1 'cargo run --release -- explain --limits config/limits --domain shop --descriptor api_key=me'
short='head -n 1'
step '{' 'cargo run --release -- schema limits'
redis-server --save '' >"$home/redis" 2>&1 &
redis=$!
for _ in $(seq 600); do redis-cli ping >/dev/null 2>&1 && break; sleep 0.1; done
shown 'cargo run --release -- doctor --store-url redis://127.0.0.1'
$sluicegate doctor --store-url redis://127.0.0.1 >"$home/doctor" 2>&1
row '`cargo run --release -- doctor --store-url redis://127.0.0.1`, its exit code' 0 $?
short='grep -c "^  headers: draft"'
step 1 'sluicegate serve --limits-paths config/limits --answers-headers draft --print-config'

kill "$served"
wait "$served"
row 'SIGTERM, the exit code' 0 $?
served=0

for command in 'helm install sluicegate charts/sluicegate --values charts/sluicegate/values/standalone.yaml' 'docker compose up --build'; do
    shown "$command"
    table+=("| \`$command\` | | | not run: it takes a cluster or an engine |")
done

printf '\n| step | should come | came | |\n|---|---|---|---|\n'
printf '%s\n' "${table[@]}"
exit "$failed"
