#!/usr/bin/env bash
# Runs the commands of README and docs in an empty checkout of the last commit, and compares their outputs.
#
#   scripts/walk.sh [PAGE…]     compiles from scratch, which takes minutes
#   WALK_TARGET=DIR scripts/walk.sh   uses the compiled files in DIR
#   WALK_PROGRAM=FILE scripts/walk.sh runs this program instead of compiling
#
# Exits with 2 if it cannot start, and with 1 if a page differs.
#
# Prints a table of all commands. A command that needs a cluster, a container engine or Envoy is in the table, with the
# reason why it does not run. A command that is neither run nor listed is a failure: scripts/walk/walk.py has the rules.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

# Debian has nginx there.
PATH=$PATH:/usr/sbin
missing=()
for program in bash curl git nginx openssl psql python3 redis-cli redis-server ss; do
    command -v "$program" >/dev/null || missing+=("$program")
done
[ ${#missing[@]} = 0 ] || { echo "not installed: ${missing[*]}; scripts/test.sh installs the packages" >&2; exit 2; }
python3 -c 'import tomllib' 2>/dev/null || { echo 'python3 is older than 3.11' >&2; exit 2; }

# The ports of the pages, and those of scripts/walk/files/replica.sh.
ports='8080|8081|8082|9090|6070|6379|5432|8000|9000|18080|18081|18082|19090|16070'
busy=$(ss -ltnH | grep -E ":($ports) " || true)
[ -z "$busy" ] || { printf 'these ports are taken:\n%s\n' "$busy" >&2; exit 2; }

home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
git clone --quiet . "$home/sluicegate" || exit 2

program=${WALK_PROGRAM:-}
if [ -z "$program" ]; then
    export CARGO_TARGET_DIR=${WALK_TARGET:-$home/target}
    (cd "$home/sluicegate" && cargo run --quiet --release --locked -- --version) || exit 1
    program=$CARGO_TARGET_DIR/release/sluicegate
fi
python3 -B "$home/sluicegate/scripts/walk/walk.py" "$home/sluicegate" "$program" "$@"
