#!/usr/bin/env bash
# Checks the dependencies against the advisories of RustSec. Installs cargo-deny into .tools, unless it is there.
#
# Exits with 2 if the database cannot be fetched: it is a git repository on another host.
set -Eeuo pipefail
cd "$(dirname "$0")/.."

deny=$(scripts/deny.sh)

timeout 300 "$deny" --log-level error fetch db || {
    echo "https://github.com/rustsec/advisory-db cannot be fetched" >&2
    exit 2
}
"$deny" --log-level error check --hide-inclusion-graph --disable-fetch advisories
