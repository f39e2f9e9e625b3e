#!/usr/bin/env bash
# Runs the tests of fleets during an upgrade: every other replica is of the last release, and the others are of this
# build. Envoy has the module of the last release, then that of this build: it also meets services older than itself.
#
#   scripts/upgrade.sh             installs missing packages first, as scripts/test.sh
#   scripts/upgrade.sh COMMIT      with another release
#
# The rule: versions are at most one minor version apart. So a format of the wire or of a store may change only if both
# versions read both formats; drop the old one in the release after that.
set -Eeuo pipefail
cd "$(dirname "$0")/.."

# The last release. Set it to the commit of the tag after each minor release.
last=${1:-f9fd6d927647ec32b28c9891c09f9778372eeea9}

# Exact counters, leases, permits of shared and strict limits, tables and budgets.
services=(
    store::redis::exact_limit::four_processes
    store::redis::leased_limits::leasing_processes_together
    store::redis::shared_concurrency::shared_limit_is_never_exceeded_during_faults
    store::redis::strict_concurrency::strict_limit_is_never_exceeded_during_faults
    store::postgres::counters::four_processes_over_postgres
    store::postgres::fleet_faults::leases_over_postgres
    e2e::budgets::faults::ext_proc_never_exceeds
    e2e::fleet::nginx_releases_at_another_replica
    e2e::rollout::rolling_update
)
# Leases and permits.
modules=(
    e2e::envoy_module::fleet::three_envoys_allow
    e2e::envoy_module::concurrency::fleet::three_envoys
)

source=$PWD/target/last-release-source
git worktree remove --force "$source" 2>/dev/null || true
git worktree add --force --detach "$source" "$last"
trap 'git worktree remove --force "$source"' EXIT
# The libraries of both versions are compiled once, if cargo knows this variable.
program=$PWD/target/last-release/debug
(
    cd "$source"
    export CARGO_TARGET_DIR=$PWD/../last-release CARGO_BUILD_BUILD_DIR=$PWD/..
    cargo build --locked --workspace --bin sluicegate
    cargo build --locked --package sluicegate-envoy
)
"$program/sluicegate" --version

export LAST_RELEASE_PROGRAM=$program/sluicegate
run() { cargo test --locked --workspace --test all -- --test-threads 1 "$@"; }
LAST_RELEASE_MODULE=$program run "${services[@]}" "${modules[@]}"
run "${modules[@]}"
