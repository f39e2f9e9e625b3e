#!/usr/bin/env bash
# Makes the artefacts of a release in a directory.
#
#   scripts/release.sh amd64 DIR            of one architecture, as published: the profile dist, with jemalloc
#   scripts/release.sh arm64 DIR            the same, cross-compiled
#   scripts/release.sh --cheap arm64 DIR    from a fast build, for scripts/verify.sh
#   scripts/release.sh chart DIR [REGISTRY] the Helm chart, whose images are in REGISTRY
#
# Of one architecture, with the version of Cargo.toml:
#
#   sluicegate-VERSION-linux-ARCH.tar.gz                the program, shipped settings and limits, the unit file
#   sluicegate_VERSION_ARCH.deb                         the same as a Debian package
#   sluicegate-envoy-module-VERSION-linux-ARCH.tar.gz   the module: one file for Envoy 1.38, 1.39 and 1.40
#   sluicegate-VERSION-linux-ARCH.cdx.json              the crates of the program, as CycloneDX
#   SHA256SUMS-ARCH                                     of these files
#   image-ARCH.tar                                      the folder /out of the Dockerfile's stages `build` and `build-module`
#
# Guarantees:
# - The program and the module run on glibc 2.35 and later. (Debian 12, Ubuntu 22.04; the images of Envoy)
# - Archives and packages of equal files are equal: their times are those of the commit.
#
# Exit code 4: the compiler's library for the architecture cannot be fetched.
#
# Not covered:
# - Equal programs from two builds. scripts/publish.sh records where a program was built.
set -Eeuo pipefail
cd "$(dirname "$0")/.."

cyclonedx_version=0.5.9
# The newest glibc that a program may need.
glibc=2.35

# The level of compression.
cheap='' level=9
[ "${1:-}" != --cheap ] || { cheap=yes level=0; shift; }
[ $# -ge 2 ] || { sed -n '2,/^set/s/^# \?//p' "$0" >&2; exit 2; }
arch=$1
mkdir -p "$2"
dir=$(realpath "$2")
registry=${3:-}

version=$(sed -n '0,/^version = /s/^version = "\(.*\)"/\1/p' Cargo.toml)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
# Files of packages are readable, also if the caller's umask is stricter.
umask 022
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "$*" >&2; exit 1; }

install_missing() {
    local sudo=()
    [ "$(id -u)" = 0 ] || sudo=(sudo)
    "${sudo[@]}" apt-get update -qq
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# Prepares cargo for the architecture: sets `target`, `build` and `tools`.
set_target() {
    case $arch in
        amd64) triple=x86_64-unknown-linux-gnu prefix=x86_64-linux-gnu ;;
        # Linux on arm64 has pages of 4, 16 or 64 KiB. jemalloc runs on pages up to the size that it is built for.
        arm64) triple=aarch64-unknown-linux-gnu prefix=aarch64-linux-gnu; export JEMALLOC_SYS_WITH_LG_PAGE=16 ;;
        *) fail "no such architecture: $arch; amd64 or arm64" ;;
    esac
    build=(cargo build --locked --quiet) tools='' target=${CARGO_TARGET_DIR:-target}
    [ "$(rustc -vV | sed -n 's/^host: //p')" != "$triple" ] || return 0
    tools=$prefix- target=$target/$triple
    command -v "${tools}gcc" >/dev/null || install_missing "gcc-$prefix" "libc6-dev-$arch-cross"
    [ -d "$(rustc --print target-libdir --target "$triple")" ] || rustup target add "$triple" || exit 4
    build+=(--target "$triple")
    triple=${triple^^}
    export "CARGO_TARGET_${triple//-/_}_LINKER=${tools}gcc"
    [ -z "$cheap" ] || build+=("${unoptimized[@]}")
}

# Without optimization and debug information, a build for another architecture takes half of the time.
mapfile -t unoptimized < <(
    echo --config=profile.dev.debug=false
    sed -n 's/^\[profile\.dev\.package\.\([a-z0-9-]*\)\]$/--config=profile.dev.package.\1.opt-level=0/p' Cargo.toml
)

# Builds the program and the module, and copies them to `out`, as the Dockerfile does.
compile() {
    local profile=debug
    if [ -n "$cheap" ] && [ -n "$tools" ]; then
        # One build with common features, without dependencies that are compiled twice.
        "${build[@]}" --package sluicegate --package sluicegate-envoy --bin sluicegate --lib
    elif [ -n "$cheap" ]; then
        # This build is there, from scripts/image.sh. With a date, build scripts would run again.
        env --unset=SOURCE_DATE_EPOCH "${build[@]}" --workspace --bin sluicegate --lib
    else
        profile=dist
        build+=(--profile dist --config 'profile.dist.strip="debuginfo"')
        "${build[@]}" --bin sluicegate --features jemalloc
        "${build[@]}" --package sluicegate-envoy
    fi
    out=$work/image/out
    mkdir -p "$out/bin"
    "${tools}strip" --strip-debug -o "$out/bin/sluicegate" "$target/$profile/sluicegate"
    "${tools}strip" --strip-debug -o "$out/libsluicegate_envoy.so" "$target/$profile/libsluicegate_envoy.so"
    chmod 755 "$out/bin/sluicegate"
    # The program's name in the image of envoyproxy/ratelimit.
    ln -s sluicegate "$out/bin/ratelimit"
}

# needed_glibc FILE: the newest version of glibc that a program or library needs.
needed_glibc() { "${tools}objdump" -T "$1" | grep -oE 'GLIBC_[0-9.]+' | sort -Vu | tail -n 1 | sed 's/GLIBC_//'; }

