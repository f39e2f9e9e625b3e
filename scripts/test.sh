#!/usr/bin/env bash
# All checks that a change must pass, on a machine with Rust only. Installs missing tools first.
#
#   scripts/test.sh            all checks
#   scripts/test.sh --quick    without proxies, Helm, Prometheus, the book and the models of spec/
#
# Longer checks are in scripts/long.sh.
set -Eeuo pipefail
cd "$(dirname "$0")/.."

deny_version=0.20.2

began=$SECONDS
step() { printf '\n==> %s  (%d s)\n' "$*" "$((SECONDS - began))"; }
# Shows if the machine was stalled or out of memory. A test failure alone does not show it.
machine() {
    head -n 1 /proc/stat
    grep -s oom_kill /proc/vmstat || true
    grep -s avg10 /proc/pressure/{cpu,memory,io} || true
}
trap 'echo; machine; echo "FAILED at line $LINENO after $((SECONDS - began)) s: $BASH_COMMAND" >&2' ERR

missing() { echo "$1" >&2; exit 2; }

# install_packages ERROR_WITHOUT_APT PACKAGE…
install_packages() {
    command -v apt-get >/dev/null || missing "$1"
    local root=()
    [ "$(id -u)" = 0 ] || root=(sudo)
    "${root[@]}" apt-get update -qq
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${@:2}"
}

step "tools"
command -v cargo >/dev/null || missing "no cargo here: install Rust first, https://rustup.rs"
cargo --version
# The allocator and the cryptography are C. The allocator's build runs make, which Debian's gcc only
# suggests.
command -v cc >/dev/null || install_packages "no C compiler (cc) here: install one, such as gcc" gcc libc6-dev
command -v make >/dev/null || install_packages "no make here: install GNU make" make
command -v redis-server >/dev/null ||
    install_packages "no redis-server here: install Redis 7; the tests start it themselves" redis-server
redis-server --version
command -v nginx >/dev/null ||
    install_packages "no nginx here: install 1.22 or later; the tests start it themselves" nginx
nginx -v
# Debian's path, used by the shipped configuration.
[ -e /usr/lib/nginx/modules/ngx_http_lua_module.so ] ||
    install_packages "no Lua module for nginx here: install libnginx-mod-http-lua" libnginx-mod-http-lua
command -v promtool >/dev/null ||
    install_packages "no prometheus and promtool here: install 2.42 or later; the tests start it themselves" prometheus
promtool --version 2>&1 | head -n 1
cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
cargo clippy --version >/dev/null 2>&1 || rustup component add clippy

quick=()
if [ "${1:-}" = --quick ]; then
    quick=(--skip e2e:: --skip chart:: --skip monitoring:: --skip docs::book::)
elif [ -z "${SLUICEGATE_ENVOY:-}" ]; then
    step "Envoy"
    scripts/envoy.sh
fi

if [ "${1:-}" != --quick ]; then
    # Compiles for six minutes, once.
    step "Helm and what judges charts"
    scripts/chart.sh
fi

# Compiles for two to three minutes, once.
deny=.tools/cargo/bin/cargo-deny
if ! "$deny" --version 2>/dev/null | grep -qx "cargo-deny $deny_version"; then
    step "cargo-deny"
    cargo install --locked --quiet --root .tools/cargo cargo-deny --version "$deny_version"
fi

step "cargo deny check licenses bans sources"
"$deny" --log-level error check --hide-inclusion-graph licenses bans sources

step "cargo fmt --check"
cargo fmt --check

step "cargo clippy"
cargo clippy --locked --all-targets -- -D warnings

if [ "${1:-}" != --quick ]; then
    step "Dockerfile"
    scripts/image.sh

    step "The book"
    scripts/book.sh

    # The checker compiles for three minutes, once.
    step "TLA+"
    scripts/specs.sh
fi

step "cargo test"
cargo test --locked --no-run
# Takes a quarter of an hour on two idle cores. Measurements of passing tests are part of the
# output. A failed test's message is more useful than fifty stack frames of its runtime.
export RUST_BACKTRACE=0
scripts/within.sh 40 cargo test --locked -- --show-output "${quick[@]}"

step "all passed"
