#!/usr/bin/env bash
# Checks the Dockerfile without an engine: a linter's rules, then what it copies, by itself in a scratch root, against Cargo.
#
#   scripts/image.sh           the linter, and that the copied files are all that the build takes
#   scripts/image.sh --build   also builds the image, where there is a docker that can
#
# Takes scripts/chart.sh, which installs the linter.
set -Eeuo pipefail
cd "$(dirname "$0")/.."

.tools/bin/hadolint Dockerfile

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

# What .dockerignore lets through, by the COPY lines of the stage that builds.
copied=$(sed -n '/^FROM .* AS source$/,/^FROM source/s/^COPY //p' Dockerfile)
while read -r -a words; do
    target=${words[-1]}
    for source in "${words[@]:0:${#words[@]}-1}"; do
        grep -qx "!${source%/}" .dockerignore || { echo ".dockerignore keeps $source from the build" >&2; exit 1; }
        if [ "$target" = ./ ]; then
            cp -a "$source" "$root/"
        else
            mkdir -p "$root/$(dirname "$target")"
            cp -a "$source" "$root/$target"
        fi
    done
done <<<"$copied"

# The command of the image's build, checked instead of built: the same files, a tenth of the time.
grep -q 'cargo build --release --locked --bin sluicegate' Dockerfile
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
(cd "$root" && cargo check --quiet --locked --bin sluicegate --config 'profile.release.strip=true')

# What the last stage takes is what the build puts there.
for made in /out/bin/sluicegate /out/bin/ratelimit; do
    grep -q "$made" Dockerfile || { echo "the build makes no $made" >&2; exit 1; }
done
grep -qx 'USER 65532:65532' Dockerfile
grep -qx 'ENTRYPOINT \["/bin/sluicegate"\]' Dockerfile

if [ "${1:-}" = --build ]; then
    docker build --tag sluicegate .
fi
