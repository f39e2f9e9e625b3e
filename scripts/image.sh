#!/usr/bin/env bash
# Checks the Dockerfile without a container engine. Lints it, then runs its build commands in a
# scratch root with only the files that it copies.
#
#   scripts/image.sh           the linter and the build commands
#   scripts/image.sh --build   also builds the image, if docker is available
#
# Needs scripts/chart.sh, which installs the linter.
set -Eeuo pipefail
cd "$(dirname "$0")/.."

.tools/bin/hadolint Dockerfile

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

# Copies the files of the build stage's COPY lines. .dockerignore must include them.
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

# The commands of the build stage, with /out in the scratch root. Compiled files are kept for the
# next run.
commands=$(sed -n '/^FROM source AS build$/,/^FROM /{/^FROM /d;/^ *#/d;p}' Dockerfile | sed 's/\\$//' | tr '\n' ' ' |
    sed -E "s#^ *RUN##; s#--mount=[^ ]+##g; s#/out\b#$root/out#g")
mkdir -p target/image
ln -s "$PWD/target/image" "$root/target"
(cd "$root" && unset CARGO_TARGET_DIR && CARGO_TERM_QUIET=true bash -euc "$commands")

# The binary must run under both names. The compressed image may have 25 MB; the base has some 10.
"$root/out/bin/sluicegate" --version
"$root/out/bin/ratelimit" --help >/dev/null
[ "$(readlink "$root/out/bin/ratelimit")" = sluicegate ]
grep -qx 'COPY --from=build /out/ /' Dockerfile
layer=$(gzip -c "$root/out/bin/sluicegate" | wc -c)
echo "the service's layer: $((layer / 1000)) kB compressed"
[ "$layer" -lt 15000000 ] || { echo "it may have 15 MB" >&2; exit 1; }
grep -qx 'USER 65532:65532' Dockerfile
grep -qx 'ENTRYPOINT \["/bin/sluicegate"\]' Dockerfile

if [ "${1:-}" = --build ]; then
    docker build --tag sluicegate .
fi
