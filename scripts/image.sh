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
# With the features of the tests, whose build is there.
cargo build --locked --quiet --workspace --bin sluicegate --lib
target=${CARGO_TARGET_DIR:-target}

# check_sources NAME LEAST: the sources of the build NAME are copied; there are more than LEAST.
check_sources() {
    local sources source
    read -ra sources < <(sed "s#^[^:]*: ##; s#$PWD/##g" "$target/debug/$1.d")
    [ ${#sources[@]} -gt "$2" ] || { echo "only ${#sources[@]} source files in $1.d" >&2; exit 1; }
    for source in "${sources[@]}"; do
        [ -e "$root/$source" ] || { echo "the Dockerfile does not copy $source" >&2; exit 1; }
    done
    echo "the Dockerfile copies all ${#sources[@]} source files of $1"
}
check_sources sluicegate 300
check_sources libsluicegate_envoy 30

# commands_of STAGE: the commands of a build stage.
commands_of() {
    sed -n "/^FROM source AS $1\$/,/^FROM /{/^FROM /d;/^ *#/d;p}" Dockerfile | sed 's/\\$//' | tr '\n' ' ' |
        sed -E "s#^ *RUN##; s#--mount=[^ ]+##g; s#/out\b#$root/out#g"
}
commands=$(commands_of build)
module_commands=$(commands_of build-module)
grep -q 'cargo build --profile dist --locked --bin sluicegate --features jemalloc ' <<<"$commands" &&
    grep -q 'cargo build --profile dist --locked --package sluicegate-envoy ' <<<"$module_commands" ||
    { echo "the Dockerfile does not build the dist profile with jemalloc" >&2; exit 1; }

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

    (cd "$root" && unset CARGO_TARGET_DIR && CARGO_TERM_QUIET=true bash -euc "$module_commands")
    module=$root/out/libsluicegate_envoy.so
    glibc=$(objdump -T "$module" | grep -oE 'GLIBC_[0-9.]+' | sort -Vu | tail -n 1)
    echo "the module: $(($(gzip -c "$module" | wc -c) / 1000)) kB compressed, needs $glibc"
    [ "$(printf '%s\n' "$glibc" GLIBC_2.35 | sort -V | tail -n 1)" = GLIBC_2.35 ] ||
        { echo "Envoy's images have glibc 2.35; build on Debian 12 or older" >&2; exit 1; }
    ! objdump -p "$module" | grep -q libgcc_s || { echo "Envoy's images have no libgcc_s.so.1" >&2; exit 1; }
fi

if [ "${1:-}" = --build ]; then
    docker build --tag sluicegate .
    docker build --target envoy-module --tag sluicegate-envoy-module .
fi
