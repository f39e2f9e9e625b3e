#!/usr/bin/env bash
# Checks the Dockerfile without a container engine.
#
#   scripts/image.sh            the linter; the copied files suffice for the build
#   scripts/image.sh --compile  also runs the build commands in a root with only the copied files
#   scripts/image.sh --build    also builds the image, if docker is available
#
# Needs scripts/chart.sh, which installs the linter.
set -Eeuo pipefail
cd "$(dirname "$0")/.."

.tools/bin/hadolint Dockerfile
grep -qx 'COPY --from=build /out/ /' Dockerfile
grep -qx 'USER 65532:65532' Dockerfile
grep -qx 'ENTRYPOINT \["/bin/sluicegate"\]' Dockerfile

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

# The manifests name only copied files, and every source file that the compiler read is copied.
(cd "$root" && cargo metadata --locked --offline --no-deps --format-version 1 >/dev/null)
cargo build --locked --quiet --bin sluicegate
target=${CARGO_TARGET_DIR:-target}
read -ra sources < <(sed "s#^[^:]*: ##; s#$PWD/##g" "$target/debug/sluicegate.d")
[ ${#sources[@]} -gt 300 ] || { echo "only ${#sources[@]} source files in sluicegate.d" >&2; exit 1; }
for source in "${sources[@]}"; do
    [ -e "$root/$source" ] || { echo "the Dockerfile does not copy $source" >&2; exit 1; }
done
echo "the Dockerfile copies all ${#sources[@]} source files"

# The build stage's commands.
commands=$(sed -n '/^FROM source AS build$/,/^FROM /{/^FROM /d;/^ *#/d;p}' Dockerfile | sed 's/\\$//' | tr '\n' ' ' |
    sed -E "s#^ *RUN##; s#--mount=[^ ]+##g; s#/out\b#$root/out#g")
grep -q 'cargo build --profile dist --locked --bin sluicegate ' <<<"$commands" ||
    { echo "the Dockerfile does not build the dist profile" >&2; exit 1; }

if [ "${1:-}" = --compile ]; then
    mkdir -p target/image
    ln -s "$PWD/target/image" "$root/target"
    (cd "$root" && unset CARGO_TARGET_DIR && CARGO_TERM_QUIET=true bash -euc "$commands")
    # The binary must run under both names. The compressed image may have 25 MB; the base has some 10.
    "$root/out/bin/sluicegate" --version
    "$root/out/bin/ratelimit" --help >/dev/null
    [ "$(readlink "$root/out/bin/ratelimit")" = sluicegate ]
    layer=$(gzip -c "$root/out/bin/sluicegate" | wc -c)
    echo "the service's layer: $((layer / 1000)) kB compressed"
    [ "$layer" -lt 15000000 ] || { echo "it may have 15 MB" >&2; exit 1; }
fi

if [ "${1:-}" = --build ]; then
    docker build --tag sluicegate .
fi
