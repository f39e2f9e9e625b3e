#!/usr/bin/env bash
# Checks formatting and lints, and the parts around the service: licenses, the chart, the image, the workflows, the
# artefacts of a release, the book, the TLA+ models, and the instructions of a check.
# Run scripts/test.sh first; it installs the packages. Tools are built from source, once, into .tools.
#
#   scripts/verify.sh
set -Eeuo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/steps.sh
source scripts/steps.sh

root=()
[ "$(id -u)" = 0 ] || root=(sudo)

cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
cargo clippy --version >/dev/null 2>&1 || rustup component add clippy

step "cargo fmt --check"
cargo fmt --all --check

step "cargo clippy"
cargo clippy --locked --workspace --all-targets -- -D warnings

# Compiles for six minutes, once.
step "Helm and the validators of charts"
scripts/chart.sh

step "The workflows"
scripts/workflows.sh

step "cargo deny check licenses bans sources"
deny=$(scripts/deny.sh)
"$deny" --log-level error check --hide-inclusion-graph licenses bans sources

# The database of advisories is a git repository. Its state does not depend on the commit that is verified, so
# a run without network is no failure.
step "cargo deny check advisories"
scripts/advisories.sh || {
    [ $? = 2 ] || exit 1
    echo "NOT RUN: cargo deny check advisories, for the reason above" >&2
}

step "The commands of README and docs"
WALK_PROGRAM=$PWD/target/debug/sluicegate scripts/walk.sh || {
    [ $? = 2 ] || exit 1
    echo "NOT RUN: the commands of README and docs, for the reason above" >&2
}

step "The instructions of a check"
scripts/instructions.sh

step "Dockerfile"
scripts/image.sh

# The build for arm64 takes two to three minutes.
step "A release for amd64 and arm64"
scripts/release.sh --cheap amd64 target/release-check
scripts/release.sh chart target/release-check
arm64=(arm64 module)
scripts/release.sh --cheap arm64 target/release-check || {
    [ $? = 4 ] || exit 1
    arm64=()
    echo "NOT RUN: the program and the module for arm64, for the reason above" >&2
}

for what in "${arm64[@]}" package image; do
    step "The release: $what"
    "${root[@]}" scripts/check_release.sh "$what" target/release-check
done

step "The book"
if ! command -v chromedriver >/dev/null; then
    "${root[@]}" apt-get update -qq
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium chromium-driver
fi
scripts/book.sh

step "The examples in Python and Go"
scripts/examples.sh

# The checker compiles for three minutes, once.
step "TLA+"
scripts/specs.sh

step "The tests with network namespaces"
if [ "$(id -u)" = 0 ]; then
    command -v ip >/dev/null || apt-get install -y -qq --no-install-recommends iproute2
    scripts/tiers.py root
else
    echo "NOT RUN: the tests with network namespaces, because only root can make some" >&2
fi

step "The tests of the chart, the compose file, the console, the book and the examples"
scripts/tiers.py verify

step "all verified"
