#!/usr/bin/env bash
# Checks the workflows below .github without a forge.
#
# Needs scripts/chart.sh, which installs the linter. If shellcheck is there, the linter also checks the commands.
#
# Guarantees:
# - The linter has no findings.
# - An action is pinned by its commit, with the version in a comment, so that a moved tag changes nothing.
# - A release is compiled by the compiler of the Dockerfile.
#
# Not covered:
# - A run on a forge; the commit of an action belongs to its version.
set -Eeuo pipefail
cd "$(dirname "$0")/.."

fail() { echo "$*" >&2; exit 1; }

.tools/bin/actionlint

actions=$(grep -hoE 'uses: .*' .github/workflows/*.yml)
[ "$(wc -l <<<"$actions")" -ge 10 ] || fail "too few actions: is the pattern right?"
! grep -vE '^uses: [a-z-]+/[a-z-]+@[0-9a-f]{40} # v[0-9]+\.[0-9]+\.[0-9]+$' <<<"$actions" >&2 ||
    fail "an action without its commit and version"
# One commit for one action in all workflows.
[ "$(sort -u <<<"$actions" | wc -l)" = "$(cut -d @ -f 1 <<<"$actions" | sort -u | wc -l)" ] ||
    fail "an action in two versions: $(sort -u <<<"$actions")"

compiler=$(sed -n 's/^FROM \(.*\) AS source$/\1/p' Dockerfile)
grep -qE "^ *(container|image): $compiler\$" .github/workflows/release.yml ||
    fail "the Dockerfile compiles with $compiler, and release.yml with another image"
