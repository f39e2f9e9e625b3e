#!/usr/bin/env bash
# Installs cargo-deny into .tools, unless it is there, and prints its path. Compiles for two to three minutes, once.
set -Eeuo pipefail
cd "$(dirname "$0")/.."

version=0.20.2

deny=.tools/cargo/bin/cargo-deny
"$deny" --version 2>/dev/null | grep -qx "cargo-deny $version" ||
    CARGO_PROFILE_DEV_DEBUG=false cargo install --locked --quiet --debug --root .tools/cargo cargo-deny --version "$version" >&2
echo "$deny"