check_libraries() {
    local file needed
    for file in "$out/bin/sluicegate" "$out/libsluicegate_envoy.so"; do
        needed=$(needed_glibc "$file")
        [ "$(printf '%s\n' "$needed" $glibc | sort -V | tail -n 1)" = $glibc ] ||
            fail "$(basename "$file") needs glibc $needed, and may need $glibc: build on Debian 12 or older"
    done
    ! "${tools}objdump" -p "$out/libsluicegate_envoy.so" | grep -q libgcc_s || fail "Envoy's images have no libgcc_s.so.1"
}

# pack PARENT FOLDER: a tar archive that depends on the files only.
pack() {
    tar -C "$1" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -cf - "$2"
}

# archive NAME: packs the folder of that name.
archive() {
    pack "$work" "$1" |
        gzip -n "-${level/0/1}" >"$dir/$1.tar.gz"
}

pack_program() {
    local name=sluicegate-$version-linux-$arch
    mkdir -p "$work/$name/config/limits"
    cp "$out/bin/sluicegate" LICENSE README.md CHANGELOG.md SECURITY.md deploy/debian/sluicegate.service "$work/$name"
    # The paths of the first command in the README.
    cp config/start.yaml config/server.yaml "$work/$name/config"
    cp config/limits/example.yaml "$work/$name/config/limits"
    archive "$name"
}

pack_module() {
    local name=sluicegate-envoy-module-$version-linux-$arch
    mkdir -p "$work/$name"
    cp "$out/libsluicegate_envoy.so" LICENSE config/envoy/module.yaml "$work/$name"
    archive "$name"
}

pack_debian() {
    local root=$work/deb doc=$work/deb/usr/share/doc/sluicegate
    install -d "$root/DEBIAN" "$root/usr/bin" "$root/usr/lib/systemd/system" "$root/etc/sluicegate/limits" "$doc"
    install -m 755 "$out/bin/sluicegate" "$root/usr/bin/sluicegate"
    install -m 644 deploy/debian/sluicegate.service "$root/usr/lib/systemd/system"
    install -m 644 deploy/debian/server.yaml "$root/etc/sluicegate"
    # Without the line for editors: its schema is not in the package.
    sed '/yaml-language-server/d' config/limits/example.yaml >"$root/etc/sluicegate/limits/example.yaml"
    install -m 644 README.md "$doc"
    install -m 644 LICENSE "$doc/copyright"
    gzip -n9 <CHANGELOG.md >"$doc/changelog.gz"
    install -m 755 deploy/debian/{postinst,prerm,postrm} "$root/DEBIAN"
    (cd "$root" && find etc -type f -printf '/%p\n' | sort) >"$root/DEBIAN/conffiles"
    (cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
    write_control "$(du -ks --exclude=DEBIAN "$root" | cut -f 1)" "$(needed_glibc "$out/bin/sluicegate")" \
        >"$root/DEBIAN/control"
    dpkg-deb --root-owner-group -Zxz "-z$level" --build "$root" "$dir/sluicegate_${version}_$arch.deb" >/dev/null
}

# write_control KIB GLIBC
write_control() {
    cat <<CONTROL
Package: sluicegate
Version: $version
Architecture: $arch
Maintainer: The maintainers of Sluicegate <maintainers@sluicegate.invalid>
Installed-Size: $1
Depends: libc6 (>= $2), libgcc-s1
Suggests: envoy, nginx, redis-server
Section: net
Priority: optional
Description: rate limiting and concurrency control for Envoy and NGINX
 Sluicegate decides rate limits and limits on requests in flight. It is a
 drop-in replacement for envoyproxy/ratelimit, and keeps its counters in a
 file, in Redis or in PostgreSQL.
CONTROL
}

# Runs in a copy of the sources, because cargo-cyclonedx writes a file beside each manifest.
list_crates() {
    local cyclonedx=$PWD/.tools/cargo/bin/cargo-cyclonedx target_triple
    target_triple=$(tr '[:upper:]' '[:lower:]' <<<"$triple")
    if ! "$cyclonedx" cyclonedx --version 2>/dev/null | grep -q "$cyclonedx_version"; then
        CARGO_PROFILE_DEV_DEBUG=false cargo install --locked --quiet --debug --root .tools/cargo \
            cargo-cyclonedx --version "$cyclonedx_version"
    fi
    mkdir "$work/source"
    git ls-files -z | tar --null -T - -cf - | tar -C "$work/source" -xf -
    (cd "$work/source" && "$cyclonedx" cyclonedx --quiet --format json --features jemalloc \
        --target "$target_triple" --override-filename sluicegate)
    cp "$work/source/sluicegate.json" "$dir/sluicegate-$version-linux-$arch.cdx.json"
}

pack_chart() {
    # Without a registry, the image is one that the user built.
    cp -a charts/sluicegate "$work/sluicegate"
    sed -i "s|^  registry: \"\"\$|  registry: \"$registry\"|" "$work/sluicegate/values.yaml"
    grep -qx "  registry: \"$registry\"" "$work/sluicegate/values.yaml"
    grep -qx "version: $version" "$work/sluicegate/Chart.yaml" || fail "Chart.yaml has another version than $version"
    local helm=.tools/bin/helm
    [ -x $helm ] || helm=helm
    $helm package "$work/sluicegate" --destination "$dir" >/dev/null
}

if [ "$arch" = chart ]; then
    pack_chart
else
    set_target
    compile
    check_libraries
    pack "$work/image" out >"$dir/image-$arch.tar"
    pack_program
    pack_module
    pack_debian
    list_crates
    (cd "$dir" && sha256sum ./*"-$version-linux-$arch".* "./sluicegate_${version}_$arch.deb" | sed 's# \./# #' \
        >"SHA256SUMS-$arch")
fi
